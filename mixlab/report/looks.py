"""Pictures side by side: the same images through every model, and the matrices with the ranks of their blocks."""

from typing import Any

from mixlab.analysis.figures import matrix_with_ranks
from mixlab.analysis.rank import block_grid
from mixlab.report.pictures import colour_picture, file_picture, map_picture, mask_picture, photograph
from mixlab.report.records import Findings, Record
from mixlab.report.sections import inline
from mixlab.run.directory import file_name


def picture_rows(record: Record) -> dict[str, Any]:
    """Rows of pictures, a column per image: the images, their masks, each model's maps and principal components.

    Runs that store only drawn figures give those as they are.
    """
    content, arrays = record.content, record.arrays()
    labels = [subject["label"] for subject in content["subjects"]]
    names = [str(name) for name in content["images"]]
    if "images" not in arrays:
        return {"record": record, "files": _files(record), "maps": [], "pca": []}
    images = _row("image", "The image", [photograph(image) for image in arrays["images"]], names)
    maps = [images]
    if "masks" in arrays:
        maps.append(_row("mask", "Its foreground mask", [mask_picture(mask) for mask in arrays["masks"]], names))
    for label in labels:
        stack = arrays[f"map_{file_name(label)}"]
        flat = stack.mean(1) if stack.ndim == 4 else stack  # heads or registers as their mean
        what = f"{content['maps'][label]} map of {label}"
        maps.append(_row(label, what, [map_picture(one) for one in flat], names))
    pca = [images]
    for label in labels:
        key = file_name(label)
        if f"pca_first_{key}" in arrays:
            first, colours = arrays[f"pca_first_{key}"], arrays[f"pca_colours_{key}"]
            what = f"first principal component of {label}"
            pca.append(_row(label, what, [map_picture(one) for one in first], names))
            what = f"components 2 to 4 of {label} on its foreground, as colours"
            pca.append(_row("2 to 4", what, [colour_picture(one) for one in colours], names))
    return {"record": record, "files": [], "maps": maps, "pca": pca if len(pca) > 1 else []}


def matrix_pictures(findings: Findings) -> list[dict[str, Any]]:
    """Each model's matrices with the ranks of their blocks, where both were stored."""
    ranks = {record.content["subject"]["label"]: record for record in findings.of("rank")}
    found = []
    for record in findings.of("matrices"):
        arrays = record.arrays()
        for model in record.content["models"]:
            label, layer = model["label"], model["layer"]
            levels = arrays[file_name(label)]
            rank = ranks.get(label)
            same = rank is not None and rank.content["image"] == record.content["image"]
            blocks = rank.arrays().get("blocks") if rank is not None and same else None
            charts = []
            for place, head in enumerate(model["heads"]):
                grid = None if blocks is None else block_grid(blocks, layer, head)
                chunk = rank.content["chunk"] if rank is not None and same else None
                charts.append(inline(matrix_with_ranks(label, levels[place], head, grid, chunk)))
            found.append({"model": model, "charts": charts, "record": record, "rank": rank if same else None})
    return found


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
