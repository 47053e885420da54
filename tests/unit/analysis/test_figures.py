"""Charts: the same data give the same file, values lie where they belong, and nothing is left behind in matplotlib."""

import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mixlab.analysis.figures import (
    Chart,
    distances,
    legend_key,
    line_styles,
    matrix_with_ranks,
    roc,
    save_charts,
    save_figure,
    spectra,
    study_charts,
    training_curves,
)
from mixlab.analysis.figures.chart import STYLE, log_axis
from mixlab.analysis.figures.pictures import map_pictures, part_pictures, pca_pictures
from mixlab.analysis.pca import pca_of_each

STYLES = line_styles({"a": "attention", "b": "mamba2"})
ROC = {"false_positive_rate": [0.0, 0.5, 1.0], "true_positive_rate": {"a": [0.0, 0.7, 1.0]}}


def row(label: str, family: str, mean: float | None, **place: Any) -> dict[str, Any]:
    score = {"mean": mean, "low": mean, "high": mean, "n": 5}
    figures = dict.fromkeys(("auc", "raw_auc", "centre_prior", "untrained"), score)
    return {"label": label, "family": family, "map": "cosine", "index": None, "layer": 3, **figures, **place}


ROWS = [row("a", "attention", 0.7), row("b", "mamba2", 0.6), row("no score", "other", None)]


def drawn(chart: Chart) -> Axes:
    ax = Figure().subplots()
    chart.draw(ax)
    return ax


@pytest.mark.parametrize("study", ["model", "layer", "register", "map", "head"])
def test_the_same_rows_are_the_same_file_and_text_in_it_needs_no_font(study: str, tmp_path: Path) -> None:
    charts = study_charts(study, ROWS)
    files = [save_charts(charts, tmp_path / f"{name}.svg").read_bytes() for name in ("one", "two")]
    assert files[0] == files[1]
    assert b"<text" not in files[0] and b"hint:" not in files[0]
    assert len(charts) == (3 if study == "head" else 1)


def test_a_chart_in_a_page_has_text_hints_the_page_s_colours_and_no_ids() -> None:
    label = '<b>"$a$"</b>'
    (chart,) = study_charts("layer", [row(label, "attention", 0.5, layer=0), row(label, "attention", 0.75, layer=1)])
    svg = chart.svg()
    root = ElementTree.fromstring(svg)
    assert root.get("aria-label") == "AUC by layer. Bands are 95 % intervals; 0.5 is chance."
    assert {"layer, from 0", "mean AUC (raw)", "0"} <= {part.text for part in root.iter("text")}
    titles = [part.text for part in root.iter("title")]
    assert f"{label}: 0.75 at 1" in titles, "a point does not say its value"
    assert "var(--c0)" in svg and "var(--line)" in svg
    assert not re.search(r'\bid="|clip-path|font-family|#[0-9a-f]{6}|<style', svg)


def test_points_lie_at_their_values_and_nan_leaves_a_gap() -> None:
    lines = {"a": ([0.0, 10.0, 20.0], [3.0, math.nan, 1.0])}
    ax = drawn(training_curves(lines, "loss", "Loss", STYLES))
    np.testing.assert_array_equal(ax.lines[0].get_xydata(), [(0, 3), (10, math.nan), (20, 1)])
    svg = training_curves(lines, "loss", "Loss", STYLES).svg()
    assert "nan" not in svg.lower() and svg.count("<title>a: ") == 2


def test_spectra_end_where_the_numerical_rank_ends() -> None:
    eps = np.finfo(np.float64).eps
    values = np.array([[[1.0, 1e-3, 5 * eps, eps]]])  # eps C = 4 eps
    ax = drawn(spectra({"a": {"off_diagonal_spectrum": values}, "zero": {"off_diagonal_spectrum": 0 * values}}, STYLES))
    assert [list(line.get_ydata()) for line in ax.lines] == [[1.0, 1e-3, 5 * eps]]


def test_weight_on_the_patch_itself_is_said_and_not_drawn() -> None:
    result = {"overall": {"distance": {"distance_to_others": 1.5}}, "uniform_distance_to_others": 2.0}
    chart = distances({"a": {"grid_profile": np.array([[0.5, 0.25, 0.25]])}}, {"a": result}, STYLES)
    line, mean, uniform = drawn(chart).lines
    assert line.get_xydata().tolist() == [[1, 0.25], [2, 0.25]] and chart.about == "a: 50% on the patch itself"
    assert mean.get_xdata()[0] == 1.5 and uniform.get_xdata()[0] == 2.0


