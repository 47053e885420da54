"""`mixlab probe`: linear probes on frozen features, the paper's whole ablation in one pass."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from mixlab.commands.output import (
    check_json,
    console,
    emit,
    evaluation_machine,
    name_unreadable,
    open_run,
    percent,
    percent_interval,
    table,
)
from mixlab.data.labelled import labelled_splits
from mixlab.errors import InputError, check_counts
from mixlab.evaluation.machine import CROP_SHARE, PrecisionChoice
from mixlab.evaluation.probe import ProbeSettings, evaluate_linear_probe
from mixlab.evaluation.probe.evaluate import LRS, WEIGHT_DECAYS, Heads
from mixlab.evaluation.probe.result import VARIED
from mixlab.evaluation.target import load_target
from mixlab.run import provenance
from mixlab.training.stopping import Stopped, StopRequests

TAKEN = ("results", "features", "checkpoints", "figures", "tensorboard")  # folders of a run


def probe(
    target: Annotated[str, tyro.conf.Positional],
    *,
    data: str = "shapes",
    val_data: str | None = None,
    heads: Heads = "grid",
    blocks: tuple[int, ...] = (),
    strategies: tuple[str, ...] = (),
    lrs: tuple[float, ...] = LRS,
    weight_decays: tuple[float, ...] = WEIGHT_DECAYS,
    source: Literal["auto", "branch", "stream"] = "auto",
    mode: Literal["augmented", "cached", "both"] = "augmented",
    epochs: int = 100,
    batch: int = 1024,
    label_share: float = 1.0,
    num_train: int | None = None,
    num_val: int | None = None,
    image: int | None = None,
    crop_share: float = CROP_SHARE,
    load_size: int | None = None,
    precision: PrecisionChoice = "auto",
    workers: int | None = None,
    resident: bool = False,
    weights: str | None = None,
    training: str | None = None,
    device: str | None = "auto",
    seed: int = 0,
    run: Path | None = None,
    name: str = "probe",
    json: str | None = None,
) -> dict[str, Any]:
    """Train linear probes on frozen features; the same command again resumes where it stopped. torchrun works as is.

    Args:
        target: a run, an exported file, a name of the zoo, or timm/NAME; TARGET=LABEL gives it another name in tables.
        data: shapes, a folder with one sub-folder per class (below train and val, or alone), or wds:PATTERN.
        val_data: another source of validation images; without it the val split, or every fifth image of each class.
        heads: grid (the paper's ablation: 1 to 4 blocks, five strategies, four lr, four wd), light (1,536 features) or
            heavy (4 blocks, 8 for tiny and base), both with the four lr and wd.
        blocks: how many of the last blocks a head reads, instead of those of --heads.
        strategies: cls, mean, max, cls+mean, cls+max, output (what the backbone returns), registers (each by itself).
        lrs: learning rates for a batch of 256.
        weight_decays: weight decays.
        source: branch (the mixers' output, as published for Dino-Mamba) or stream; auto is as published.
        mode: augmented (random crops, as the paper), cached (features of plain images, much faster), or both, with the
            difference between them.
        epochs: passes over the images.
        batch: images per step over all processes.
        label_share: learn from this share of each class only, such as 0.01 or 0.1, chosen by --seed.
        num_train: at most so many training images, spread evenly.
        num_val: at most so many validation images, spread evenly.
        image: the side in pixels; without it, what the backbone was made for.
        crop_share: how much of each side the view of a validation image keeps: 0.875 is 224 of 256.
        load_size: the side at which images are held before they are cropped; twice the image without it.
        precision: of the backbone: bf16 or fp32; auto is bf16 on a GPU. fp32 also keeps the heads' products exact.
        workers: processes that read images; the cores shared out without it.
        resident: hold all images in the device's memory.
        weights: a weight file for a name.
        training: how the target was trained (dino, supervised, ...), where its run does not say.
        device: auto (a GPU where there is one), cpu, cuda or cuda:N.
        seed: of the heads, the order of images, their crops, the choice of few labels, and an untrained target.
        run: the directory for results; the target's own if it is a run, else runs/look.
        name: of this probe in the run: results/NAME.json and its working folder NAME; NAME_2 and so on where a probe
            with other settings has that name.
        json: also write the result as JSON to this file, or to stdout for "-".
    """
    if name in TAKEN or not re.fullmatch(r"\w[\w.-]*", name):
        raise InputError(f"--name {name!r} cannot name a folder of the run; use letters and digits, and not {TAKEN[0]}")
    check_counts(image=image, batch=batch, num_train=num_train, num_val=num_val)
    check_json(json)
    settings = ProbeSettings(
        mode=mode,
        heads=heads,
        blocks=blocks,
        strategies=strategies,
        source=source,
        lrs=lrs,
        weight_decays=weight_decays,
        epochs=epochs,
        batch=batch,
        seed=seed,
        label_share=label_share,
        num_train=num_train,
        num_val=num_val,
        image=image,
        crop_share=crop_share,
        load_size=load_size,
        precision=precision,
    )
    splits = labelled_splits(data, val_data=val_data)
    directory = open_run(run, [target])
    with (
        evaluation_machine(device, workers=workers, features=directory.path / "features") as machine,
        StopRequests() as stop,
    ):
        for note in splits.notes():
            machine.say(note)
        loaded = load_target(target, weights=weights, training=training, device=machine.world.device, seed=seed)
        try:
            found = evaluate_linear_probe(
                loaded,
                splits,
                settings,
                machine=machine,
                folder=directory.path / name,
                resident=resident,
                stop=stop,
            )
        except Stopped as stopped:
            console.print(f"{stopped}; run the same command again to resume")
            raise SystemExit(stopped.exit_code) from stopped
        if not machine.world.is_first:
            return {}
    result = found.to_json() | {"provenance": provenance(seed=seed, device=str(machine.world.device))}
    directory.write(name, result, found.arrays)
    _print(result)
    assert found.folder is not None
    best = found.folder / next(iter(found.scores))
    console.print(f"results in {directory.path}, the best head in {best}", highlight=False)
    return emit(result, json)


def _print(result: dict[str, Any]) -> None:
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
    table(f"Linear probe of {result['subject']['label']} on {result['data']}: the best of {heads}", columns, rows)
    for kind, found in result["modes"].items():
        for name, title in VARIED.items():
            rows_of_table = found["tables"][name]
            if len(rows_of_table) > 1:
                fixed = ", ".join(f"{other} {rows_of_table[0][other]}" for other in VARIED if other != name)
                table(
                    f"{title} ({kind}; {fixed})",
                    (title, "top-1 %", "95 %", "paper %"),
                    [
                        (row[name], percent(row["top1"]), percent_interval(row), percent(row["paper"]))
                        for row in rows_of_table
                    ],
                )
        name_unreadable(found["unreadable"])
    if result["difference"]:
        for name, gap in result["difference"].items():
            figures = f"{100 * gap['difference']:+.2f} [{100 * gap['low']:+.2f}, {100 * gap['high']:+.2f}] points"
            console.print(f"cached minus augmented, {name.replace('_', ' ')}: {figures}", highlight=False)
