"""The laboratory behind the page: answers questions about models and pictures, from several threads at once."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from mixlab.analysis.maps import MAPS, MapOfFeatures, MapOfMixing, default_map
from mixlab.analysis.viewed_images import shown_size
from mixlab.analysis.views import side_multiple, why_squares
from mixlab.app.exhibits import ShownExhibit, run_exhibits
from mixlab.app.jobs import Progress
from mixlab.app.look import Look
from mixlab.app.pictures import Picture, read_samples
from mixlab.app.questions import (
    MapCard,
    MapQuestion,
    MatrixQuestion,
    ModelCard,
    PcaQuestion,
    Question,
    RowQuestion,
    RowsQuestion,
    ScoreQuestion,
)
from mixlab.app.traces import Sight, Traces
from mixlab.backbones.room import check_room
from mixlab.backbones.zoo import SHIPPED
from mixlab.choices import PAGE_DATA
from mixlab.errors import InputError, MissingPartError, check_counts
from mixlab.evaluation.target import Target, label_of, load_targets, split_target
from mixlab.mixers import Mixing, SelectiveMixing, SSDMixing
from mixlab.run import RunDirectory

PARTS: dict[str, Literal["head", "register", "direction"]] = {
    "mixing_rows": "head",
    "direction_rows": "direction",
    "register_cosine": "register",
    "register_dot": "register",
    "register_rows": "register",
}
_ROWS = "a mixing matrix, and a class token or registers"
NEEDS = {
    "register_cosine": "registers",
    "register_dot": "registers",
    "front_cosine": "a class token in the middle with a copy in front",
    "mixing_rows": _ROWS,
    "mixing_mean": _ROWS,
    "register_rows": _ROWS,
    "direction_rows": "a scan",
}


class Laboratory:
    """Looks inside subjects on demand."""

    def __init__(
        self,
        subjects: Sequence[Target],
        samples: Sequence[Picture],
        *,
        cache_bytes: int,
        facts: Mapping[str, tuple[str, ...]] | None = None,
        exhibits: Sequence[ShownExhibit] = (),
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        """`sizes`: the side in pixels at which a model sees pictures, where it is not what it was made for."""
        said, sizes = facts or {}, sizes or {}
        self._subjects = {subject.label: subject for subject in subjects}
        self._traces = Traces(cache_bytes)
        self.models: Sequence[ModelCard] = [
            card_of(subject, said.get(subject.label, ()), sizes.get(subject.label)) for subject in subjects
        ]
        self.maps: Sequence[MapCard] = [
            MapCard(name, kind.about.partition(", (B")[0], PARTS.get(name, ""), NEEDS.get(name, _needs(kind)))
            for name, kind in MAPS.items()
        ]
        self.samples = samples
        self.exhibits = exhibits
        self._cards = {card.id: card for card in self.models}

    @torch.inference_mode()
    def answer(self, question: Question, picture: Picture, progress: Progress) -> dict[str, Any]:
        """The answer, with numpy arrays inside; calls `progress` between steps, which stops it when cancelled."""
        card = self._cards[question.model]
        if question.fit == "whole" and card.multiple is None:
            raise InputError(f"{card.id} is shown squares only; choose another fit")
        sight = Sight(self._subjects[question.model], picture, question.fit, card.image, card.multiple or 1)
        look = Look(self._traces, sight, card, layer=question.layer, progress=progress)
        match question:
            case MapQuestion():
                return look.map(question.map)
            case PcaQuestion():
                return look.pca()
            case MatrixQuestion():
                return look.matrix(question.head)
            case RowQuestion():
                return look.row(question)
            case RowsQuestion():
                return look.rows(question)
            case ScoreQuestion():
                return look.score(question)
            case _:
                return look.sweep(question)


def card_of(subject: Target, facts: tuple[str, ...] = (), image: int | None = None) -> ModelCard:
    """The description of a model for the page; it is run, to see how its layers mix and which shapes it takes."""
    backbone, size = subject.backbone, image or subject.backbone.image
    mixings = layer_mixings(subject, size)
    first = mixings[0][0] if mixings else None
    multiple = side_multiple(backbone)
    return ModelCard(
        id=subject.label,
        architecture=backbone.name,
        family=subject.family,
        training=subject.training,
        num_layers=backbone.num_layers,
        num_registers=subject.num_registers,
        num_heads=tuple(count for _, count in mixings),
        num_parameters=subject.num_parameters,
        image=size,
        multiple=None if why_squares([subject], size, multiple) else multiple,
        has_matrix=bool(mixings),
        default_map=default_map(backbone),
        maps=tuple(name for name in MAPS if _has_map(name, subject, first)),
        facts=facts,
    )


@torch.inference_mode()
def layer_mixings(subject: Target, size: int) -> list[tuple[type[Mixing], int]]:
    """The kind and the heads of each layer's mixing; none where a model has no matrix to show."""
    backbone = subject.backbone
    if backbone.channels != 3:
        raise InputError(f"{subject.label} takes {backbone.channels} channels; the page shows RGB pictures only")
    parameter = next(backbone.parameters())
    blank = torch.zeros(1, 3, size, size, device=parameter.device, dtype=parameter.dtype)
    try:
        return [(type(mixing), mixing.num_heads) for _, mixing in backbone.mixings(blank)]
    except MissingPartError:
        return []


