"""Feeding: images per second of whole runs from files, beside those of their step alone.

A run is what the command starts: its recipe, loader and processes, from drawn JPEG files of 500 x 375 px to updated
weights; only its length and its logging differ, and the batch where the recipe's is meant for several GPUs. The step
alone is the same update, in the same process, repeated on one batch that is on the device already. The first third of
a run, in which processes start and kernels compile, does not count; nor does the end of an epoch, which no run reaches.
A linear probe has a loop of its own: its step alone is the same probe with all images on the device (--resident).
"""

import gc
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from mixlab.bench.drawn_files import (
    NUM_DRAWN,
    draw_scenes,
    write_classes,
    write_label_maps,
    write_objects,
    write_shards,
)
from mixlab.bench.timing import Row, call_seconds, measured
from mixlab.evaluation.machine import Machine
from mixlab.evaluation.probe import evaluate_linear_probe
from mixlab.evaluation.settings import ProbeSettings
from mixlab.recipes import RECIPES
from mixlab.run import RunDirectory
from mixlab.training.batches import steps as steps_of
from mixlab.training.config import TrainConfig
from mixlab.training.distributed import join_world, num_workers
from mixlab.training.loop import Trainer, train
from mixlab.training.settings import override
from mixlab.training.stopping import Stopped

STRETCHES = 6  # into which a run is divided; the first third does not count
ROUNDS = 3  # of the step alone, of which the best counts


@dataclass(frozen=True)
class Kind:
    """A kind of run, by a recipe of ViT-B or DinoVim-B; `quick` is its miniature."""

    name: str
    recipe: str
    quick: str
    batch: int
    layout: Callable[[Path, Path, int], str] = write_classes
    settings: tuple[str, ...] = ()
    steps: int = 120
    probe: bool = False

    def config(self, quick: bool) -> TrainConfig:
        return RECIPES[self.quick if quick else self.recipe]()


DINO = ("method.frozen_prototype_epochs=0",)  # as all but the first epoch
RESIDENT = (*DINO, "data.resident=true")
DENSE = ("method.score_every_epochs=0",)
KINDS = (
    Kind("DINO, files", "dino_dinovim_base", "dino_dinovim_tiny64", 64, settings=DINO),
    Kind("DINO, files", "dino_vit_base", "dino_vit_tiny64", 64, settings=DINO),
    Kind("DINO, shards", "dino_vit_base", "dino_vit_tiny64", 64, write_shards, DINO),
    Kind("DINO, resident", "dino_vit_base", "dino_vit_tiny64", 64, settings=RESIDENT),
    Kind("supervised", "supervised_vit_base", "supervised_vit_tiny64", 256),
    Kind("linear probe", "dino_vit_base", "dino_vit_tiny64", 256, steps=60, probe=True),
    Kind("UperNet", "segment_vit_base", "segment_vit_tiny64", 16, write_label_maps, DENSE),
    Kind("Mask R-CNN", "detect_vit_base", "detect_vit_tiny64", 16, write_objects, (*DENSE, "method.head=mask"), 60),
)


def measure_feed(*, quick: bool = False) -> list[Row]:
    """A row for each kind of run; the note has the images per second of each stretch that counts."""
    with tempfile.TemporaryDirectory() as folder:
        scenes = draw_scenes(Path(folder) / "scenes", 8 if quick else NUM_DRAWN)
        return [
            measured(_row(kind, scenes, Path(folder) / str(number), quick=quick)) for number, kind in enumerate(KINDS)
        ]


def _row(kind: Kind, scenes: Path, folder: Path, *, quick: bool) -> Row:
    """Also where a measurement fails, so that one failure does not cost the others."""
    config = kind.config(quick)
    row: Row = {"run": kind.name, "model": config.model.name, "from_files": None, "step_alone": None, "share": None,
                "waiting": None, "note": ""}  # fmt: skip
    batch, steps = (2, 3) if quick else (kind.batch, kind.steps)
    folder.mkdir()
    try:
        data = kind.layout(scenes, folder / "data", 2 * batch * steps)
        if kind.probe:
            found = measure_probe(config, data, folder / "run", batch=batch)
        else:
            found = measure_run(_of_length(config, kind, batch=batch, steps=steps), data, folder / "run")
    except Stopped as stopped:  # a benchmark has nothing to resume
        raise SystemExit(stopped.exit_code) from stopped
    except (RuntimeError, OSError, ValueError, ImportError) as error:
        return {**row, "note": f"not measured: {error}"[:160]}
    finally:
        gc.collect()
        torch.cuda.empty_cache()
    return {**row, **found, "share": found["from_files"] / found["step_alone"]}


def _of_length(config: TrainConfig, kind: Kind, *, batch: int, steps: int) -> TrainConfig:
    """Shorter than an epoch of all files, and logged a few times."""
    length = (f"steps={steps}", "optim.warmup_steps=0", f"batch={batch}")
    log = (f"log.every_steps={max(1, steps // STRETCHES)}", "log.tensorboard=false", "knn.every_epochs=0")
    return override(config, [*length, *log, *kind.settings])


def measure_run(config: TrainConfig, data: str, run: Path) -> Row:
    """A training: the stretches that it logged, then its step alone."""
    alone: list[float] = []
    train(config, data=data, run=run, then=lambda trainer: alone.append(step_alone(trainer)))
    logged = [row for row in RunDirectory(run).read_metrics() if "data_wait" in row]
    counted = logged[len(logged) // 3 :]
    seconds = [1 / row["images_per_s"] for row in counted]  # of an image; stretches are equally long
    waited = sum(part * row["data_wait"] for part, row in zip(seconds, counted, strict=True))
    return {
        "from_files": len(seconds) / sum(seconds),
        "step_alone": alone[0],
        "waiting": waited / sum(seconds),
        "note": " ".join(f"{row['images_per_s']:.4g}" for row in counted),
    }


def step_alone(trainer: Trainer) -> float:
    """Images per second of a trained run's update, repeated on one batch that is on the device."""
    config, device = trainer.config, trainer.world.device
    here = replace(config, data=replace(config.data, workers=0, resident=False))  # nothing is read in the background
    passes = next(steps_of(config.method.loader(trainer.source, here, world=trainer.world), config.accumulate))
    ready = [batch.to(device) for batch in passes]
    calls = max(1, config.log.every_steps)
    seconds = call_seconds(
        lambda: trainer.update(ready, trainer.step - 1), repeats=ROUNDS, calls=calls, warm_up=calls, device=device
    )
    return config.batch / min(seconds)


def measure_probe(config: TrainConfig, data: str, folder: Path, *, batch: int) -> Row:
    """An epoch of the grid of heads on an untrained backbone, from files and from images on the device."""
    settings = ProbeSettings(epochs=1, batch=batch, num_val=batch)
    with join_world(None) as world:
        backbone = config.model.build().to(world.device).eval()
        machine = Machine(world, num_workers(config.data.workers, world))
        speeds = {}
        for resident in (False, True):
            place = folder / f"resident{resident}"
            evaluate_linear_probe(backbone, data, settings, machine=machine, folder=place, resident=resident)
            (speeds[resident],) = RunDirectory(place / settings.mode).read_metrics()
    return {
        "from_files": speeds[False]["images_per_s"],
        "step_alone": speeds[True]["images_per_s"],
        "waiting": speeds[False]["data_wait"],
        "note": "",
    }
