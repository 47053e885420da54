"""Figures: the same data give the same file, colours tell models apart, and nothing is left behind in matplotlib."""

from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch

from mixlab.analysis.figures import FAMILY_COLOURS, PALETTE, colours_of, roc, save_figure, scores
from mixlab.analysis.map_pictures import map_pictures, part_pictures, pca_pictures
from mixlab.analysis.pca import pca_maps


def interval(mean: float | None) -> dict[str, float | int | None]:
    return {"mean": mean, "low": mean, "high": mean, "n": 5, "undefined": 0}


def row(label: str, family: str, mean: float | None) -> dict[str, object]:
    figures = {name: interval(mean) for name in ("auc", "raw_auc", "centre_prior")}
    return {"label": label, "family": family, "index": None, "layer": 3, **figures}


def test_the_same_figure_is_the_same_file(tmp_path: Path) -> None:
    rows = [row("a", "attention", 0.7), row("b", "mamba2", 0.6), row("nothing to score", "other", None)]
    files = [save_figure(scores(rows), tmp_path / f"{name}.svg").read_bytes() for name in ("one", "two")]
    assert files[0] == files[1]
    assert b"<text" not in files[0]  # text is drawn as outlines, readable without any font


def test_style_stays_inside_the_figures() -> None:
    before = dict(mpl.rcParams)
    curve = (np.linspace(0, 1, 5), np.linspace(0, 1, 5))
    roc({"a": curve}, {"a": "attention"})
    assert dict(mpl.rcParams) == before


def test_families_keep_their_colour_and_models_are_told_apart() -> None:
    families = {"vit": "attention", "vit big": "attention", "vim": "mamba2", "resnet": "other"}
    colours = colours_of(families)
    assert colours["vit"] == FAMILY_COLOURS["attention"]
    assert colours["vim"] == FAMILY_COLOURS["mamba2"]
    assert len(set(colours.values())) == 4
    many = colours_of({str(index): "other" for index in range(12)})
    assert set(many.values()) <= set(PALETTE)


def test_pictures_have_a_cell_per_image_and_model() -> None:
    images = torch.randint(0, 255, (2, 3, 16, 16), dtype=torch.uint8)
    maps = {"a": torch.rand(2, 4, 4), "flat": torch.zeros(2, 4, 4)}
    masks = torch.zeros(2, 16, 16, dtype=torch.uint8)
    assert len(map_pictures(images, maps, masks).axes) == 2 * 4
    assert len(part_pictures(images[0], {"a": torch.rand(3, 4, 4), "b": torch.rand(2, 4, 4)}, "head").axes) == 2 * 4
    components = {"a": pca_maps(torch.randn(2, 4, 4, 6))}
    assert len(pca_pictures(images, components).axes) == 2 * 3
