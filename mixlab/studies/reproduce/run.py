"""Checks the folders of an item, runs its commands, and holds its figures beside the paper's."""

import shlex
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mixlab.backbones.weights.reading import split_part
from mixlab.backbones.zoo import ZOO
from mixlab.choices import Scale
from mixlab.errors import InputError, did_you_mean, few
from mixlab.run import RunDirectory, provenance
from mixlab.studies.reproduce.data_sets import DATA_SETS, check_root
from mixlab.studies.reproduce.folders import Found
from mixlab.studies.reproduce.items import Item, difference
from mixlab.studies.reproduce.listing import ITEMS
from mixlab.studies.reproduce.measures import Planned
from mixlab.studies.reproduce.networks import ItemSetting
from mixlab.studies.steps import Step, keep_settings, run_steps

COMMAND = "reproduce"
GAP = ("difference", "difference_low", "difference_high")


@dataclass(frozen=True)
class ItemPlan:
    """An item with its folders found: what stops it, what to know, and its steps."""

    item: Item
    setting: ItemSetting
    problems: tuple[str, ...]
    lacking: tuple[str, ...]  # networks that are left out, and why
    doubts: tuple[str, ...]  # what is odd about the data, which can be used
    arranged: tuple[Step, ...]
    planned: tuple[Planned, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        return (*self.lacking, *self.doubts)

    @property
    def steps(self) -> list[Step]:
        """Arranged folders first; everything waits for them."""
        first = tuple(step.name for step in self.arranged)
        return [*self.arranged, *(replace(one.step, needs=(*one.step.needs, *first)) for one in self.planned)]


def plan_item(
    item: Item,
    *,
    root: Path | None,
    run: Path,
    weights: Mapping[str, str] | None = None,
    scale: Scale = "full",
    device: str = "auto",
    only: Sequence[str] = (),
) -> ItemPlan:
    """Find the folders below the root and write down the commands; without a root, with names in place of folders."""
    _check_only(item, only)
    given = _checked(weights or {})
    bare = ItemSetting(run=run, data={}, weights=given, scale=scale, device=device)
    lacking = {network: said for network in item.wanted(only) if (said := bare.lacks(network)) is not None}
    doubts: list[str] = []
    if root is None:  # to show commands: with a place for the released weights that are not given
        named = {network.key: "FILE" for network in lacking if network.exists}
        bare = replace(bare, weights={**given, **named})
    places = {name: f"DATA/{data.place}" for name, data in DATA_SETS.items()}
    problems: list[str] = []
    arranged: list[Step] = []
    if root is not None:
        check_root(root)
        for name in item.needs(bare, only):
            found = DATA_SETS[name].find(root)
            problems += found.problems
            doubts += found.notes
            if found.arrange:
                arranged.append(_arrange(name, found, run))
                places |= dict.fromkeys((name, name.removesuffix("-val")), str(_arranged_place(name, run)))
            elif found.place is not None:
                places |= dict.fromkeys((name, name.removesuffix("-val")), str(found.place))
    setting = replace(bare, data=places)
    planned = tuple(item.plan(setting, only))
    return ItemPlan(item, setting, tuple(problems), tuple(lacking.values()), tuple(doubts), tuple(arranged), planned)


def check_plan(plan: ItemPlan) -> None:
    """Refuse a plan whose folders are missing, or that has no network, before anything is run."""
    if plan.problems:
        raise InputError(" ".join(f"{number}. {said}" for number, said in enumerate(plan.problems, start=1)))
    if plan.item.networks and not plan.planned:
        raise InputError(f"{plan.item.name} has no network that can be had here. {'. '.join(plan.notes)}")


def run_plan(plan: ItemPlan, pool: ProcessPoolExecutor, *, workers: int) -> None:
    """All unfinished steps."""
    if plan.planned:
        plan.setting.run.mkdir(parents=True, exist_ok=True)
        run_steps(plan.steps, plan.setting.run, pool, workers=workers, command=f"{COMMAND} {plan.item.name}")


def compare(item: Item, setting: ItemSetting) -> dict[str, Any]:
    """Ours, the paper's and the difference, in the paper's units, of all that was measured so far."""
    rows: list[dict[str, Any]] = []
    for cell in item.cells:
        ours = cell.read(setting)
        gap = None if ours is None else difference(ours, cell)
        in_unit = [None if value is None else cell.unit * value for value in (ours[:3] if ours else (None,) * 3)]
        rows.append(
            {
                "row": cell.row,
                "column": cell.column,
                **dict(zip(("ours", "low", "high"), in_unit, strict=True)),
                "n": ours.n if ours else None,
                "paper": cell.paper,
                "said": cell.said,
                **dict(zip(GAP, gap[:3] if gap else (None,) * 3, strict=True)),
                "digits": cell.digits,
            }
        )  # fmt: skip
    settings = [{"name": name, "ours": str(ours), "paper": str(theirs)} for name, ours, theirs in
                (item.settings() if item.settings else ())]  # fmt: skip
    return {
        "kind": "reproduce",
        "item": item.name,
        "paper": item.paper,
        "place": item.place,
        "title": item.title,
        "note": item.note,
        "scale": setting.scale,
        "rows": rows,
        "settings": settings,
        "protocol": {"item": item.name, "scale": setting.scale},
    }


def write_comparison(plan: ItemPlan) -> dict[str, Any]:
    """results/reproduce_ITEM.json of the run, with what was left out."""
    result = compare(plan.item, plan.setting) | {"left_out": list(plan.notes), "provenance": provenance()}
    RunDirectory.create(plan.setting.run).write_result(plan.item.name.replace("-", "_"), result)
    return result


def check_agreement(run: RunDirectory, root: Path, scale: Scale) -> None:
    """Refuse to mix scales or data in one run: networks are shared by all its items."""
    keep_settings(run, {"root": str(root.resolve()), "scale": scale}, under=COMMAND)


def stored_scale(run: Path) -> Scale:
    """The scale of a run of reproductions."""
    known = RunDirectory.open(run).read_config_if_any().get(COMMAND, {})
    return "tiny" if known.get("scale") == "tiny" else "full"


def command_lines(plan: ItemPlan) -> list[str]:
    """As they could be typed; what brings folders into form has no command and is a comment."""
    lines = [f"# links in {step.result}, made by `mixlab reproduce ... --run`: {step.title}" for step in plan.arranged]
    return lines + [shlex.join(("mixlab", *one.step.arguments, *one.step.here)) for one in plan.planned]


def _arranged_place(name: str, run: Path) -> Path:
    return run / "data" / name.removesuffix("-val")


def _arrange(name: str, found: Found, run: Path) -> Step:
    place, (job, *arguments) = _arranged_place(name, run), found.arrange
    return Step(
        f"arrange {name}",
        {"sort-val": "validation images by class", "pair-masks": "masks beside their images"}[job],
        "links in the run; the data itself stays as it is",
        (job, *(str(Path(text).resolve()) for text in arguments), str(place)),
        place,
    )


def _check_only(item: Item, only: Sequence[str]) -> None:
    known = {name for network in item.networks for name in (network.model, network.key)}
    unknown = [name for name in only if name not in known]
    if unknown and item.networks:
        hint = did_you_mean(unknown[0], sorted(known), otherwise=f"it has {few(sorted(known), 8)}")
        raise InputError(f"{item.name} has no network {', '.join(unknown)}; {hint}")


def _checked(weights: Mapping[str, str]) -> Mapping[str, str]:
    known = {name for item in ITEMS.values() for network in item.networks for name in (network.model, network.key)}
    for name, file in weights.items():
        if name not in known and name not in ZOO:
            raise InputError(
                f"--weights {name}={file}: no item has a network {name}; `mixlab reproduce ITEM` names them"
            )
        if not split_part(file)[0].is_file():
            raise FileNotFoundError(f"--weights {name}={file}: there is no such file; check the path")
    return weights
