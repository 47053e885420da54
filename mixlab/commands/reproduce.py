"""`mixlab reproduce`: every table and figure of both papers, with its data, commands, cost and published figures."""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.text import Text

from mixlab.commands.options import Device, Json
from mixlab.commands.output import check_json, console, emit, table, warn
from mixlab.errors import InputError
from mixlab.report import write_report
from mixlab.report.reproduced import beside
from mixlab.run import RunDirectory
from mixlab.run.directory import RunLock
from mixlab.studies.reproduce.document import describe
from mixlab.studies.reproduce.folders import DATA_SETS
from mixlab.studies.reproduce.items import Item
from mixlab.studies.reproduce.listing import ITEMS, ON_PAPER, find_items, hours_of, missing_networks, show_hours
from mixlab.studies.reproduce.networks import Scale
from mixlab.studies.reproduce.run import (
    ItemPlan,
    check_agreement,
    check_plan,
    command_lines,
    plan_item,
    run_plan,
    stored_scale,
    write_comparison,
)
from mixlab.studies.steps import wait_for_workers, worker_pool


def reproduce(
    items: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="ITEM ...")] = (),
    *,
    root: Path | None = None,
    run: Path | None = None,
    weights: tuple[str, ...] = (),
    only: tuple[str, ...] = (),
    scale: Scale = "full",
    device: Device = "auto",
    json: Json = None,
) -> dict[str, Any]:
    """List every table and figure of both papers; check the data of one, print its commands, or run them.

    Without an item, all are listed. With --root the folders are checked as they unpack from their archives. With --run
    the commands are run, finished ones are not repeated, and ours is printed beside the paper's; items that share a
    network share its training in one run. Without --root, --run prints what the run has so far.

    Args:
        items: names from the list, or patterns such as 'dino-mamba-fig4*'.
        root: the folder that holds imagenet, ImageNetS919, ADEChallengeData2016, coco and the shifted sets.
        run: the directory for networks, results and the report.
        weights: NAME=FILE, released weights of a network instead of its training; NAME as in the commands.
        only: networks by name, such as dinovim_base: these rows alone.
        scale: full, as published; tiny: a stand-in of two steps for every training, to check that all runs.
    """
    check_json(json)
    if not items:
        if root is not None or run is not None:
            raise InputError("--root and --run go with an item; `mixlab reproduce` lists them")
        return emit(_list(), json)
    files = dict(_name_and_file(text) for text in weights)
    chosen = find_items(items)
    if run is not None and root is None:
        scale = stored_scale(run)
    where = run or Path("RUN")
    plans = [
        plan_item(item, root=root, run=where, weights=files, scale=scale, device=device or "auto", only=only)
        for item in chosen
    ]
    if run is None:
        for plan in plans:
            _show(plan, root)
        return emit({"kind": "reproduce", "items": [describe(plan) for plan in plans]}, json)
    return emit(_run(plans, run, root, scale), json)


def _run(plans: Sequence[ItemPlan], run: Path, root: Path | None, scale: Scale) -> dict[str, Any]:
    if root is None:
        RunDirectory.open(run)
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
                _print(results[plan.item.name])
        page = write_report([run], run / "report.html")
    console.print(f"the report: open {page}", soft_wrap=True)
    return {"kind": "reproduce", "items": results, "report": str(page)}


def _runnable(plans: Sequence[ItemPlan]) -> list[ItemPlan]:
    """Those whose data and networks are there; of several, the others are named and left out."""
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
        raise InputError("none of these items can be run; each says above what it lacks")
    return kept


def _list() -> dict[str, Any]:
    listed = []
    for name in dict.fromkeys(item.paper for item in ITEMS.values()):
        console.rule(f"{name}: GPU-hours on one H200, estimated")
        for item in (item for item in ITEMS.values() if item.paper == name):
            console.print(Text.assemble((f"{item.name:<20}", "bold"), f" {item.title}"), soft_wrap=True)
            console.print(Text(f"{'':<20} {_summary(item)}", style="dim"), soft_wrap=True)
            listed.append(describe(plan_item(item, root=None, run=ON_PAPER.run)))
    console.print(
        "\nItems in one --run train a network once. `mixlab reproduce ITEM` prints its commands and published figures, "
        "--root DATA checks the folders, --run RUN runs it.",
        soft_wrap=True,
    )
    return {"kind": "reproduce", "items": listed}


def _summary(item: Item) -> str:
    """Data, GPU-hours and what is missing, in one line."""
    if item.is_drawing:
        return "a drawing: nothing to measure"
    data = ", ".join(DATA_SETS[name].title for name in item.needs(ON_PAPER))
    if not data:
        return "needs nothing: counted"
    training, then = hours_of(item.plan(ON_PAPER))
    total, lacking = len(item.networks), len(missing_networks(item))
    have = f"; {total - lacking} of {total} networks" if lacking else ""
    return f"{data}; GPU-hours: {show_hours(training)} of training, {show_hours(then)} after it{have}"


def _show(plan: ItemPlan, root: Path | None) -> None:
    item = plan.item
    console.rule(f"{item.name}: {item.paper}, {item.place}")
    console.print(item.title)
    if item.note:
        console.print(item.note, soft_wrap=True)
    training, then = hours_of(plan.planned)
    if plan.planned:
        console.print(f"about {show_hours(training)} GPU-hours of training, {show_hours(then)} after it (one H200)")
    for note in plan.notes:
        warn(note)
    needed = item.needs(plan.setting)
    if root is None:
        for name in needed:
            console.print(
                f"needs {DATA_SETS[name].title} in DATA/{DATA_SETS[name].place}. {DATA_SETS[name].unpack}",
                soft_wrap=True,
            )
    elif plan.problems:
        for number, said in enumerate(plan.problems, start=1):
            console.print(f"{number}. {said}", style="red", soft_wrap=True)
    elif needed:
        console.print(f"the data is there: {', '.join(DATA_SETS[name].title for name in needed)}", style="green")
    for line in command_lines(plan):
        console.print(line, soft_wrap=True, highlight=False)
    figures = [(cell.row, cell.column, cell.said if cell.paper is None else cell.paper) for cell in item.cells]
    if figures:
        table(f"Published in {item.place}", ("row", "figure", "paper"), figures)
    if item.settings:
        _print_settings(item)


def _print(result: dict[str, Any]) -> None:
    known = [row for row in result["rows"] if row["ours"] is not None]
    rows = [(row["row"], row["column"], *beside(row).values(), row["n"]) for row in known]
    title = f"{result['item']}: {result['title']} ({result['paper']}, {result['place']})"
    if rows:
        table(title, ("row", "figure", "ours", "paper", "difference", "n"), rows)
        if result["scale"] == "tiny":
            warn("tiny scale: two steps of small stand-ins; these figures say nothing about the paper's")
    lacking = sum(row["ours"] is None for row in result["rows"])
    if lacking:
        console.print(f"{result['item']}: {lacking} of {len(result['rows'])} figures are not measured yet")
    if result["settings"]:
        _print_settings(ITEMS[result["item"]])


def _print_settings(item: Item) -> None:
    assert item.settings is not None
    rows = [
        (name, str(ours), str(paper), "same" if ours == paper else "DIFFERENT") for name, ours, paper in item.settings()
    ]
    table(f"{item.name}: {item.title}", ("setting", "ours", "paper", ""), rows)


def _name_and_file(text: str) -> tuple[str, str]:
    name, equals, file = text.partition("=")
    if not (name and equals and file):
        raise InputError(f"--weights {text!r} must be NAME=FILE, such as vim_small=checkpoint.pth")
    return name, file
