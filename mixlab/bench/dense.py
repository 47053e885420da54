"""Speed and memory against input size: where does attention fall behind?

Backbones alone, forward and backward, at a rising number of tokens; then whole training steps of UperNet at 512 px and
of Cascade Mask R-CNN at 1333 x 800. All models of a row's size share one batch: where one of them runs out of memory,
the batch is halved for all, and the table says so.
"""

import gc
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from mixlab.analysis.figures import Chart, cost_by_pixels, line_styles
from mixlab.bench.timing import Row, call_seconds, measured, peak_gib, training_pass
from mixlab.data.dense_batches import CropBatch, ObjectBatch
from mixlab.evaluation.detection.recipe import detect, detect_64
from mixlab.evaluation.segmentation.recipe import segment, segment_64
from mixlab.training.config import ModelConfig, TrainConfig, TrainingPrecision
from mixlab.training.distributed import World, choose_device
from mixlab.training.update import Update

OBJECTS = 7  # in an image: COCO's mean
REFERENCE = "vit"  # the family that the others are measured by
FAMILY_OF = {"vit": "attention", "dinovim": "mamba2", "linearvit": "linear_attention", "mambaout": "gated_conv"}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is measured."""

    models: tuple[ModelConfig, ...]
    sizes: Mapping[int, int]  # px: the batch to begin with
    segment: Callable[[ModelConfig], TrainConfig] = segment
    detect: Callable[[ModelConfig], TrainConfig] = detect
    segment_batch: int = 16
    detect_size: tuple[int, int] = (800, 1344)  # 1333 is padded to whole patches of 32
    detect_batch: int = 16
    num_classes: tuple[int, int] = (150, 80)
    repeats: int = 10


def full_plan() -> Plan:
    names = ("vit_base", "linearvit_base", "dinovim_base", "mambaout_base")
    sizes = {512: 32, 1024: 8, 2048: 2}  # the same number of pixels
    return Plan(models=tuple(ModelConfig(name=name) for name in names), sizes=sizes)


def tiny_plan() -> Plan:
    """The same in miniature, to see that it works."""
    small = {"dim": 16, "depth": 4, "patch": 8, "image": 32}
    fields: dict[str, dict[str, Any]] = {
        "vit_tiny": {**small, "head_dim": 8},
        "linearvit_tiny": {**small, "head_dim": 8},
        "dinovim_tiny": {**small, "head_dim": 8, "state": 8},
        "mambaout_femto": {"depths": [1, 1, 1, 1], "dims": [8, 8, 16, 16]},
    }
    return Plan(
        models=tuple(ModelConfig(name=name, fields=values) for name, values in fields.items()),
        sizes={32: 2, 64: 1},
        segment=segment_64,
        detect=detect_64,
        segment_batch=2,
        detect_size=(32, 64),
        detect_batch=2,
        num_classes=(5, 3),
        repeats=1,
    )


def measure_dense(*, tiny: bool = False) -> dict[str, list[Row]]:
    """All tables by title."""
    plan = tiny_plan() if tiny else full_plan()
    bench = Bench(plan, choose_device())
    precision = bench.precision
    backbones = bench.backbones()
    detect_px = "1333 x 800" if plan.detect is detect else " x ".join(map(str, reversed(plan.detect_size)))
    crop = plan.segment(plan.models[0]).method.image
    return {
        f"Backbones, forward and backward, {precision}": backbones,
        "Where attention falls behind: input size in px from which on a model is ahead": crossings(backbones),
        f"UperNet at {crop} px, training steps, {precision}": bench.together(plan.segment_batch, bench.segmenter),
        f"Cascade Mask R-CNN at {detect_px}, training steps, {precision}": bench.together(
            plan.detect_batch, bench.detector
        ),
    }


@dataclass
class Bench:
    plan: Plan
    device: torch.device

    @property
    def precision(self) -> TrainingPrecision:
        return "bf16" if self.device.type == "cuda" else "fp32"

    def backbones(self) -> list[Row]:
        """Every model at every size."""
        rows: list[Row] = []
        for px, batch in self.plan.sizes.items():
            rows += self.together(batch, lambda model, n, px=px: self._backbone(model, px, n))  # type: ignore[misc]
        return rows

    def together(self, batch: int, one: Callable[[ModelConfig, int], Row]) -> list[Row]:
        """All models with one batch, the largest that fits them all, and each beside the ViT."""
        out_of: list[str] = []
        while True:
            rows: list[Row] = []
            try:
                for model in self.plan.models:
                    name = model.name
                    if self.device.type == "cuda":
                        gc.collect()
                        torch.cuda.empty_cache()
                    rows.append(measured({"model": name, **one(model, batch)}))
                break
            except torch.OutOfMemoryError:
                out_of.append(f"{name} out of memory at batch {batch}")
                if batch == 1:
                    raise
                batch //= 2
        reference = next(row for row in rows if row["model"].startswith(REFERENCE))
        for row in rows:
            row["speed_over_vit"] = row["images_per_s"] / reference["images_per_s"]
            row["memory_over_vit"] = row["peak_GiB"] / reference["peak_GiB"] if row["peak_GiB"] else None
            row["note"] = "; ".join(out_of)
        return rows

    def _backbone(self, model: ModelConfig, px: int, batch: int) -> Row:
        backbone = model.build().to(self.device).train()
        images = torch.randn(batch, 3, px, px, device=self.device)
        return {"px": px, "tokens": (px // 16) ** 2, **self._time(training_pass(backbone, images), batch)}

    def segmenter(self, model: ModelConfig, batch: int) -> Row:
        config = self.plan.segment(model)
        size, num_classes = config.method.image, self.plan.num_classes[0]
        crops = CropBatch(
            torch.randint(0, 256, (batch, 3, size, size), dtype=torch.uint8),
            torch.randint(0, num_classes, (batch, size, size), dtype=torch.uint8),
            torch.arange(batch),
        )
        return self._train(config, crops, batch, num_classes)

    def detector(self, model: ModelConfig, batch: int) -> Row:
        config = self.plan.detect(model)
        config = replace(config, method=replace(config.method, head="cascade"))  # type: ignore[call-arg]
        return self._train(config, random_scenes(batch, *self.plan.detect_size), batch, self.plan.num_classes[1])

    def _train(self, config: TrainConfig, batch: Any, num: int, num_classes: int) -> Row:
        """Whole steps of the training loop: forward, backward, AdamW."""
        config = replace(config, batch=num, precision=self.precision)
        backbone = config.model.build()
        recipe = config.method.build(backbone, num_classes=num_classes, total_steps=1000, steps_per_epoch=1000)
        recipe.network.to(self.device)
        update = Update(recipe, config, steps_per_epoch=1000, world=World(self.device))
        on_device = batch.to(self.device)
        parameters = sum(parameter.numel() for parameter in recipe.network.parameters())
        return {"parameters_M": parameters / 1e6, **self._time(lambda: update([on_device], 1), num)}

    def _time(self, step: Callable[[], object], batch: int) -> Row:
        warm_up = 4 if self.device.type == "cuda" else 1
        times = call_seconds(step, repeats=self.plan.repeats, warm_up=warm_up, device=self.device)
        return {"batch": batch, "images_per_s": batch / statistics.median(times), "peak_GiB": peak_gib(self.device)}


def random_scenes(batch: int, height: int, width: int) -> ObjectBatch:
    """Images with rectangles for objects, as many as COCO has on average."""
    generator = torch.Generator().manual_seed(0)
    num = batch * OBJECTS
    size = torch.tensor([width, height])
    corner = torch.rand(num, 2, generator=generator) * size * 0.6
    boxes = torch.cat([corner, corner + size * (0.1 + 0.3 * torch.rand(num, 2, generator=generator))], dim=1)
    masks = torch.zeros(num, height, width // 8, dtype=torch.uint8)
    for mask, (left, top, right, bottom) in zip(masks, boxes.int().tolist(), strict=True):
        mask[top:bottom, left // 8 : right // 8 + 1] = 255
    sizes = torch.tensor([[height, width]] * batch)
    return ObjectBatch(
        images=torch.randint(0, 256, (batch, 3, height, width), dtype=torch.uint8, generator=generator),
        boxes=boxes,
        classes=torch.zeros(num, dtype=torch.int64),
        masks=masks,
        counts=torch.full((batch,), OBJECTS),
        sizes=sizes,
        own_sizes=sizes,
        indexes=torch.arange(batch),
    )


def crossings(rows: Sequence[Row]) -> list[Row]:
    """From which size on each model is ahead of the ViT, a straight line drawn between measured ratios."""
    models = dict.fromkeys(row["model"] for row in rows if not row["model"].startswith(REFERENCE))
    return [
        {
            "model": model,
            "faster_from_px": _crossing([(r["px"], r["speed_over_vit"]) for r in rows if r["model"] == model]),
            "less_memory_from_px": _crossing(
                [(r["px"], 1 / r["memory_over_vit"]) for r in rows if r["model"] == model and r["memory_over_vit"]]
            ),
        }
        for model in models
    ]


def _crossing(points: list[tuple[int, float]]) -> str:
    """Where a ratio passes 1 for good, on logarithmic axes; at an end of the measured range, that it is beyond."""
    if not points:
        return "not measured"
    if points[-1][1] <= 1:
        return f"not up to {points[-1][0]}"
    behind = [index for index, (_, ratio) in enumerate(points) if ratio <= 1]
    if not behind:
        return f"{points[0][0]} or below"
    (px, ratio), (next_px, next_ratio) = points[behind[-1]], points[behind[-1] + 1]
    share = -math.log(ratio) / (math.log(next_ratio) - math.log(ratio))
    return f"about {round(px * (next_px / px) ** share)}"


def scaling_charts(rows: Sequence[Row]) -> list[Chart]:
    """Speed and memory against the input size."""
    models = dict.fromkeys(row["model"] for row in rows)
    return cost_by_pixels(rows, line_styles({model: FAMILY_OF[model.partition("_")[0]] for model in models}))
