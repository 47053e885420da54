"""Pictures side by side: the same images through every model, and matrices with the ranks of their blocks.

Arrays become small PNG pictures inside the page; enlarging is left to the browser.
"""

import base64
import io
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mixlab.analysis.figures import matrix_with_ranks, shrunk
from mixlab.analysis.maps import MAPS
from mixlab.analysis.matrices import RANKS
from mixlab.report.findings import Findings, Record
from mixlab.run.arrays import from_arrays
from mixlab.run.directory import file_name

MIME = {".svg": "image/svg+xml", ".png": "image/png"}
DENSE = {"segmentation": ("miou", "mIoU"), "detection": ("box_ap", "box AP")}
LARGEST = 448  # pixels a side; larger photographs are shrunk


def picture_rows(record: Record) -> dict[str, Any]:
    """A row per model, a picture per image: maps, and components beside them; above, the images and their masks.

    Runs that store only drawn figures give those as they are.
    """
    content, arrays = record.content, record.arrays()
    labels = [subject["label"] for subject in content["subjects"]]
    seen = from_arrays(arrays, "images")
    if not seen:
        return {"record": record, "files": _files(record), "rows": [], "firsts": [], "widths": []}
    names = [str(name) for name in content["images"]]
    masks = [_mask_picture(mask) for mask in from_arrays(arrays, "masks")]
    images = _cells("The image", [photograph(image) for image in seen], names)
    lead = {"name": "image, mask" if masks else "image", "maps": images}
    rows, firsts = [lead | {"components": _cells("Its foreground mask", masks, names[: len(masks)])}], []
    for label in labels:
        key = file_name(label)
        found = record.several(f"map_{key}")
        kinds = str(content["maps"].get(label, "activation")).split("+")
        colours = []
        if components := from_arrays(arrays, f"pca_first_{key}"):
            first = [map_picture(one) for one in components]
            firsts.append({"name": label, "cells": _cells(f"first principal component of {label}", first, names)})
            shown = [colour_picture(one) for one in record.several(f"pca_colours_{key}")]
            colours = _cells(f"components 2 to 4 of {label} on its foreground, as colours", shown, names)
        for index, kind in enumerate(kinds):
            flat = [one[index] if len(kinds) > 1 else one.mean(0) if one.ndim == 3 else one for one in found]
            name = f"{label}, {kind}" if len(kinds) > 1 else label  # heads or registers are shown as their mean
            maps = _cells(f"{kind} map of {label}", [map_picture(one) for one in flat], names)
            rows.append({"name": name, "maps": maps, "components": [] if index else colours})
    widths = [round(image.shape[2] / image.shape[1], 4) for image in seen]  # all pictures have one height
    said = said_of_maps(content)
    return {"record": record, "files": [], "rows": rows, "firsts": firsts, "widths": widths, "said": said}


def said_of_maps(content: dict[str, Any]) -> str:
    """What the maps of a record show, in words."""
    kinds = dict.fromkeys(kind for name in content["maps"].values() for kind in str(name).split("+"))
    if {*kinds} <= {"cosine", "pooled_cosine"}:
        return "similarity of each patch to the summary"
    return "; ".join(MAPS[kind].about if kind in MAPS else kind for kind in kinds)


def where_coloured(content: dict[str, Any]) -> str:
    """Where the components of a record have colours, in words; older results have a threshold, 0 by default."""
    threshold = content["pca"].get("threshold", 0.0)
    if threshold is None:
        return "where the map isolation is above its mean"
    return f"where the first is above {threshold:g}" if threshold else "where the first is positive"


def matrix_pictures(findings: Findings) -> list[dict[str, Any]]:
    """Each model's matrices, with the ranks of their blocks."""
    found = []
    for record in findings.of("matrices"):
        for model in record.content["models"]:
            label, name, chunk = model["label"], file_name(model["label"]), model.get("chunk")
            levels, ranks = record.array(name), record.arrays().get(f"{RANKS}{name}")
            charts = [
                matrix_with_ranks(label, levels[place], head, None if ranks is None else ranks[place], chunk)
                for place, head in enumerate(model["heads"])
            ]
            found.append({"model": model, "charts": charts, "record": record, "has_ranks": ranks is not None})
    return found


def dense_pictures(findings: Findings) -> list[dict[str, Any]]:
    """Predictions beside the truth, of every result of segmentation and detection that has drawn some."""
    found = []
    for record in findings.records:
        file = record.run.path / "figures" / f"{record.name}.png"
        metric = DENSE.get(record.kind)
        if metric is None or not file.is_file():
            continue
        scores = [m for m in record.measurements if m.metric == metric[0]]
        about = f"{record.kind} of {record.content.get('data', '')}"
        score = f"{metric[1]} {100 * scores[0].value:.1f} %" if scores else ""
        label = scores[0].subject.label if scores else record.run.path.name
        found.append({"record": record, "source": file_picture(file), "about": about, "score": score, "label": label})
    return found


def file_picture(path: Path) -> str:
    """A figure file as a data URI. In an <img>, nothing inside an SVG is ever run or fetched."""
    return f"data:{MIME[path.suffix]};base64,{base64.b64encode(path.read_bytes()).decode()}"


def _cells(what: str, pictures: list[str], names: list[str]) -> list[dict[str, str]]:
    return [{"source": source, "alt": f"{what}: {image}"} for source, image in zip(pictures, names, strict=True)]


def _files(record: Record) -> list[dict[str, str]]:
    folder = record.run.path / "figures"
    alts = {"pca": "Images, and principal components of each model's patches", "maps": "Images and each model's maps"}
    found = []
    for name in record.content.get("figures", []):
        path = folder / str(name)
        if path.parent == folder and path.suffix == ".png" and path.is_file():
            alt = alts.get(path.stem, "Maps of heads or registers")
            found.append({"source": file_picture(path), "alt": alt, "name": path.name})
    return found


def photograph(image: NDArray[np.uint8]) -> str:
    """uint8 (3, H, W)."""
    picture = Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0)))
    picture.thumbnail((LARGEST, LARGEST))
    return inline_picture(picture)


def _mask_picture(mask: NDArray[np.integer]) -> str:
    """Foreground white, background black, ignored grey."""
    return inline_picture(Image.fromarray(np.where(mask == 1, 255, np.where(mask == 0, 0, 128)).astype(np.uint8)))


def map_picture(values: NDArray[np.floating]) -> str:
    """(h, w) scaled to its own range, dark low and bright high."""
    known = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    span = known.max() - known.min()
    levels = (known - known.min()) / span if span > 0 else np.zeros_like(known)
    return inline_picture(Image.fromarray(mpl.colormaps["viridis"](levels, bytes=True)[..., :3]))


def colour_picture(colours: NDArray[np.uint8]) -> str:
    """uint8 (h, w, 3)."""
    return inline_picture(Image.fromarray(colours))


def matrix_picture(levels: NDArray[np.uint8]) -> str:
    """Grey levels (L, L), dark low and bright high."""
    return inline_picture(Image.fromarray(mpl.colormaps["magma"](shrunk(levels), bytes=True)[..., :3]).quantize(256))


def inline_picture(picture: Image.Image) -> str:
    """As a data URI."""
    file = io.BytesIO()
    picture.save(file, "PNG")  # `optimize` takes ten times as long for 4 % fewer bytes
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
