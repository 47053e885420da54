"""`mixlab probe`: linear probes on frozen features, the paper's whole ablation in one pass."""

import re
import sys
from typing import Any

from mixlab.commands.answer import WideAnswer
from mixlab.commands.options import Flat, LabelledTarget
from mixlab.commands.output import evaluation_machine, name_unreadable, percent, percent_interval, stoppable, warn
from mixlab.console import console
from mixlab.errors import InputError, check_counts
from mixlab.evaluation.settings import ProbeSettings
from mixlab.run import provenance

TAKEN = ("results", "features", "checkpoints", "figures", "tensorboard")  # folders of a run


def probe(
    on: Flat[LabelledTarget],
    settings: Flat[ProbeSettings],
    answer: Flat[WideAnswer] = WideAnswer(),
    *,
    resident: bool = False,
    name: str = "probe",
) -> dict[str, Any]:
    """Train linear probes on frozen features. Run the same command again to resume. Works under torchrun.

    Args:
        resident: keep all images in device memory.
        name: name of this probe in the run: results/NAME.json and the working folder NAME; NAME_2 and so on if a probe
            with other settings already has that name.
    """
    from mixlab.evaluation.probe import evaluate_linear_probe
    from mixlab.evaluation.seen_labels import seen_labels
    from mixlab.training.distributed import once_per_machine

    if settings.mode == "cached" and settings.load_size:
        raise InputError("--load-size has no effect on cached features of plain images; leave it out")
    if settings.heads != "grid" and settings.blocks and settings.strategies:
        raise InputError(f"--heads {settings.heads} has no effect beside --blocks and --strategies; leave it out")
    if name in TAKEN or not re.fullmatch(r"\w[\w.-]*", name):
        raise InputError(
            f"--name {name!r} cannot name a folder of the run; use letters and digits, and none of {', '.join(TAKEN)}"
        )
    counts = {part: getattr(settings, part) for part in ("image", "batch", "epochs", "num_train", "num_val")}
    check_counts(**counts)
    answer.check()
    directory = on.open_run()
    with (
        stoppable(),
        evaluation_machine(on.device, workers=on.workers, features=directory.path / "features") as machine,
    ):
        splits = once_per_machine(machine.world, on.splits)
        for note in (*splits.notes(), *seen_labels(on.target, splits)):
            machine.say(note)
        loaded = on.load(machine.world.device, settings.seed)
        found = evaluate_linear_probe(
            loaded, splits, settings, machine=machine, folder=directory.path / name, resident=resident
        )
        if not machine.world.is_first:
            return {}
    result = found.to_json() | {"provenance": provenance(seed=settings.seed, device=str(machine.world.device))}
    directory.write(name, result, found.arrays)
    _print(answer, result)
    assert found.folder is not None
    for mode, scores in found.scores.items():
        for doubt in scores.doubts():
            warn(f"{mode}: {doubt}")
    best = found.folder / next(iter(found.scores))
    console.print(f"results in {directory.path}, the best head in {best}")
    return answer.emit(result)


def _print(answer: WideAnswer, result: dict[str, Any]) -> None:
    from mixlab.evaluation.probe.result import VARIED

    columns = ("mode", "blocks", "strategy", "lr", "wd", "top-1 %", "95 %", "other half %", "n", "paper %")
    rows = []
    for kind, found in result["modes"].items():
        best, elsewhere = found["best"], found["chosen_elsewhere"]
        rows.append(
            (kind, best["blocks"], best["strategy"], best["lr"], best["weight_decay"], percent(best["top1"]),
             percent_interval(best), percent(elsewhere["top1"]) if elsewhere else None, best["n"],
             percent(best["paper"]))
        )  # fmt: skip
    heads = len(next(iter(result["modes"].values()))["heads"])
    title = f"Linear probe of {result['subject']['label']} on {result['data']}: the best of {heads} heads"
    answer.table(title, columns, rows, more=("other half %", "paper %"))
    for kind, found in result["modes"].items():
        for name, title in VARIED.items():
            rows_of_table = found["tables"][name]
            if len(rows_of_table) > 1:
                fixed = ", ".join(f"{VARIED[other]} {rows_of_table[0][other]}" for other in VARIED if other != name)
                answer.line("")
                names = (title, "top-1 %", "95 %", "paper %")
                values = [
                    (row[name], percent(row["top1"]), percent_interval(row), percent(row["paper"]))
                    for row in rows_of_table
                ]
                known = any(row["paper"] is not None for row in rows_of_table) or not sys.stdout.isatty()
                hidden = () if known else ("paper %",)
                answer.table(
                    f"By {title} ({kind}), at {fixed}",
                    names,
                    values,
                    more=hidden,
                    hint=False,
                )
        name_unreadable(found["unreadable"])
    if result["difference"]:
        for name, gap in result["difference"].items():
            figures = f"{100 * gap['difference']:+.2f} [{100 * gap['low']:+.2f}, {100 * gap['high']:+.2f}] points"
            answer.line(f"cached minus augmented, {name.replace('_', ' ')}: {figures}")
