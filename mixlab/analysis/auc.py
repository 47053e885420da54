"""Binary-AUC of networks' activation maps: one of several studies, or some of them in one pass over the images."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from mixlab.analysis.auc_studies import (
    HEAD_LAYERS,
    HEAD_MAP,
    REGISTER_MAP,
    TOKEN_MAPS,
    beside_maps,
    by_head,
    by_layer,
    by_map,
    by_model,
    by_register_position,
    by_registers,
    by_size,
    by_token,
    by_training,
)
from mixlab.analysis.map_scores import AucResult, MapScorer, ScoreProgress, Wanted
from mixlab.analysis.viewed_images import ViewedImages
from mixlab.backbones.backbone import Backbone, Layers
from mixlab.choices import SCORED_FIT
from mixlab.data.given import AnyData
from mixlab.errors import InputError, did_you_mean
from mixlab.evaluation.target import Target, distinct_targets


def score_maps(
    targets: Target | Backbone | Sequence[Target | Backbone],
    images: ViewedImages | AnyData,
    *,
    study: str = "model",
    map_name: str | None = None,
    twins: bool = True,
    seed: int = 0,
    progress: ScoreProgress | None = None,
) -> AucResult:
    """Score the maps of some networks against the masks of the images, by one of STUDIES.

    If `images` is a name as for `--data` or a `Source[MaskedImage]`, all images are used at the first network's size,
    fitted by SCORED_FIT. `map_name` is a key of `maps.MAPS`, the study's own without it. `twins` scores untrained twins
    too, with the seed of each network's training, or else `seed`.
    """
    targets = distinct_targets(targets)
    if not isinstance(images, ViewedImages):
        size = targets[0].backbone.image
        images = ViewedImages(images, size=size, fit=SCORED_FIT, with_masks=True)
    scorer = MapScorer(images, twins=twins, seed=seed, progress=progress)
    return run_study(study, targets, scorer, map_name)


def run_study(name: str, targets: Sequence[Target], scorer: MapScorer, map_name: str | None = None) -> AucResult:
    """One of STUDIES."""
    return next(run_studies([name], targets, scorer, map_name))


def run_studies(
    names: Sequence[str], targets: Sequence[Target], scorer: MapScorer, map_name: str | None = None
) -> Iterator[AucResult]:
    """Some of STUDIES, with one pass of each network over the images for all of them."""
    for name in names:
        if name not in STUDIES:
            hint = did_you_mean(name, STUDIES, otherwise=f"choose one of {', '.join(STUDIES)}")
            raise InputError(f"there is no study {name!r}; {hint}")
    targets = distinct_targets(targets)
    for target in targets:
        scorer.expect(target, [each for name in names for each in STUDIES[name].asks(target, scorer, map_name)])
    for name in names:
        yield STUDIES[name].run(targets, scorer, map_name)


@dataclass(frozen=True)
class Study:
    """`run` compares some networks; `asks` names the maps of one network that it needs."""

    run: Callable[[Sequence[Target], MapScorer, str | None], AucResult]
    asks: Callable[[Target, MapScorer, str | None], Iterable[Wanted]]


def _asks(default: str | None = None, layers: Layers = 1) -> Callable[[Target, MapScorer, str | None], list[Wanted]]:
    """One map: the one that is asked for, or this, or else the network's default."""
    return lambda target, scorer, map_name: [(map_name or default, layers)]


STUDIES = {
    "model": Study(
        by_model, lambda target, scorer, name: [(name, 1), *((each, 1) for each in beside_maps(target, scorer, name))]
    ),
    "size": Study(by_size, _asks()),
    "training": Study(by_training, _asks()),
    "head": Study(by_head, _asks(HEAD_MAP, HEAD_LAYERS)),
    "registers": Study(by_registers, _asks()),
    "register": Study(by_register_position, _asks(REGISTER_MAP)),
    "token": Study(by_token, _asks("+".join(TOKEN_MAPS))),
    "layer": Study(by_layer, _asks(layers=None)),
    "map": Study(by_map, lambda target, scorer, name: [(each, 1) for each in scorer.single_maps(target)]),
}
