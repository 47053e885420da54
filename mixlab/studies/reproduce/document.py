"""docs/reproduce.md, made from the table of items; and one item as JSON and as lines."""

import shlex
from collections.abc import Iterator
from typing import Any

from mixlab.studies.reproduce.data_sets import DATA_SETS
from mixlab.studies.reproduce.hours import MEASURED
from mixlab.studies.reproduce.items import Item, PaperFigure
from mixlab.studies.reproduce.listing import ITEMS, ON_PAPER, hours_of, show_hours
from mixlab.studies.reproduce.networks import training_step
from mixlab.studies.reproduce.run import ItemPlan, command_lines, plan_item
from mixlab.studies.steps import Step

ABOUT = """# Both papers, item by item

Every table and figure of *RNN as Linear Transformer* (Dino-Mamba) and of *MambaOut*: what it needs, its commands, what
it costs, and the published figures. This page is written by `python -m mixlab.studies.reproduce.document`, from the
table that `mixlab reproduce` reads.

```
mixlab reproduce
mixlab reproduce dino-mamba-table2
mixlab reproduce dino-mamba-table2 --root DATA
mixlab reproduce dino-mamba-table2 --root DATA --run RUN
mixlab reproduce dino-mamba-table2 --root DATA --run RUN --only dinovim_base
mixlab reproduce dino-mamba-fig4a --root DATA --run RUN --weights vim_base=FILE mambareg_base=FILE
mixlab reproduce 'dino-mamba-*' --run RUN
mixlab reproduce dino-mamba-table2 --root DATA --run TRIAL --scale tiny
```

These lines, in order: list all items; show the data, commands and published figures of one; check your folders and say
what is missing and where it should be; run the item (the same command resumes it); run one row of it; use released
weights instead of training; show the results so far; and test everything on your folders, with two steps of a small
network for every training.

The result is a table of ours, the paper's and the difference, with 95 % intervals over images, on the terminal, in
`RUN/results/` and in `RUN/report.html`. An interval over images does not show what another seed would give: our run and
the published one are one sample each. Items in one run share training: `RUN/dinovim_base-dino` is trained once for
Tables 1 to 4 and most figures. A finished training is not repeated, even if you ran it yourself. For several GPUs, put
`torchrun --nproc-per-node 8 --no-python --` before the printed `pretrain` or `train` command, leave out `accumulate`
(which fits the batch into one GPU's memory), and keep the folder; then run the item.

Released weights replace training: `--weights vim_small=FILE`, in any format that `mixlab export` reads; classifiers in
them are scored as they are. Networks that the papers quote were trained by their own recipes, which mixlab lacks.
They come from released weights; those without weights are named and left out. In the commands below, FILE stands for
such a file. You can train a visual Mamba by MambaOut's recipe instead, which reproduces no published figure: run
`mixlab train supervised_vim_small --data DATA/imagenet --run RUN/vim_small-supervised` before the item.
"""


def describe(plan: ItemPlan) -> dict[str, Any]:
    """One item as JSON."""
    training, then = hours_of(plan.planned)
    return {
        "item": plan.item.name,
        "paper": plan.item.paper,
        "place": plan.item.place,
        "title": plan.item.title,
        "note": plan.item.note,
        "drawing": plan.item.is_drawing,
        "data": plan.item.needs(plan.setting),
        "gpu_hours": {"training": round(training, 2), "then": round(then, 2)},
        "problems": list(plan.problems),
        "notes": list(plan.notes),
        "commands": command_lines(plan),
        "hours": [
            {"step": one.step.name, "hours": round(one.hours.hours, 2), "basis": one.hours.basis}
            for one in plan.planned
            if one.hours is not None
        ],
        "published": [{"row": c.row, "column": c.column, "paper": c.paper, "said": c.said} for c in plan.item.cells],
    }


def page() -> str:
    """The whole of docs/reproduce.md."""
    parts = [ABOUT, *_data(), *_costs(), *_networks()]
    for paper in dict.fromkeys(item.paper for item in ITEMS.values()):
        parts.append(f"## {paper}\n")
        parts += [text for item in ITEMS.values() if item.paper == paper for text in _item(item)]
    return "\n".join(parts).rstrip() + "\n"


