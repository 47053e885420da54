"""Linear probes: what a whole grid of heads costs beside one head, and how fast it trains on cached features.

One head of the grid is checked against torch.optim.SGD on the same device first.
"""

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import mixlab
from mixlab.bench.knn import synchronise
from mixlab.data.loader import Batch
from mixlab.evaluation.features import STRATEGIES, FeaturePlan, FeatureTable, HeadInput, head_inputs
from mixlab.evaluation.machine import run_precision
from mixlab.evaluation.probe.evaluate import LRS, WEIGHT_DECAYS
from mixlab.evaluation.probe.heads import HeadGrid, new_head
from mixlab.evaluation.probe.training import CachedStream, ProbeCrops
from mixlab.training.distributed import World
from mixlab.training.precision import matrix_products

BLOCKS = (1, 2, 3, 4)
NUM_CLASSES = 1000
Row = dict[str, Any]


def measure_augmented(
    *,
    model: str,
    image: int,
    batch: int,
    num_classes: int,
    steps: int,
    device: torch.device,
    seed: int = 0,
    repeats: int = 3,
) -> list[Row]:
    """One step from uint8 images to trained heads, for a single head and for the whole grid, one after the other."""
    world = World(device)
    torch.manual_seed(seed)
    backbone = mixlab.create_model(model, image=image).to(device).eval().requires_grad_(False)
    pixels = torch.randint(256, (batch, 3, 2 * image, 2 * image), dtype=torch.uint8, device=device)
    labels = torch.randint(num_classes, (batch,), device=device)
    found = Batch(pixels, labels, torch.arange(batch), torch.full((batch, 2), 2 * image))
    crops, precise = ProbeCrops(image, seed=seed), run_precision("auto", device)
    rows: list[Row] = []
    for name, inputs, lrs, decays in (
        ("one head", (HeadInput(4, "cls"),), LRS[:1], WEIGHT_DECAYS[:1]),
        ("grid", head_inputs(backbone, BLOCKS, STRATEGIES), LRS, WEIGHT_DECAYS),
    ):
        plan = FeaturePlan.build(backbone, inputs, source="branch", image=image)
        grid = HeadGrid(plan, lrs=lrs, weight_decays=decays, num_classes=num_classes, world=world)

        def make_features(step: int, plan: FeaturePlan = plan) -> torch.Tensor:
            with torch.no_grad(), precise():
                return plan.extract(backbone, crops(found, backbone, step=step, world=world))

        def train(step: int, grid: HeadGrid = grid, make: Callable[[int], torch.Tensor] = make_features) -> None:
            grid.step(make(step), labels, lr_scale=1.0)

        with matrix_products(exact=False):
            seconds = best_time(train, steps, device, repeats)
            alone = best_time(make_features, steps, device, repeats)
        row = {"what": name, "heads": len(grid.heads), "ms_per_step": seconds * 1e3, "ms_features": alone * 1e3}
        rows.append({**row, "images_per_s": batch / seconds, "times_one_head": 1.0})
    rows[1]["times_one_head"] = rows[1]["ms_per_step"] / rows[0]["ms_per_step"]
    return rows


def measure_cached(
    *, dim: int, batch: int, num_classes: int, num_images: int, steps: int, device: torch.device, seed: int = 0
) -> Row:
    """Images per second of the whole grid on features in half precision, shuffled rows and all."""
    inputs = tuple(HeadInput(blocks, strategy) for blocks in BLOCKS for strategy in STRATEGIES)
    plan = FeaturePlan(inputs, "branch", tuple((pool, (dim,) * max(BLOCKS)) for pool in ("cls", "mean", "max")))
    generator = torch.Generator(device).manual_seed(seed)
    dtype = torch.float16
    features = torch.randn(num_images, plan.width, generator=generator, device=device, dtype=torch.float32).to(dtype)
    table = FeatureTable.from_tensors(features, torch.arange(num_images) % num_classes)
    grid = HeadGrid(plan, lrs=LRS, weight_decays=WEIGHT_DECAYS, num_classes=num_classes, world=World(device))
    batches = CachedStream(table, batch=batch, seed=seed, device=device).steps(0)

    def train(step: int) -> None:
        grid.step(*next(batches), lr_scale=1.0)

    with matrix_products(exact=False):
        seconds = best_time(train, steps, device)
    return {
        "heads": len(grid.heads),
        "parameters_M": sum(group.weight.numel() for group in grid.groups.values()) / 1e6,
        "batch": batch,
        "ms_per_step": seconds * 1e3,
        "images_per_s": batch / seconds,
    }


def check(device: torch.device) -> float:
    """The largest difference of any weight between the grid and torch.optim.SGD after 20 steps in float32."""
    plan = FeaturePlan((HeadInput(2, "cls+mean"),), "branch", (("cls", (48, 48)), ("mean", (48, 48))))
    grid = HeadGrid(plan, lrs=LRS, weight_decays=WEIGHT_DECAYS, num_classes=50, world=World(device))
    generator = torch.Generator().manual_seed(0)
    (group,) = grid.groups.values()
    alone = [new_head(192, 50, seed=0).to(device) for _ in group.heads]
    optimizers = [
        torch.optim.SGD(linear.parameters(), head.lr * 40, momentum=0.9, weight_decay=head.weight_decay)
        for linear, head in zip(alone, group.heads, strict=True)
    ]
    with matrix_products(exact=True):
        for _ in range(20):
            x = torch.randn(64, 192, generator=generator).to(device)
            labels = torch.randint(50, (64,), generator=generator).to(device)
            grid.step(x, labels, lr_scale=40.0)
            for linear, optimizer in zip(alone, optimizers, strict=True):
                optimizer.zero_grad()
                F.cross_entropy(linear(x), labels).backward()
                optimizer.step()
    off = max(float((group.weight[row] - linear.weight.detach()).abs().max()) for row, linear in enumerate(alone))
    if off > 1e-5:
        raise RuntimeError(f"the grid is {off:.1e} off heads trained alone; speed is measured at 1e-5 at most")
    return off


def best_time(run: Callable[[int], object], steps: int, device: torch.device, repeats: int = 3) -> float:
    """Seconds of one step: the best mean over `steps` in a row."""
    for step in range(3):
        run(step)
    times = []
    for _ in range(repeats):
        synchronise(device)
        start = time.perf_counter()
        for step in range(steps):
            run(step)
        synchronise(device)
        times.append((time.perf_counter() - start) / steps)
    return min(times)


def measure_full() -> tuple[list[Row], list[Row]]:
    """dinovim_small at 224 px and 1,000 classes on the GPU: from images, and on cached features."""
    device = torch.device("cuda")
    check(device)
    rows = measure_augmented(
        model="dinovim_small", image=224, batch=256, num_classes=NUM_CLASSES, steps=20, device=device
    )
    cached = measure_cached(dim=512, batch=1024, num_classes=NUM_CLASSES, num_images=100_000, steps=20, device=device)
    return rows, [cached]


def measure_small() -> tuple[list[Row], list[Row]]:
    """The same in miniature on the CPU."""
    device = torch.device("cpu")
    check(device)
    rows = measure_augmented(model="dinovim_tiny", image=32, batch=8, num_classes=10, steps=1, device=device)
    return rows, [measure_cached(dim=32, batch=64, num_classes=10, num_images=512, steps=3, device=device)]
