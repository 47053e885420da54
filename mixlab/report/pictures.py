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

from mixlab.analysis.figures import matrix_with_ranks
from mixlab.analysis.rank import block_grid
from mixlab.report.findings import Findings, Record
from mixlab.run.directory import file_name

MIME = {".svg": "image/svg+xml", ".png": "image/png"}
LARGEST = 448  # pixels a side; larger photographs are shrunk


def picture_rows(record: Record) -> dict[str, Any]:
    """Rows of pictures, a column per image: the images, their masks, each model's maps and principal components.

    Runs that store only drawn figures give those as they are.
    """
    content, arrays = record.content, record.arrays()
    labels = [subject["label"] for subject in content["subjects"]]
    if "images" not in arrays:
        return {"record": record, "files": _files(record), "maps": [], "pca": []}
    names = [str(name) for name in content["images"]]
    images = _row("image", "The image", [_photograph(image) for image in arrays["images"]], names)
    maps, pca = [images], [images]
    if "masks" in arrays:
        maps.append(_row("mask", "Its foreground mask", [_mask_picture(mask) for mask in arrays["masks"]], names))
    for label in labels:
        key = file_name(label)
        stack = record.array(f"map_{key}")
        kinds = str(content["maps"].get(label, "activation")).split("+")
        for index, kind in enumerate(kinds):
            flat = stack[:, index] if len(kinds) > 1 else stack.mean(1) if stack.ndim == 4 else stack
            name = f"{label}, {kind}" if len(kinds) > 1 else label  # heads or registers are shown as their mean
            maps.append(_row(name, f"{kind} map of {label}", [_map_picture(one) for one in flat], names))
        if f"pca_first_{key}" in arrays:
            first, colours = record.array(f"pca_first_{key}"), record.array(f"pca_colours_{key}")
            what = f"first principal component of {label}"
            pca.append(_row(label, what, [_map_picture(one) for one in first], names))
            what = f"components 2 to 4 of {label} on its foreground, as colours"
            pca.append(_row("2 to 4", what, [_uri(Image.fromarray(one)) for one in colours], names))
    return {"record": record, "files": [], "maps": maps, "pca": pca if len(pca) > 1 else []}


def matrix_pictures(findings: Findings) -> list[dict[str, Any]]:
    """Each model's matrices, with the ranks of their blocks where they were measured at that image size."""
    ranks = {(record.content["subject"]["label"], record.content["image"]): record for record in findings.of("rank")}
    found = []
    for record in findings.of("matrices"):
        for model in record.content["models"]:
            label, levels = model["label"], record.array(file_name(model["label"]))
            rank = ranks.get((label, record.content["image"]))
            blocks, chunk = (None, None) if rank is None else (rank.arrays().get("blocks"), rank.content["chunk"])
            charts = []
            for place, head in enumerate(model["heads"]):
                grid = None if blocks is None else block_grid(blocks, model["layer"], head)
                charts.append(matrix_with_ranks(label, levels[place], head, grid, chunk))
            found.append({"model": model, "charts": charts, "record": record, "rank": rank})
    return found


def file_picture(path: Path) -> str:
    """A figure file as a data URI. In an <img>, nothing inside an SVG is ever run or fetched."""
    return f"data:{MIME[path.suffix]};base64,{base64.b64encode(path.read_bytes()).decode()}"


def _row(name: str, what: str, pictures: list[str], names: list[str]) -> dict[str, Any]:
    cells = [{"source": source, "alt": f"{what}: {image}"} for source, image in zip(pictures, names, strict=True)]
    return {"name": name, "cells": cells}


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


def _photograph(image: NDArray[np.uint8]) -> str:
    """uint8 (3, H, W)."""
    picture = Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0)))
    picture.thumbnail((LARGEST, LARGEST))
    return _uri(picture)


def _mask_picture(mask: NDArray[np.integer]) -> str:
    """Foreground white, background black, ignored grey."""
    return _uri(Image.fromarray(np.where(mask == 1, 255, np.where(mask == 0, 0, 128)).astype(np.uint8)))


def _map_picture(values: NDArray[np.floating]) -> str:
    """(h, w) scaled to its own range, dark low and bright high."""
    known = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    span = known.max() - known.min()
    levels = (known - known.min()) / span if span > 0 else np.zeros_like(known)
    return _uri(Image.fromarray(mpl.colormaps["viridis"](levels, bytes=True)[..., :3]))


def _uri(picture: Image.Image) -> str:
    file = io.BytesIO()
    picture.save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
