"""Speed and memory against input size: where does attention fall behind?

Backbones alone, forward and backward, at a rising number of tokens; then whole training steps of UperNet at 512 px and
of Cascade Mask R-CNN at 1333 x 800. All models of a row's size share one batch: where one of them runs out of memory,
the batch is halved for all, and the table says so.
"""

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from mixlab.bench.dense_scaling import REFERENCE, Row, crossings
from mixlab.bench.gpu_time import wall_ms
from mixlab.data.dense_batches import CropBatch, ObjectBatch
from mixlab.evaluation.detection.recipes import detect, detect_64
from mixlab.evaluation.segmentation.recipes import segment, segment_64
from mixlab.training.config import ModelConfig, TrainConfig
from mixlab.training.distributed import World
from mixlab.training.update import Update

Tables = dict[str, list[Row]]
OBJECTS = 7  # in an image: COCO's mean


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


def measure(*, tiny: bool = False, device: str | None = None) -> Tables:
    """All tables by title."""
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    plan = tiny_plan() if tiny else full_plan()
    precision = "bf16" if where.type == "cuda" else "fp32"
    bench = Bench(plan, where)
    backbones = bench.backbones()
    detect_px = "1333 x 800" if plan.detect is detect else " x ".join(map(str, reversed(plan.detect_size)))
    crop = plan.segment(plan.models[0]).method.image
    return {
        f"Backbones, forward and backward, {precision}": backbones,
        "Where attention falls behind: input size in px from which on a model is ahead": crossings(backbones),
        f"UperNet at {crop} px, training steps, {precision}": bench.segmenters(),
        f"Cascade Mask R-CNN at {detect_px}, training steps, {precision}": bench.detectors(),
    }


@dataclass
class Bench:
    plan: Plan
    device: torch.device

    def backbones(self) -> list[Row]:
        """Every model at every size."""
        rows: list[Row] = []
        for px, batch in self.plan.sizes.items():
            rows += self._together(batch, lambda model, n, px=px: self._backbone(model, px, n))  # type: ignore[misc]
        return rows

    def segmenters(self) -> list[Row]:
        return self._together(self.plan.segment_batch, self._segmenter)

    def detectors(self) -> list[Row]:
        return self._together(self.plan.detect_batch, self._detector)

    def _together(self, batch: int, one: Callable[[ModelConfig, int], Row]) -> list[Row]:
        """All models with one batch, the largest that fits them all, and each beside the ViT."""
        out_of: list[str] = []
        while True:
            rows: list[Row] = []
            try:
                for model in self.plan.models:
                    name = model.name
                    self._clear()
                    rows.append({"model": name, **one(model, batch)})
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

        def step() -> None:
            backbone.zero_grad(set_to_none=True)
            with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.device.type == "cuda"):
                loss = backbone(images).float().square().mean()
            loss.backward()

        return {"px": px, "tokens": (px // 16) ** 2, **self._time(step, batch)}

    def _segmenter(self, model: ModelConfig, batch: int) -> Row:
        config = self.plan.segment(model)
        size, num_classes = config.method.image, self.plan.num_classes[0]
        crops = CropBatch(
            torch.randint(0, 256, (batch, 3, size, size), dtype=torch.uint8),
            torch.randint(0, num_classes, (batch, size, size), dtype=torch.uint8),
            torch.arange(batch),
        )
        return self._train(config, crops, batch, num_classes)

    def _detector(self, model: ModelConfig, batch: int) -> Row:
        config = self.plan.detect(model)
        config = replace(config, method=replace(config.method, head="cascade"))  # type: ignore[call-arg]
        return self._train(config, random_scenes(batch, *self.plan.detect_size), batch, self.plan.num_classes[1])

    def _train(self, config: TrainConfig, batch: Any, num: int, num_classes: int) -> Row:
        """Whole steps of the training loop: forward, backward, AdamW."""
        precision = "bf16" if self.device.type == "cuda" else "fp32"
        config = replace(config, batch=num, precision=precision)  # type: ignore[arg-type]
        backbone = config.model.build()
        recipe = config.method.build(backbone, num_classes=num_classes, total_steps=1000, steps_per_epoch=1000)
        recipe.network.to(self.device)
        update = Update(recipe, config, steps_per_epoch=1000, world=World(self.device))
        on_device = batch.to(self.device)
        parameters = sum(parameter.numel() for parameter in recipe.network.parameters())
        return {"parameters_M": parameters / 1e6, **self._time(lambda: update([on_device], 1), num)}

    def _time(self, step: Callable[[], object], batch: int) -> Row:
        repeats = self.plan.repeats
        if self.device.type == "cuda":
            step()
            torch.cuda.reset_peak_memory_stats()
            ms = wall_ms(step, repeats=repeats)
            gib: float | None = torch.cuda.max_memory_allocated() / 2**30
        else:
            step()
            times = []
            for _ in range(repeats):
                start = time.perf_counter()
                step()
                times.append(time.perf_counter() - start)
            ms, gib = sorted(times)[len(times) // 2] * 1e3, None
        return {"batch": batch, "images_per_s": batch / ms * 1e3, "peak_GiB": gib}

    def _clear(self) -> None:
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


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