def _data() -> Iterator[str]:
    yield "## The data\n"
    yield "Folders as they unpack from their archives, below one root. Other usual names are understood, too.\n"
    yield "| data | place | how it gets there |\n|---|---|---|"
    yield "\n".join(f"| {data.title} | `{data.place}` | {data.unpack} |" for data in DATA_SETS.values())
    yield (
        "\nValidation images that lie in one folder are sorted by links in the run, if Kaggle's\n"
        "`LOC_val_solution.csv` or the development kit is there; masks of ImageNet-S are linked to ImageNet-1k's\n"
        "images. The data is never changed.\n"
    )


def _costs() -> Iterator[str]:
    yield "## How GPU-hours are estimated\n"
    yield (
        "images x epochs / (images per second) / 3600, on one NVIDIA H200 in bf16. Speeds are those of\n"
        "EXPERIMENTS.md; a model that was not measured has the speed of the measured one of its kind, scaled by\n"
        "multiply-accumulates, which is too fast for small models and a guess for other kinds.\n"
    )
    yield "| work | model | images/s | measured in EXPERIMENTS.md |\n|---|---|---|---|"
    yield "\n".join(
        f"| {kind} | `{model}` | {speed.images_per_s:,.0f} | {speed.source} |"
        for (kind, model), speed in MEASURED.items()
    )
    yield ""


def _networks() -> Iterator[str]:
    """Each training once: most items share some."""
    networks = {network.key: network for item in ITEMS.values() for network in item.available(ON_PAPER)}
    yield "## The networks\n"
    yield "Each is trained once in a run, by its published recipe, and named by the items below.\n"
    yield "| run | as the papers call it | GPU-hours |\n|---|---|---|"
    trained = [(network, *training_step(ON_PAPER, network)) for network in networks.values()]
    yield "\n".join(
        f"| `{network.key}` | {network.title} | {'' if hours is None else show_hours(hours.hours)} |"
        for network, _, hours in trained
    )
    yield "\n```\n" + "\n".join(_typed(step) for _, step, _ in trained) + "\n```\n"


def _item(item: Item) -> Iterator[str]:
    yield f"### {item.place}: {item.title}\n"
    yield f"`{item.name}`" + (f". {item.note}" if item.note else "") + "\n"
    if item.is_drawing:
        return
    plan = plan_item(item, root=None, run=ON_PAPER.run)
    needed = [f"{DATA_SETS[name].title} (`{DATA_SETS[name].place}`)" for name in item.needs(ON_PAPER)]
    training, then = hours_of(plan.planned)
    cost = f" GPU-hours: {show_hours(training)} of training, {show_hours(then)} after it." if plan.planned else ""
    yield f"Needs: {', '.join(needed) or 'no data'}.{cost}\n"
    lacking = [network for network in item.networks if ON_PAPER.lacks(network) is not None]
    released = [f"`{network.model}`" for network in lacking if network.exists]
    absent = [f"{network.title} (`{network.model}`)" for network in lacking if not network.exists]
    if released:
        yield f"From released weights, `--weights NAME=FILE`: {', '.join(released)}.\n"
    if absent:
        yield f"No backbone yet: {', '.join(absent)}.\n"
    own = [one.step for one in plan.planned if not _is_training(one.step)]
    names = [f"`{one.step.name.removeprefix('train ')}`" for one in plan.planned if _is_training(one.step)]
    if names:
        yield f"Networks: {', '.join(names)}.\n"
    if own:
        yield "```\n" + "\n".join(map(_typed, own)) + "\n```\n"
    if item.cells:
        yield _figures(item)
    if item.settings:
        yield "| setting | paper |\n|---|---|"
        yield "\n".join(f"| {name} | {paper} |" for name, _, paper in item.settings()) + "\n"


def _is_training(step: Step) -> bool:
    """Trainings are shown once, by themselves; released weights with the item that reads them."""
    return step.trains is not None and step.name.startswith("train ")


def _typed(step: Step) -> str:
    return shlex.join(("mixlab", *step.arguments, *step.here))


def _figures(item: Item) -> str:
    """Rows and columns of what is published; a column holds one kind of figure."""
    rows, columns = ([*dict.fromkeys(getattr(cell, name) for cell in item.cells)] for name in ("row", "column"))
    known = {(cell.row, cell.column): _published(cell) for cell in item.cells}
    lines = [f"| published | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    lines += [f"| {row} | {' | '.join(known.get((row, column), '') for column in columns)} |" for row in rows]
    return "\n".join(lines) + "\n"


def _published(cell: PaperFigure) -> str:
    return cell.said if cell.paper is None else f"{cell.paper:g}"


if __name__ == "__main__":
    from pathlib import Path

    Path("docs/reproduce.md").write_text(page(), encoding="utf-8")
