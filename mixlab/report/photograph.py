"""The picture of the first screen: one image through every model: what one patch reads, matrix, map, components."""

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from mixlab.analysis.figures import FAMILY_NAMES, LineStyle, framed, line_styles, reading_over
from mixlab.analysis.matrices import READING
from mixlab.data.source_names import is_drawn
from mixlab.report.findings import Findings, Record
from mixlab.report.pictures import (
    colour_picture,
    inline_picture,
    map_picture,
    matrix_picture,
    photograph,
    said_of_maps,
    where_coloured,
)
from mixlab.report.sections import place_of
from mixlab.run import UNTRAINED, base_label
from mixlab.run.arrays import from_arrays
from mixlab.run.directory import file_name

MOST_MODELS = 6


def through_models(maps: Sequence[Record], findings: Findings, styles: dict[str, LineStyle]) -> dict[str, Any] | None:
    """The image that shows most: a photograph before a drawn scene, then more models with matrices, then more."""
    found = [_look(record, findings, styles) for record in maps if from_arrays(record.arrays(), "images")]
    return max(found, key=_worth, default=None)


def _worth(look: dict[str, Any]) -> tuple[Any, ...]:
    with_matrix = sum(model["matrix"] is not None for model in look["models"])
    return (look["is_photograph"], with_matrix, len(look["models"]), look["size"])


def _look(record: Record, findings: Findings, styles: dict[str, LineStyle]) -> dict[str, Any]:
    content, image = record.content, record.several("images")[0]
    subjects = {base_label(subject["label"]): subject for subject in reversed(content["subjects"])}  # one of its seeds
    trained = [one for one in reversed(subjects.values()) if one.get("training") != UNTRAINED]
    chosen = _of_all_mixers(trained or [*reversed(subjects.values())], styles)
    chosen.sort(key=lambda subject: place_of(subject["label"], styles)[0])
    models = [_model(subject, record, findings, styles) for subject in chosen]
    return {
        "record": record,
        "data": content["data"],
        "layer": content["layer"],
        "said": said_of_maps(content),
        "coloured": where_coloured(content),
        "is_photograph": not is_drawn(str(content["data"])),
        "size": image.size,
        "aspect": round(image.shape[2] / image.shape[1], 4),
        "name": str(content["images"][0]) if content["images"] else "",
        "image": _image(record, models),
        "models": models,
        "has_components": any(model["components"] for model in models),
        "has_matrices": any(model["matrix"] for model in models),
        "has_readings": any(model["matrix"] and model["matrix"]["reading"] for model in models),
        "left_out": len(subjects) - len(chosen),
        "left_out_untrained": bool(trained) and len(chosen) == len(trained),
    }


def _model(subject: dict[str, Any], record: Record, findings: Findings, styles: dict[str, LineStyle]) -> dict[str, Any]:
    label, key = subject["label"], file_name(subject["label"])
    found = record.several(f"map_{key}")[0]
    colours = from_arrays(record.arrays(), f"pca_colours_{key}")
    family = str(subject.get("family", ""))
    return {
        "label": base_label(label),
        "mixer": FAMILY_NAMES.get(family, family.replace("_", " ")),
        "training": str(subject.get("training", "")),
        "style": styles.get(label) or styles.get(base_label(label)) or line_styles({label: family})[label],
        "map": map_picture(found.mean(0) if found.ndim == 3 else found),
        "components": colour_picture(colours[0]) if colours else None,
        "matrix": _matrix(label, record, findings),
    }


def _matrix(label: str, beside: Record, findings: Findings) -> dict[str, Any] | None:
    """Its matrix on the same image, of the same run where there are several: at each place the strongest of the heads
    that were drawn."""
    same = [record for record in findings.of("matrices") if _seen(record) == _seen(beside)]
    records = sorted(same, key=lambda record: record.run.path != beside.run.path)
    for record in records:
        for model in record.content["models"]:
            if model["label"] == label:
                levels = record.array(file_name(label))
                source = matrix_picture(np.max(levels, axis=0))
                return {"source": source, "record": record, "heads": len(levels)} | _reading(record, model)
    return None


def _reading(record: Record, model: dict[str, Any]) -> dict[str, Any]:
    """What its patch reads, over the image of that record: results from before readings were kept have none."""
    weights, cell = record.arrays().get(f"{READING}{file_name(model['label'])}"), model.get("patch", [])
    if weights is None or weights.ndim != 2 or len(cell) != 2 or not all(map(operator.lt, cell, weights.shape)):
        return {"reading": None}
    over = reading_over(record.array("image"), weights, cell)
    return {"reading": inline_picture(over), "patch": cell, "grid": weights.shape}


def _image(record: Record, models: list[dict[str, Any]]) -> str:
    """The first image; if it is the one whose patch reads, with a frame around that patch."""
    image = record.several("images")[0]
    for found in (model["matrix"] for model in models):
        if found and found["reading"]:
            return inline_picture(framed(image, found["patch"], found["grid"]))
    return photograph(image)


def _seen(record: Record) -> tuple[Any, Any]:
    """The first image, and what is seen of it."""
    return record.content.get("images", [])[:1], record.content.get("protocol", {}).get("fit")


def _of_all_mixers(subjects: list[dict[str, Any]], styles: dict[str, LineStyle]) -> list[dict[str, Any]]:
    """So many that they fit beside each other: the first of each hue, then others, in their order."""
    hues = {id(one): styles[one["label"]].hue if one["label"] in styles else one.get("family") for one in subjects}
    first = {hues[id(subject)]: subject for subject in reversed(subjects)}
    kept = [*first.values(), *(subject for subject in subjects if subject not in first.values())][:MOST_MODELS]
    return [subject for subject in subjects if subject in kept]
