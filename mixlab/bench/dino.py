"""A whole DINO step (crops apart or included), ours beside facebookresearch/dino's, in one run on one machine.

The peer is measured where its sources are given (a clone of facebookresearch/dino); otherwise it is left out.
"""

import gc
import importlib
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mixlab.backbones.zoo import create_model
from mixlab.bench.drawn_files import FILE_HEIGHT, FILE_WIDTH
from mixlab.bench.timing import PEER_SECONDS, Row, call_seconds, measured, peak_gib, time_limit
from mixlab.data.packed import PackedBatch, pack_images
from mixlab.recipes import RECIPES
from mixlab.training.config import TrainConfig
from mixlab.training.dino import DinoConfig, DinoRecipe
from mixlab.training.distributed import World, choose_device
from mixlab.training.recipe import BatchPart
from mixlab.training.update import Update, peak_memory_gib

MODELS = ("dinovim_base", "vit_base")
ROUNDS = 3
# One NVIDIA H200, bf16, batch 64, 2 x 224 + 8 x 96 px, 65,536 outputs; measured 2026-11-15, torch 2.11
PUBLISHED: list[Row] = [
    {"system": "Dino-Mamba, released", "model": "DinoVim-B", "images_per_s": 81.0, "peak_GiB": 31.1},
    {"system": "Dino-Mamba, released", "model": "DinoVim-S", "images_per_s": 90.0, "peak_GiB": None},
    {"system": "facebookresearch/dino", "model": "ViT-B/16", "images_per_s": 344.0, "peak_GiB": 22.3},
]


class ReadyViews(DinoRecipe):
    """DINO on views that are already there: what peers are measured on."""

    ready: list[Tensor]

    def views(self, batch: PackedBatch, part: BatchPart) -> list[Tensor]:
        return self.ready


def measure_dino(*, steps: int = 20, tiny: bool = False, peer: Path | None = None) -> list[Row]:
    """One row per network: with views ready, and with the crops made in the step; then the peer."""
    device = choose_device()
    configs = {name: _config(name, tiny=tiny) for name in MODELS}
    ways = [(False, False), (True, False)] + [(True, True)] * (device.type == "cuda")  # crops made, a CUDA graph
    rows = []
    for name, config in configs.items():
        for crops, graph in ways:
            run = partial(_ours, replace(config, graph=graph), device, steps, crops)
            rows.append(_guarded(f"mixlab{', as a CUDA graph' if graph else ''}", name, crops, run))
            if device.type == "cuda":
                gc.collect()  # what a graph holds would count as the next row's
                torch.cuda.empty_cache()
    if peer is None:
        return rows
    size = "tiny" if tiny else "base"

    def run_peer() -> Row:
        with time_limit(2 * PEER_SECONDS):  # two networks, their compilation included
            return _peer(peer, configs["vit_base"], size, device, steps)

    rows.append(_guarded("facebookresearch/dino", f"vit_{size}", False, run_peer))
    return rows


def _config(name: str, *, tiny: bool) -> TrainConfig:
    if tiny:
        small = DinoConfig(num_prototypes=256, hidden=64, bottleneck=32, global_size=32, local_size=16, num_local=2)
        return replace(RECIPES[f"dino_{name.split('_')[0]}_tiny64"](), method=small, batch=4)
    return replace(RECIPES[f"dino_{name}"](), batch=64)


def _ours(config: TrainConfig, device: torch.device, steps: int, crops: bool) -> Row:
    assert isinstance(config.method, DinoConfig)
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(0)
    backbone = create_model(config.model.name, **config.model.fields)
    recipe = (DinoRecipe if crops else ReadyViews)(config.method, backbone, total_steps=1000)
    for module in recipe.modules().values():
        module.to(device)
    height, width = (FILE_HEIGHT, FILE_WIDTH) if config.data.size is None else (config.data.size, config.data.size)
    images = torch.randint(0, 256, (config.batch, 3, height, width), dtype=torch.uint8, device=device)
    numbers = torch.arange(config.batch)
    data = PackedBatch(pack_images(images), numbers, numbers, torch.tensor([[height, width]] * config.batch))
    if isinstance(recipe, ReadyViews):
        recipe.ready = DinoRecipe.views(recipe, data, BatchPart(step=0, epoch=0))
    update = Update(recipe, config, steps_per_epoch=100, world=World(device))
    count = iter(range(100, 10**9))  # past the first epoch, in which the prototypes are frozen
    row = _time(lambda: update([data], next(count)), config.batch, device, steps)
    return {**row, "peak_GiB": peak_memory_gib(device)} if config.graph else row  # what a graph holds counts, too


