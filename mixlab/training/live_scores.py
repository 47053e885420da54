"""Scores of a network while it trains: kNN by default; a method may have others. Each score is (name, value)."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import torch
from torch import nn

from mixlab.backbones.backbone import Backbone
from mixlab.data.decode import cut_middle, load_size
from mixlab.data.given import Data
from mixlab.data.images import parse_source
from mixlab.data.labelled import Relabelled, is_held_out
from mixlab.data.loader import BatchLoader, ImageReader
from mixlab.data.sample_order import SampleOrder
from mixlab.data.source import ImageSource, Subset, evenly_spaced, split
from mixlab.errors import InputError, few
from mixlab.training.config import TrainConfig
from mixlab.training.distributed import World, any_rank, gather_rows, num_workers, once_per_machine
from mixlab.training.knn import LabelledFeatures, knn_accuracy
from mixlab.training.precision import Precise
from mixlab.training.recipe import Recipe
from mixlab.training.stopping import never, until_stopped

BATCH = 64

Score = tuple[str, float]


class Scores(ABC):
    """What is measured during a run."""

    wanted: bool
    every_epochs: int

    def due(self, epoch: int, epochs: int) -> bool:
        """Whether to score after this many finished epochs."""
        return self.wanted and (epoch % self.every_epochs == 0 or epoch == epochs)

    @abstractmethod
    def __call__(self, recipe: Recipe, stopped: Callable[[], bool] = never) -> Iterator[Score]:
        """The scores by name. Modules are given back in the mode in which they came.

        `stopped` is asked between batches; once it returns True, `ScoringStopped` is raised on every rank.
        """


class KnnScores(Scores):
    """The exported backbone's kNN accuracy on the validation set.

    Without a validation set, the queries are training images that are not in the bank. DINO has not seen their
    labels, so the score still shows progress; it says nothing about new images.
    """

    def __init__(self, data: Data, source: ImageSource, config: TrainConfig, *, world: World, precise: Precise) -> None:
        self.config, self.world, self.precise = config, world, precise
        self.num_classes = len(source.classes)
        self.every_epochs = config.knn.every_epochs
        self.wanted = config.knn.every_epochs > 0 and self.num_classes > 1
        if self.wanted:
            held_out = once_per_machine(world, lambda: validation_set(data, source))
            self.has_held_out = held_out is not None
            bank, queries = (source, held_out) if held_out is not None else split(source)
            self.bank, self.queries = self._share(bank, config.knn.bank), self._share(queries, config.knn.queries)

    def __call__(self, recipe: Recipe, stopped: Callable[[], bool] = never) -> Iterator[Score]:
        modules = [recipe.exported(), *recipe.modules().values()]
        modes = [module.training for module in modules]
        for module in modules:
            module.eval()
        try:
            yield from self.scores(recipe, stopped)
        finally:
            for module, mode in zip(modules, modes, strict=True):
                module.train(mode)

    def scores(self, recipe: Recipe, stopped: Callable[[], bool]) -> Iterator[Score]:
        """Every module is in evaluation mode here."""
        backbone, knn = recipe.exported(), self.config.knn
        size = backbone.image  # as `mixlab knn` scores it
        bank, queries = (self.outputs(backbone, backbone, part, stopped, size) for part in (self.bank, self.queries))
        accuracy = knn_accuracy(
            bank,
            queries,
            num_classes=self.num_classes,
            k=min(knn.k, max(len(bank), 1)),  # a small set has fewer
            temperature=knn.temperature,
            device=self.world.device,
        )
        yield "knn_accuracy", accuracy

    @torch.no_grad()
    def outputs(
        self, backbone: Backbone, module: nn.Module, source: ImageSource, stopped: Callable[[], bool], size: int
    ) -> LabelledFeatures:
        """A module's outputs (n, D) for the images of all ranks, with their labels: what evaluations see of them, the
        middle `size` pixels, and no image that cannot be read."""
        num_batches = math.ceil(len(source) / BATCH)
        loader = BatchLoader(
            ImageReader(source, load_size(size, backbone.crop_share), "crop"),
            SampleOrder.in_turn(len(source), BATCH),
            num_workers=min(num_workers(self.config.data.workers, self.world), num_batches),
            skip_limit=1.0,  # the training's own loader counts and stops
        )
        outputs, labels = [], []
        seen: set[int] = set()  # one that is there again stands for an unreadable image, so that ranks have equal rows
        for batch in until_stopped(loader, stopped, together=True):  # shards need every rank in every pass
            images = backbone.preprocess(cut_middle(batch.images.to(self.world.device), size))
            with self.precise():
                outputs.append(module(images).float())
            indexes = batch.indexes.tolist()
            again = torch.tensor([index in seen or index in indexes[:place] for place, index in enumerate(indexes)])
            seen.update(indexes)
            labels.append(batch.labels.masked_fill(again, -1).to(self.world.device))
        if any_rank(not outputs):
            named = few((f"{path} ({why})" for path, why in loader.skipped.reasons.items()), 1)
            raise InputError(f"none of the {len(source)} images to score can be read, such as {named}; repair them")
        features, known = gather_rows(torch.cat(outputs)), gather_rows(torch.cat(labels))
        return LabelledFeatures(features[known >= 0], known[known >= 0].cpu())

    def _share(self, source: ImageSource, most: int) -> ImageSource:
        """This rank's images of at most `most` with a label, evenly chosen; the same number on every rank."""
        if len(known := (source.labels() >= 0).nonzero()[:, 0]) < len(source):
            source = Subset(source, known.numpy())
        size = self.world.size
        num = min(most, len(source)) // size * size
        if num == 0:
            raise InputError(
                f"{len(source)} labelled images are too few to score on {size} ranks; set knn.every_epochs=0"
            )
        return Subset(source, evenly_spaced(len(source), num)[self.world.rank :: size])


def validation_set(data: Data, source: ImageSource) -> ImageSource | None:
    """The validation images of classes that the training set has, under its numbers; None where there are none."""
    other = parse_source(data, split="val")
    if not is_held_out(data, other, source):
        return None
    known = Relabelled(other, source.classes)
    return known if len(known) else None
