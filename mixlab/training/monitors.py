"""Scores while a run goes on: kNN for any recipe, accuracy for classifiers. Each yields (name, value)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from mixlab.data.crops import normalise
from mixlab.data.images import parse_source
from mixlab.data.labelled import is_held_out
from mixlab.data.loader import Loader
from mixlab.data.source import ImageSource, Subset, evenly_spaced, split
from mixlab.errors import InputError
from mixlab.training.config import KnnConfig, Precise
from mixlab.training.distributed import World, any_rank, gather_rows
from mixlab.training.knn import knn_accuracy
from mixlab.training.recipe import Recipe, to_pixels_of
from mixlab.training.stopping import never, until_stopped
from mixlab.training.supervised import SupervisedRecipe

BATCH = 64

Score = tuple[str, float]


class Scores(ABC):
    """What is measured while a run goes on."""

    wanted: bool
    every_epochs: int

    def due(self, epoch: int, epochs: int) -> bool:
        """Whether to score after this many finished epochs."""
        return self.wanted and (epoch % self.every_epochs == 0 or epoch == epochs)

    @abstractmethod
    def __call__(self, recipe: Recipe, stopped: Callable[[], bool] = never) -> Iterator[Score]:
        """The scores by name. Modules are given back in the mode in which they came.

        `stopped` is asked between batches; once it says yes, `ScoringLeft` is raised on every rank.
        """


class LiveScores(Scores):
    """The exported backbone's kNN score and, where the data has a part that is not trained on, a classifier's accuracy.

    Without such a part the queries of kNN are images that the network was trained on, kept out of the bank alone. DINO
    has not seen their labels, so its score still tells whether features sort themselves; it is no test on new images.
    """

    def __init__(
        self, data: str, source: ImageSource, config: KnnConfig, *, image: int, world: World, precise: Precise
    ) -> None:
        self.config, self.image, self.world, self.precise = config, image, world, precise
        self.num_classes = len(source.classes)
        self.every_epochs = config.every_epochs
        self.wanted = config.every_epochs > 0 and self.num_classes > 1
        if self.wanted:
            held_out = held_out_part(data, source)
            self.has_held_out = held_out is not None
            bank, queries = (source, held_out) if held_out is not None else split(source)
            self.bank, self.queries = self._share(bank, config.bank), self._share(queries, config.queries)

    def __call__(self, recipe: Recipe, stopped: Callable[[], bool] = never) -> Iterator[Score]:
        backbone = recipe.exported()
        modules = [backbone, *recipe.modules().values()]
        modes = [module.training for module in modules]
        for module in modules:
            module.eval()
        try:
            yield from self._scores(recipe, backbone, stopped)
        finally:
            for module, mode in zip(modules, modes, strict=True):
                module.train(mode)

    def _scores(self, recipe: Recipe, backbone: nn.Module, stopped: Callable[[], bool]) -> Iterator[Score]:
        bank, bank_labels = self._outputs(backbone, backbone, self.bank, stopped)
        queries, query_labels = self._outputs(backbone, backbone, self.queries, stopped)
        yield (
            "knn_accuracy",
            knn_accuracy(
                bank,
                bank_labels,
                queries,
                query_labels,
                num_classes=self.num_classes,
                k=self.config.k,
                temperature=self.config.temperature,
            ),
        )
        if isinstance(recipe, SupervisedRecipe) and self.has_held_out:
            logits, labels = self._outputs(backbone, recipe.network, self.queries, stopped)
            yield "accuracy", float((logits.argmax(-1) == labels).float().mean())

    def _share(self, source: ImageSource, most: int) -> ImageSource:
        """This rank's images of at most `most`, evenly chosen; the same number on every rank."""
        size = self.world.size
        num = min(most, len(source)) // size * size
        if num == 0:
            raise InputError(f"{len(source)} images are too few to score on {size} ranks; set knn.every_epochs=0")
        return Subset(source, evenly_spaced(len(source), num)[self.world.rank :: size])

    @torch.no_grad()
    def _outputs(
        self, backbone: nn.Module, module: nn.Module, source: ImageSource, stopped: Callable[[], bool]
    ) -> tuple[Tensor, Tensor]:
        """What a module says of every image on all ranks, (n, D), and the labels, (n,)."""
        loader = Loader(
            source,
            batch_size=min(BATCH, len(source)),
            size=self.image,
            fit="crop",
            shuffle=False,
            drop_last=False,
            skip_limit=1.0,  # the training's own loader counts and stops
        )
        outputs, labels = [], []
        dtype = next(module.parameters()).dtype
        for batch in until_stopped(loader, lambda: any_rank(stopped())):  # together: shards need every rank in a pass
            images = normalise(batch.images.to(self.world.device)).to(dtype)
            with self.precise():
                outputs.append(module(to_pixels_of(backbone, images)).float())  # type: ignore[arg-type]
            labels.append(batch.labels.to(self.world.device))
        return gather_rows(torch.cat(outputs)), gather_rows(torch.cat(labels))


def held_out_part(data: str, source: ImageSource) -> ImageSource | None:
    """The data's images of the same classes that are not trained on; None where there are none."""
    other = parse_source(data, split="val")
    return other if is_held_out(other, source) and other.classes == source.classes else None
