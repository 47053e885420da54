"""The accuracy of a classifier that was trained with its network, on the validation set."""

from __future__ import annotations

import torch

from mixlab.data.labelled import labelled_splits
from mixlab.data.source import Subset
from mixlab.evaluation.target import Target
from mixlab.evaluation.views import CentreView
from mixlab.run import Measurement, provenance
from mixlab.run.protocols import AccuracyProtocol
from mixlab.statistics import wilson_interval
from mixlab.training.distributed import from_all, num_workers
from mixlab.training.loop import Trainer


def write_accuracy(trainer: Trainer) -> None:
    """Score what was just trained, each rank its share of the images; the first writes results/accuracy.json.

    Nothing where the data has no validation set: then the network was trained on all images.
    """
    splits = labelled_splits(trainer.data)
    if len(splits.train) < len(trainer.source):
        return
    world, config, view = trainer.world, trainer.config, CentreView(trainer.config.method.image)
    shares = 1 if config.sharding == "fsdp" else world.size  # a network in shards needs every rank in every pass
    own = Subset(splits.val, range(world.rank % shares, len(splits.val), shares))
    counts = from_all(_count_correct(trainer, own, view))[:shares]
    correct, num = (sum(column) for column in zip(*counts, strict=True))
    if not world.is_first or num == 0:
        return
    found = wilson_interval(correct, num)
    backbone = trainer.recipe.exported().eval()
    target = Target(label=trainer.folder.path.name, backbone=backbone, training=config.method.kind, seed=config.seed)
    measurement = Measurement(
        metric="top1",
        value=found.value,
        low=found.low,
        high=found.high,
        n=num,
        subject=target.subject,
        protocol=AccuracyProtocol(
            data=trainer.data,
            split="val",
            image=view.size,
            crop_share=view.crop_share,
            fit=view.fit,
            precision=config.precision,
        ),
        seed=config.seed,
    )
    result = {
        "kind": "accuracy",
        "subject": target.describe(),
        "data": trainer.data,
        "image": view.size,
        "num_classes": len(splits.classes),
        "score": {"top1": found.value, "low": found.low, "high": found.high, "correct": correct, "n": num},
        "measurements": [measurement.to_json()],
        "provenance": provenance(seed=config.seed, device=str(world.device)),
    }
    trainer.folder.write("accuracy", result)


@torch.no_grad()
def _count_correct(trainer: Trainer, source: Subset, view: CentreView) -> tuple[int, int]:
    """How many images the trained network classifies correctly, of how many that could be read."""
    recipe, device = trainer.recipe, trainer.world.device
    backbone = recipe.exported()
    recipe.network.eval()
    correct = num = 0
    workers = num_workers(trainer.config.data.workers, trainer.world)
    for batch in view.loader(source, batch=256, workers=workers) if len(source) else ():
        images = backbone.preprocess(view.crop(batch.images.to(device)))
        with trainer.update.precise():
            logits = recipe.network(images)
        correct += int((logits.argmax(-1).cpu() == batch.labels).sum())
        num += len(batch.labels)
    return correct, num
