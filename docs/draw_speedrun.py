"""Draw the figure of speedrun.md from its records, the best row of each recipe: as it is, in fewer steps, by AdamW:
`python docs/draw_speedrun.py`. Seeds of a row are one mark, at their mean, with a line from the worst to the best.
Rows that shared the GPU are left out: they have no time of their own.
"""

from collections import defaultdict
from pathlib import Path
from statistics import fmean

from matplotlib.axes import Axes

from mixlab.analysis.figures import save_charts
from mixlab.analysis.figures.chart import Chart, LineStyle, line_styles
from mixlab.studies.speedrun.page import Record, read_records
from mixlab.studies.speedrun.record import score_of

HERE = Path(__file__).parent
PEER = 83.8  # stable-pretraining's DINO: ViT-S/16 at 224 px, 200 epochs
NAMES = {
    "vit": "ViT",
    "linearvit": "LinearViT",
    "dinovim": "DinoVim",
    "dinomambareg": "Mamba-Reg",
    "gatedconv": "gated CNN",
}
# Where names go, in points from their marks, so that none covers another.
OFFSETS = {
    ("vit_small160", "recipe"): (-17, 13),
    ("vit_small160", "short"): (-16, -18),
    ("linearvit_small160", "recipe"): (9, -12),
    ("gatedconv_small160", "recipe"): (-25, 10),
    ("dinovim_small160", "recipe"): (-25, -18),
    ("dinomambareg_small160", "recipe"): (-43, -23),
    ("vit_tiny160", "recipe"): (-46, -1),
    ("linearvit_tiny160", "recipe"): (-84, -9),
    ("gatedconv_tiny160", "recipe"): (-50, 8),
    ("dinovim_tiny160", "recipe"): (-20, 7),
    ("dinomambareg_tiny160", "recipe"): (8, -5),
    ("vit_tiny160", "short"): (-12, 8),
    ("vit_tiny160", "adamw"): (-30, -4),
    ("linearvit_tiny160", "short"): (-24, -16),
    ("gatedconv_tiny160", "short"): (8, -4),
    ("gatedconv_tiny160", "adamw"): (8, -9),
    ("dinovim_tiny160", "short"): (-50, -14),
}
Row = list[Record]  # the seeds of one recipe by one commit


def scores(row: Row) -> list[float]:
    return [100 * score_of(record, "knn_top1").value for record in row]


def minutes(row: Row) -> float:
    return fmean(record["seconds"]["training"] for record in row) / 60


def kind(record: Record) -> str:
    changed = record["changed"]
    return "adamw" if changed.get("optim.name") == "adamw" else "short" if "steps" in changed else "recipe"


def best_rows(records: list[Record]) -> dict[tuple[str, str], Row]:
    """By recipe and kind, of those that had the GPU alone."""
    rows: dict[tuple[str, ...], Row] = defaultdict(list)
    for record in records:
        if record["method"] == "dino" and not record["held_out"] and not record.get("shares_gpu"):
            rows[record["recipe"], kind(record), record["provenance"]["commit"], str(record["changed"])].append(record)
    return {key[:2]: row for key, row in sorted(rows.items(), key=lambda pair: fmean(scores(pair[1])))}


def name_of(recipe: str) -> str:
    _, family, size = recipe.split("_")
    return f"{NAMES[family]}-{'S' if size == 'small160' else 'T'}"


def mark(ax: Axes, x: float, row: Row, recipe: str, how: str, style: LineStyle) -> None:
    ax.plot([x, x], [min(scores(row)), max(scores(row))], color=style.colour)
    filled = {"markerfacecolor": "white"} if how == "adamw" else {"fillstyle": "left"} if how == "short" else {}
    size = 10 if recipe.endswith("small160") else 6.5
    ax.plot(x, fmean(scores(row)), style.marker, color=style.colour, markersize=size, **filled)


def draw(ax: Axes, best: dict[tuple[str, str], Row]) -> None:
    families = {recipe.split("_")[1]: score_of(row[0], "knn_top1")["family"] for (recipe, _), row in best.items()}
    styles = {recipe: line_styles(families)[recipe.split("_")[1]] for recipe, _ in best}
    for (recipe, how), row in best.items():
        mark(ax, minutes(row), row, recipe, how, styles[recipe])
        offset = OFFSETS.get((recipe.removeprefix("dino_"), how), (8, -4))
        look = {"color": styles[recipe].colour, "fontsize": "medium" if how == "recipe" else "small"}
        place = (minutes(row), fmean(scores(row)))
        ax.annotate(name_of(recipe), place, xytext=offset, textcoords="offset points", **look)
    ax.axhline(PEER, linestyle=(0, (2, 3)), color="grey", linewidth=1)
    about = "stable-pretraining, 224 px"
    ax.annotate(about, (4.45, PEER), xytext=(0, -11), textcoords="offset points", color="grey", fontsize="small")
    ax.set(xlim=(0.3, 9.9), ylim=(66, 87), xlabel="minutes of training on one H200")
    ax.set_ylabel("kNN-20 on validation images, %")


if __name__ == "__main__":
    rows = best_rows(read_records(HERE))
    about = "Filled: the recipe. Half: smaller views, fewer steps. Open: AdamW. Small marks: 5.3 to 5.6 M parameters."
    chart = Chart("DINO on 9,469 photographs", about, lambda ax: draw(ax, rows), 8.4, 4.6, has_legend=False)
    save_charts([chart], HERE / "gallery" / "speedrun.png")
