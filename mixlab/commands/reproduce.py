"""`mixlab reproduce`: every table and figure of both papers, with its data, commands, cost and published figures."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from mixlab.choices import Scale
from mixlab.commands.answer import Answer
from mixlab.commands.options import Device, Flat
from mixlab.commands.output import warn
from mixlab.console import console, put
from mixlab.errors import InputError
from mixlab.run import RunDirectory
from mixlab.run.lock import RunLock

if TYPE_CHECKING:
    from mixlab.studies.reproduce.items import Item
    from mixlab.studies.reproduce.run import ItemPlan


def reproduce(
    items: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="ITEM ...")] = (),
    answer: Flat[Answer] = Answer(),
    *,
    root: Path | None = None,
    run: Path | None = None,
    weights: tuple[str, ...] = (),
    only: tuple[str, ...] = (),
    scale: Scale = "full",
    device: Device = "auto",
) -> dict[str, Any]:
    """List every table and figure of both papers; check the data of one, print its commands, or run them.

    Without ITEM, all items are listed. --root checks the data folders, as unpacked from their archives. --root with
    --run runs the commands and prints our results beside the paper's; finished commands are not repeated, and items
    that share a network train it once. --run without --root prints the results so
    far; items that need nothing are run without --root.

    Args:
        items: names from the list, or patterns such as 'dino-mamba-fig4*'.
        root: the folder that holds imagenet, ImageNetS919, ADEChallengeData2016, coco and the shifted sets.
        run: the directory for networks, results and the report.
        weights: NAME=FILE, released weights to use instead of training the network NAME (as in the commands).
        only: measure only these networks, such as dinovim_base.
        scale: full (as published) or tiny (small stand-ins, two steps per training, to check that everything runs).
    """
    from mixlab.studies.reproduce.document import describe
    from mixlab.studies.reproduce.listing import find_items
    from mixlab.studies.reproduce.run import plan_item, stored_scale

    answer.check()
    if not items:
        if root is not None or run is not None or weights or only:
            raise InputError("options need an item; `mixlab reproduce` lists the items")
        return answer.emit(_list(answer))
    files = dict(_name_and_file(text) for text in weights)
    chosen = find_items(items)
    if run is not None and root is None:
        if RunDirectory(run).exists():
            scale = stored_scale(run)
        elif any(item.networks for item in chosen):  # the others are counted, from the code alone
            raise FileNotFoundError(
                f"{run} is not a run directory: --run alone prints the results of an earlier run; add --root DATA to "
                "run the commands"
            )
    where = run or Path("RUN")
    plans = [
        plan_item(item, root=root, run=where, weights=files, scale=scale, device=device or "auto", only=only)
        for item in chosen
    ]
    if run is None:
        for plan in plans:
            _show(answer, plan, root)
        return answer.emit({"kind": "reproduce", "items": [describe(plan) for plan in plans]})
    return answer.emit(_run(answer, plans, run, root, scale))


def _run(answer: Answer, plans: Sequence[ItemPlan], run: Path, root: Path | None, scale: Scale) -> dict[str, Any]:
    from mixlab.report import write_report
    from mixlab.studies.reproduce.run import check_agreement, run_plan, write_comparison
    from mixlab.studies.workers import wait_for_workers, worker_pool

    if root is not None:
        plans = _runnable(plans)
    directory = RunDirectory.create(run)
    results: dict[str, dict[str, Any]] = {}
    with RunLock(directory.path):
        if root is not None:
            check_agreement(directory, root, scale)
            wait_for_workers([step.trains for plan in plans for step in plan.steps if step.trains is not None])
        with worker_pool(1) if root is not None else nullcontext() as pool:
            for plan in plans:
                if pool is not None:
                    for note in plan.notes:
                        warn(note)
                    run_plan(plan, pool, workers=1)
                results[plan.item.name] = write_comparison(plan)
                _print(answer, results[plan.item.name])
        page = write_report([run], run / "report.html", force=True)
    answer.line(f"open the report: {page}")
    return {"kind": "reproduce", "items": results, "report": str(page)}


def _runnable(plans: Sequence[ItemPlan]) -> list[ItemPlan]:
    """Those whose data and networks are there; of several, the others are named and left out."""
    from mixlab.studies.reproduce.run import check_plan

    kept = []
    for plan in plans:
        try:
            check_plan(plan)
        except InputError as error:
            if len(plans) == 1:
                raise
            warn(f"{plan.item.name} is left out: {error}")
        else:
            kept.append(plan)
    if not kept:
        raise InputError("none of these items can be run; the lines above say what each lacks")
    return kept


def _list(answer: Answer) -> dict[str, Any]:
    from mixlab.studies.reproduce.document import describe
    from mixlab.studies.reproduce.listing import ITEMS, ON_PAPER
    from mixlab.studies.reproduce.run import plan_item

    for number, paper in enumerate(dict.fromkeys(item.paper for item in ITEMS.values())):
        if number:
            answer.line("")
        rows = [(item.name, item.title, _summary(item)) for item in ITEMS.values() if item.paper == paper]
        answer.table(f"{paper}: GPU-hours on one H200, estimated", ("item", "what it shows", "what it needs"), rows)
    console.print(
        "`mixlab reproduce ITEM` prints the commands and the published numbers of an item, --root DATA checks the "
        "folders, --run RUN runs it. Items in one --run train a shared network once."
    )
    listed = [describe(plan_item(item, root=None, run=ON_PAPER.run)) for item in ITEMS.values()]
    return {"kind": "reproduce", "items": listed}


def _summary(item: Item) -> str:
    """Data, GPU-hours and what is missing, in one line."""
    from mixlab.studies.reproduce.data_sets import DATA_SETS
    from mixlab.studies.reproduce.listing import ON_PAPER, hours_of, missing_networks

    if item.is_drawing:
        return "a drawing: nothing to measure"
    data = ", ".join(DATA_SETS[name].title for name in item.needs(ON_PAPER))
    if not data:
        return "needs nothing: counted"
    hours = _hours(*hours_of(item.plan(ON_PAPER)))
    total, lacking = len(item.networks), len(missing_networks(item))
    given = f"; {lacking} of {total} networks need --weights" if lacking else ""
    return f"{data}{f'; GPU-hours: {hours}' if hours else ''}{given}"


def _hours(training: float, then: float) -> str:
    from mixlab.studies.reproduce.listing import show_hours

    parts = ((training, "of training"), (then, "after it"))
    return ", ".join(f"{show_hours(number)} {when}" for number, when in parts if number)


def _show(answer: Answer, plan: ItemPlan, root: Path | None) -> None:
    from mixlab.studies.reproduce.data_sets import DATA_SETS
    from mixlab.studies.reproduce.listing import hours_of
    from mixlab.studies.reproduce.run import command_lines

    item = plan.item
    console.print(f"{item.name}: {item.paper}, {item.place}", style="bold")
    console.print(item.title)
    if item.note:
        console.print(item.note)
    if hours := _hours(*hours_of(plan.planned)):
        console.print(f"GPU-hours on one H200, about: {hours}")
    for note in plan.notes:
        warn(note)
    needed = item.needs(plan.setting)
    for name in needed if root is None else ():
        console.print(f"needs {DATA_SETS[name].title} in DATA/{DATA_SETS[name].place}. {DATA_SETS[name].unpack}")
    for line in command_lines(plan):
        put(line, to_stderr=answer.json == "-")
    figures = [(cell.row, cell.column, cell.said if cell.paper is None else cell.paper) for cell in item.cells]
    if figures:
        answer.table(f"Published in {item.place}", ("row", "column", "paper"), figures)
    if item.settings:
        _print_settings(answer, item)
    if root is not None:  # last: it is what was asked, and tables are long
        _say_data(plan, [DATA_SETS[name].title for name in needed])


def _say_data(plan: ItemPlan, needed: Sequence[str]) -> None:
    for number, said in enumerate(plan.problems, start=1):
        console.print(f"{number}. {said}", style="red")
    if plan.problems or not needed:
        return
    if plan.doubts:
        console.print(f"the data can be used, with the warnings above: {', '.join(needed)}", style="yellow")
    else:
        console.print(f"the data is there: {', '.join(needed)}", style="green")


def _print(answer: Answer, result: dict[str, Any]) -> None:
    from mixlab.report.reproduced import beside
    from mixlab.studies.reproduce.listing import ITEMS

    known = [row for row in result["rows"] if row["ours"] is not None]
    rows = [(row["row"], row["column"], *beside(row).values(), row["n"]) for row in known]
    title = f"{result['item']}: {result['title']} ({result['paper']}, {result['place']})"
    if rows:
        answer.table(title, ("row", "column", "ours", "paper", "difference", "n"), rows)
        if result["scale"] == "tiny":
            warn("tiny scale: small stand-ins, trained for two steps; these numbers say nothing about the paper")
    lacking = sum(row["ours"] is None for row in result["rows"])
    if lacking:
        answer.line(f"{result['item']}: {lacking} of {len(result['rows'])} numbers are not measured yet")
    if result["settings"]:
        _print_settings(answer, ITEMS[result["item"]])


def _print_settings(answer: Answer, item: Item) -> None:
    assert item.settings is not None
    rows = [
        (name, str(ours), str(paper), "same" if ours == paper else "DIFFERENT") for name, ours, paper in item.settings()
    ]
    answer.table(f"{item.name}: {item.title}", ("setting", "ours", "paper", "agrees"), rows)


def _name_and_file(text: str) -> tuple[str, str]:
    name, equals, file = text.partition("=")
    if not (name and equals and file):
        raise InputError(f"--weights {text!r} must be NAME=FILE, such as vim_small=checkpoint.pth")
    return name, file