def _needs(kind: MapOfFeatures | MapOfMixing) -> str:
    """What a model needs for a map of a plugin's."""
    return "nothing" if isinstance(kind, MapOfFeatures) else _ROWS


def _has_map(name: str, subject: Target, mixing: type[Mixing] | None) -> bool:
    if name in ("register_cosine", "register_dot"):
        return subject.num_registers > 0
    if name == "front_cosine":
        return subject.backbone.layout.has_front_copy
    if isinstance(MAPS[name], MapOfFeatures):
        return True
    if mixing is None or not subject.backbone.layout.has_summary_token:
        return False
    return name != "direction_rows" or issubclass(mixing, SSDMixing | SelectiveMixing)


def build_laboratory(
    targets: Sequence[str],
    *,
    weights: Sequence[str] = (),
    data: Sequence[str] = PAGE_DATA,
    num_samples: int = 8,
    image: int | None = None,
    device: str | None = "auto",
    cache_mb: int = 512,
    seed: int = 0,
) -> Laboratory:
    """The models and samples of a page."""
    check_counts(num_samples=num_samples, cache_mb=cache_mb, image=image)
    subjects = load_targets(targets or ([] if weights else SHIPPED), weights=weights, seed=seed, device=device)
    places = {label_of(text): Path(split_target(text)[0]) for text in targets}
    runs = {label: RunDirectory(place) for label, place in places.items() if place.is_dir()}
    facts = {label: run_facts(run) for label, run in runs.items()}
    sizes = {subject.label: image or shown_size(subject.backbone.image) for subject in subjects}
    for subject in subjects:
        check_room(subject.backbone, sizes[subject.label])
    samples = read_samples(data, num_samples)
    return Laboratory(
        subjects, samples, cache_bytes=cache_mb * 2**20, facts=facts, exhibits=run_exhibits(runs), sizes=sizes
    )


SHOWN_METRICS = {"knn_top1": "kNN", "probe_top1": "linear probe"}


def run_facts(run: RunDirectory) -> tuple[str, ...]:
    """Its data, then its best accuracy by each known metric with all labels, in per cent."""
    data = run.read_config_if_any().get("data")
    facts = [f"data {data}"] if data else []
    measured = [m for m in run.measurements() if m["label_share"] == 1 and m["register"] is None]
    for metric, name in SHOWN_METRICS.items():
        values = [m.value for m in measured if m.metric == metric]
        if values:
            facts.append(f"{name} {100 * max(values):.1f} %")
    return tuple(facts)
