"""Can files feed the GPU? A DINO run on drawn JPEG files of 500 x 375 px: the share of time it waits for data."""

import json
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from mixlab.data.shapes import Shapes
from mixlab.recipes import RECIPES
from mixlab.training.config import KnnConfig, LogConfig
from mixlab.training.loop import train

WIDTH, HEIGHT = 500, 375  # the median of ImageNet
NUM_DRAWN = 512  # each is linked to under many names: a decoder does not care
Row = dict[str, Any]


def measure(*, recipe: str = "dino_dinovim_base", batch: int = 64, steps: int = 120) -> list[Row]:
    """One row per logged stretch of a real run, from files to updated weights."""
    config = RECIPES[recipe]()
    config = replace(
        config,
        batch=batch,
        epochs=1,
        optim=replace(config.optim, warmup_epochs=0),
        log=LogConfig(every_steps=max(steps // 6, 1), tensorboard=False),
        knn=KnnConfig(every_epochs=0),
    )
    with tempfile.TemporaryDirectory() as folder:
        files, run = Path(folder) / "images", Path(folder) / "run"
        files.mkdir()
        draw_files(files, num_files=batch * steps)
        train(config, data=str(files), run=run)
        lines = (run / "metrics.jsonl").read_text().splitlines()
    figures = [json.loads(line) for line in lines]
    return [
        {"step": row["step"], "images_per_s": row["images_per_s"], "waiting_for_data": row["data_wait"]}
        for row in figures
        if "data_wait" in row
    ]


def draw_files(folder: Path, *, num_files: int) -> None:
    """`num_files` JPEG files, of which `NUM_DRAWN` differ."""
    drawn = min(NUM_DRAWN, num_files)
    with ProcessPoolExecutor(initializer=torch.set_num_threads, initargs=(1,)) as pool:
        list(pool.map(partial(_draw, folder), range(drawn), chunksize=8))
    for number in range(drawn, num_files):
        (folder / f"{number:06d}.jpg").hardlink_to(folder / f"{number % drawn:06d}.jpg")


def _draw(folder: Path, number: int) -> None:
    pixels = Shapes(size=WIDTH, num_images=NUM_DRAWN).load(number)[:, :HEIGHT]
    Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(folder / f"{number:06d}.jpg", quality=92)
