"""Draw the figure of speedrun.md from its records, the best row of each recipe: as it is, in fewer steps, by AdamW:
`python docs/draw_speedrun.py`. Seeds of a row are one mark, at their mean, with a line from the worst to the best.
"""

from collections import defaultdict
from pathlib import Path
from statistics import fmean

from matplotlib.axes import Axes

from mixlab.analysis.figures import save_charts
from mixlab.analysis.figures.chart import Chart, line_styles
from mixlab.studies.speedrun.page import Record, read_records
from mixlab.studies.speedrun.record import score_of

HERE = Path(__file__).parent
PEER = 83.8  # stable-pretraining's DINO: ViT-S/16 at 224 px, 200 epochs
AT_ONCE = 3  # runs that shared the GPU, each for a third of its seconds
NAMES = {
    "vit": "ViT",
    "linearvit": "LinearViT",
    "dinovim": "DinoVim",
    "dinomambareg": "Mamba-Reg",
    "gatedconv": "gated CNN",
}
# Where names go, in points from their marks, so that none covers another.
OFFSETS = {
    ("vit", "tiny"): (-38, -4),
    ("linearvit", "tiny"): (4, -18),
    ("linearvit", "small"): (8, -8),
    ("gatedconv", "tiny"): (-30, 9),
    ("dinovim", "tiny"): (8, -6),
    ("dinovim", "small"): (8, -15),
    ("dinomambareg", "tiny"): (9, -8),
    ("dinomambareg", "small"): (-20, -21),
}
Row = list[Record]  # the seeds of one recipe by one commit


def scores(row: Row) -> list[float]:
    return [100 * score_of(record, "knn_top1").value for record in row]


def place(row: Row) -> tuple[float, float]:
    seconds = (record["seconds"]["training"] / (AT_ONCE if record.get("shares_gpu") else 1) for record in row)
    return fmean(seconds) / 60, fmean(scores(row))


def kind(record: Record) -> str:
    changed = record["changed"]
    return "adamw" if changed.get("optim.name") == "adamw" else "short" if "steps" in changed else "recipe"


def best_rows(records: list[Record]) -> dict[tuple[str, str], Row]:
    """By recipe and kind."""
    rows: dict[tuple[str, ...], Row] = defaultdict(list)
    for record in records:
        if record["method"] == "dino" and not record["held_out"]:
            rows[record["recipe"], kind(record), record["provenance"]["commit"], str(record["changed"])].append(record)
    return {key[:2]: row for key, row in sorted(rows.items(), key=lambda pair: fmean(scores(pair[1])))}


def draw(ax: Axes, best: dict[tuple[str, str], Row]) -> None:
    families = {recipe.split("_")[1]: score_of(row[0], "knn_top1")["family"] for (recipe, _), row in best.items()}
    styles = line_styles(families)
    for (recipe, how), row in best.items():
        _, family, size = recipe.split("_")
        style, here, is_small = styles[family], place(row), size == "small160"
        ax.plot([here[0]] * 2, [min(scores(row)), max(scores(row))], color=style.colour)
        filled = {"markerfacecolor": "white"} if how == "adamw" else {"fillstyle": "left"} if how == "short" else {}
        ax.plot(*here, style.marker, color=style.colour, markersize=10 if is_small else 6.5, **filled)
        if how == "short":
            continue  # its mark says which network it is
        later = best.get((recipe, "recipe"))
        if how == "adamw" and later is not None and later[0]["images_seen"] == row[0]["images_seen"]:
            arrow = {"arrowstyle": "->", "color": style.colour, "alpha": 0.6, "shrinkA": 6, "shrinkB": 6}
            ax.annotate("", place(later), here, arrowprops=arrow)
            continue
        offset = OFFSETS.get((family, "small" if is_small else "tiny"), (8, 3)) if how == "recipe" else (8, -15)
        name = f"{NAMES[family]}-{'S' if is_small else 'T'}"
        ax.annotate(name, here, xytext=offset, textcoords="offset points", color=style.colour)
    ax.axhline(PEER, linestyle=(0, (2, 3)), color="grey", linewidth=1)
    about = "stable-pretraining"
    ax.annotate(about, (4.65, PEER), xytext=(0, -13), textcoords="offset points", color="grey", fontsize="small")
    ax.set(xlim=(0.6, 9.2), ylim=(66, 86.5))
    ax.set(xlabel="minutes of training on one H200", ylabel="kNN-20 on validation images, %")


if __name__ == "__main__":
    rows = best_rows(read_records(HERE))
    about = "Filled: the recipe. Half: smaller views, fewer steps. Open: AdamW, with an arrow to the recipe."
    chart = Chart("DINO on 9,469 photographs", about, lambda ax: draw(ax, rows), width=7, height=4.2, has_legend=False)
    save_charts([chart], HERE / "gallery" / "speedrun.png")