def _peer(folder: Path, config: TrainConfig, size: str, device: torch.device, steps: int) -> Row:
    """Their networks, head, loss and helpers in the order of their training loop, in bf16."""
    if not (folder / "main_dino.py").is_file():
        raise FileNotFoundError(f"no facebookresearch/dino in {folder}")
    assert isinstance(config.method, DinoConfig)
    method = config.method
    sys.path.insert(0, str(folder))
    try:
        theirs, main = importlib.import_module("vision_transformer"), importlib.import_module("main_dino")
        helpers = importlib.import_module("utils")
    finally:
        sys.path.remove(str(folder))
    patch = 8 if size == "tiny" else 16

    def network(**options: Any) -> Any:
        backbone = theirs.__dict__[f"vit_{size}"](patch_size=patch, **options)
        head = theirs.DINOHead(backbone.embed_dim, method.num_prototypes, norm_last_layer=True)
        return helpers.MultiCropWrapper(backbone, head).to(device)

    student, teacher = network(drop_path_rate=0.1), network()
    teacher.load_state_dict(student.state_dict())
    teacher.requires_grad_(False)
    num_views = 2 + method.num_local
    loss_of = main.DINOLoss(method.num_prototypes, num_views, 0.04, 0.07, 30, 100).to(device)
    # Their centre is reduced over ranks even where there is one: leave the collective out.
    loss_of.update_center = lambda teacher_output: loss_of.center.mul_(0.9).add_(
        teacher_output.float().mean(0, keepdim=True), alpha=0.1
    )
    optimizer = torch.optim.AdamW(helpers.get_params_groups(student), lr=1e-5)
    sizes = [method.global_size] * 2 + [method.local_size] * method.num_local
    views = [torch.randn(config.batch, 3, side, side, device=device) for side in sizes]

    def step() -> None:
        with torch.autocast(device.type, dtype=torch.bfloat16):
            targets = teacher(views[:2])
            loss = loss_of(student(views), targets, 1)
        optimizer.zero_grad()
        loss.backward()
        helpers.clip_gradients(student, 3.0)
        optimizer.step()
        with torch.no_grad():
            for ours, average in zip(student.parameters(), teacher.parameters(), strict=True):
                average.data.mul_(0.996).add_(ours.detach().data, alpha=0.004)

    return _time(step, config.batch, device, steps)


def _time(step: Callable[[], object], images: int, device: torch.device, steps: int) -> Row:
    """Steps one after the other as in training, waited for at the end; the median of some rounds, after warming up."""
    warm_up = 2 if device.type == "cpu" else 8
    seconds = statistics.median(call_seconds(step, repeats=ROUNDS, calls=steps, warm_up=warm_up, device=device))
    return {"images_per_s": images / seconds, "ms_per_step": seconds * 1e3, "peak_GiB": peak_gib(device)}


def _guarded(system: str, model: str, crops: bool, run: Callable[[], Row]) -> Row:
    """A row even where a measurement fails, so that one failure does not cost the others."""
    row: Row = {"system": system, "model": model, "views": "made in step" if crops else "ready"}
    empty = {"images_per_s": None, "ms_per_step": None, "peak_GiB": None, "note": ""}
    try:
        return measured({**row, **empty, **run()})
    except (RuntimeError, ImportError, OSError, AttributeError, TypeError, ValueError) as error:
        return {**row, **empty, "note": f"not measured: {error}"[:160]}