def test_ranks_are_written_where_their_blocks_lie() -> None:
    ranks = np.array([[64.0, 2.54], [math.nan, 0.0]])
    ax = drawn(matrix_with_ranks("a", np.eye(8, dtype=np.uint8), 0, ranks, 4))
    assert {(*text.get_position(), text.get_text()) for text in ax.texts} == {
        (2, 2, "64"),
        (6, 2, "2.5"),
        (6, 6, "0.0"),
    }
    assert (
        "Mean effective rank of off-diagonal blocks 2.5, of 4 at most"
        in matrix_with_ranks("a", np.eye(8, dtype=np.uint8), 0, ranks, 4).about
    )


def test_families_keep_their_colour_seeds_share_it_and_variants_have_other_dashes() -> None:
    labels = {"vit-s0": "attention", "vit-s1": "attention", "vit-large-s0": "attention", "vim": "mamba2", "x": "other"}
    styles = line_styles(labels)
    assert styles["vit-s0"] == styles["vit-s1"] == styles["vit"] and styles["vit"].hue == 0 and styles["vim"].hue == 1
    assert styles["vit-large"].hue == 0 and styles["vit-large"].dashes != styles["vit"].dashes
    assert len({styles[name].hue for name in ("vit", "vim", "x")}) == 3
    sizes = line_styles({"vit-tiny": "attention", "vit-small": "attention", "vim-tiny": "mamba2"})
    assert sizes["vit-tiny"].hue == sizes["vit-small"].hue == 0 and sizes["vim-tiny"].hue == 1
    assert sizes["vit-tiny"].marker != sizes["vit-small"].marker and list(sizes)[:2] == ["vit-tiny", "vit-small"]
    many = line_styles({str(index): "other" for index in range(12)})
    assert len({style.hue for style in many.values()}) == 7
    scans = line_styles({**{str(index): "mamba1" for index in range(10)}, "3-large": "mamba1"})
    assert len({(style.colour, style.dashes) for style in scans.values()}) == 11  # beyond seven, other dashes
    assert legend_key(styles["vit"]) != legend_key(styles["vim"])


def test_matplotlib_is_left_as_it_was() -> None:
    before = dict(mpl.rcParams)
    roc(ROC, STYLES).svg()
    legend_key(STYLES["a"])
    assert dict(mpl.rcParams) == before


@pytest.mark.parametrize("high", [8, 40, 60, 150, 900, 1e4, 1e8])
def test_a_logarithmic_axis_has_three_to_five_ticks(high: float) -> None:
    ax = Figure().add_subplot()
    ax.plot([1, high], [1, high])
    ax.set_ylim(1, high)
    log_axis(ax, "y")
    assert 3 <= len(ax.get_yticks()) <= 5


def test_pictures_have_a_cell_per_image_and_model() -> None:
    images = torch.randint(0, 255, (2, 3, 16, 16), dtype=torch.uint8)
    maps = {"a": torch.rand(2, 4, 4), "flat": torch.zeros(2, 4, 4)}
    masks = torch.zeros(2, 16, 16, dtype=torch.uint8)
    assert len(map_pictures(images, maps, masks).axes) == 2 * 4
    assert len(part_pictures(images[0], {"a": torch.rand(3, 4, 4), "b": torch.rand(2, 4, 4)}, "head").axes) == 2 * 4
    channels = part_pictures(images[0], {"a": torch.rand(3, 4, 4), "scan": torch.rand(768, 4, 4)}, "head")
    titles = [ax.get_title(loc="center") + ax.get_title(loc="left") for ax in channels.axes]
    assert len(titles) == 2 * (1 + 16 + 2) and {"head 1", "head 2", "head 48"} <= {*titles}  # all of "a"
    components = {"a": pca_of_each(torch.randn(2, 4, 4, 6).split(1))}
    assert len(pca_pictures(images, components).axes) == 2 * 3


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_figure_that_is_laid_out_and_drawn_once_is_the_one_that_matplotlib_draws_twice(
    suffix: str, tmp_path: Path
) -> None:
    images, maps = torch.arange(48, dtype=torch.uint8).view(1, 3, 4, 4), {"a rather long name": torch.rand(1, 2, 2)}
    save_figure(map_pictures(images, maps), tmp_path / f"once.{suffix}")
    with mpl.rc_context(STYLE):
        metadata = {"Date": None} if suffix == "svg" else None
        twice = map_pictures(images, maps)
        twice.savefig(tmp_path / f"twice.{suffix}", dpi=150, bbox_inches="tight", metadata=metadata)
    assert (tmp_path / f"once.{suffix}").read_bytes() == (tmp_path / f"twice.{suffix}").read_bytes()
