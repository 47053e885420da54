"""`mixlab probe`: linear probes on frozen features, the paper's whole ablation in one pass."""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from mixlab.backbones.backbone import Source
from mixlab.commands.output import check_json, console, emit, open_run, progress_bar, table
from mixlab.data.labelled import LabelledSplits, label_subset, labelled_splits
from mixlab.data.source import at_most
from mixlab.errors import InputError, check_counts
from mixlab.evaluation.feature_plan import heavy_blocks, light_blocks, possible_strategies, published_source
from mixlab.evaluation.probe_result import VARIED
from mixlab.evaluation.probe_run import (
    LRS,
    WEIGHT_DECAYS,
    Machine,
    Mode,
    ProbeOutcome,
    ProbeSettings,
    run_probe,
)
from mixlab.evaluation.probe_summary import summarise_probe
from mixlab.evaluation.target import Target, load_target
from mixlab.evaluation.views import CROP_SHARE, Precision
from mixlab.run import provenance
from mixlab.run.lock import RunLock
from mixlab.training.distributed import World, join_world, num_workers
from mixlab.training.recipe import seed_all
from mixlab.training.stopping import Stopped, StopRequests

Heads = Literal["grid", "light", "heavy"]
TAKEN = ("results", "features", "checkpoints", "figures", "tensorboard")  # folders of a run
MODES: dict[str, tuple[Mode, ...]] = {
    "augmented": ("augmented",),
    "cached": ("cached",),
    "both": ("augmented", "cached"),
}


def probe(
    target: Annotated[str, tyro.conf.Positional],
    *,
    data: str = "shapes",
    val_data: str | None = None,
    heads: Heads = "grid",
    blocks: tuple[int, ...] = (),
    strategies: tuple[str, ...] = (),
    lrs: tuple[float, ...] = (),
    weight_decays: tuple[float, ...] = (),
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
    precision: Precision = "auto",
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
    """Train linear probes on frozen features; the same command again goes on where it stopped. torchrun works as is.

    Args:
        target: a run, an exported file, a name of the zoo, or timm/NAME; TARGET=LABEL gives it another name in tables.
        data: shapes, a folder with one sub-folder per class (below train and val, or alone), or wds:PATTERN.
        val_data: another source of images to recognise; without it the val split, or every fifth image of each class.
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
        num_train: at most so many images to learn from, spread evenly.
        num_val: at most so many images to recognise, spread evenly.
        image: the side in pixels; without it, what the backbone was made for.
        crop_share: how much of each side the view of an image to recognise keeps: 0.875 is 224 of 256.
        load_size: the side at which images are held before they are cropped; twice the image without it.
        precision: of the backbone: bf16 or fp32; auto is bf16 on a GPU. fp32 also keeps the heads' products exact.
        workers: processes that read images; the cores shared out without it.
        resident: hold all images in the device's memory.
        weights: a weight file for a name.
        training: how the target was trained (dino, supervised, ...), where its run does not say.
        device: auto (a GPU where there is one), cpu, cuda or cuda:N.
        seed: of the heads, the order of images, their crops, the choice of few labels, and an untrained target.
        run: the directory for results; the target's own if it is a run, else runs/look.
        name: of this probe in the run: results/NAME.json, and its working folder NAME.
        json: also write the result as JSON to this file, or to stdout for "-".
    """
    if name in TAKEN or not re.fullmatch(r"\w[\w.-]*", name):
        raise InputError(f"--name {name!r} cannot name a folder of the run; use letters and digits, and not {TAKEN[0]}")
    check_counts(image=image, batch=batch, num_train=num_train, num_val=num_val)
    check_json(json)
    with join_world(device) as world, ExitStack() as stack:
        seed_all(seed)  # an untrained target is the same on every rank and in every call
        subject = load_target(target, weights=weights, training=training, device=world.device, seed=seed)
        backbone = subject.backbone.requires_grad_(False)
        splits = labelled_splits(data, val_data=val_data)
        few = label_subset(at_most(splits.train, num_train), label_share, seed=seed)
        splits = LabelledSplits(few, at_most(splits.val, num_val), splits.unknown, splits.absent)
        directory = open_run(run, [target])
        folder = directory.path / name
        folder.mkdir(parents=True, exist_ok=True)
        if world.is_first:
            stack.enter_context(RunLock(folder))
            for note in splits.notes():
                console.print(note, style="yellow", highlight=False)
        stop = stack.enter_context(StopRequests())
        chosen_blocks = blocks or _blocks(heads, subject)
        chosen_source: Source = published_source(backbone) if source == "auto" else source
        outcomes: dict[Mode, tuple[ProbeSettings, ProbeOutcome]] = {}
        for kind in MODES[mode]:
            settings = ProbeSettings(
                blocks=chosen_blocks,
                strategies=strategies or _strategies(heads, subject),
                source=chosen_source,
                image=image or backbone.image,
                mode=kind,
                lrs=lrs or LRS,
                weight_decays=weight_decays or WEIGHT_DECAYS,
                epochs=epochs,
                batch=batch,
                seed=seed,
                label_share=label_share,
                crop_share=crop_share,
                load_size=load_size,
                precision=precision,
            )
            machine = Machine(
                world=world,
                folder=folder / kind,
                features=directory.path / "features",
                workers=num_workers(workers, world),
                resident=resident,
            )
            try:
                outcome = run_probe(
                    backbone,
                    splits,
                    settings,
                    machine,
                    data=f"{data} {val_data or ''}".strip(),
                    stop=stop,
                    bar=quiet_unless_first(world),
                    say=lambda text: console.print(text, style="yellow", highlight=False) if world.is_first else None,
                )
            except Stopped as stopped:
                console.print(f"{stopped}; run the same command again to go on")
                raise SystemExit(stopped.exit_code) from stopped
            outcomes[kind] = (settings, outcome)
        if not world.is_first:
            return {}
        result, arrays = summarise_probe(
            outcomes,
            splits,
            about=subject.describe(),
            data=data,
            published=published_source(backbone),
            origin=provenance(seed=seed, device=str(world.device)),
        )
        directory.write_result(name, result, arrays)
        _print(result)
        console.print(f"results in {directory.path}, the best head in {folder / MODES[mode][0]}", highlight=False)
        return emit(result, json)


def _print(result: dict[str, Any]) -> None:
    columns = ("mode", "blocks", "strategy", "lr", "wd", "top-1 %", "95 %", "other half %", "n", "paper %")
    rows = []
    for kind, found in result["modes"].items():
        best, elsewhere = found["best"], found["chosen_elsewhere"]
        rows.append(
            (kind, best["blocks"], best["strategy"], best["lr"], best["weight_decay"], percent(best["top1"]),
             interval(best), percent(elsewhere["top1"]) if elsewhere else None, best["n"], percent(best["paper"]))
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
                    [(row[name], percent(row["top1"]), interval(row), percent(row["paper"])) for row in rows_of_table],
                )
        if found["unreadable"]:
            console.print(f"{len(found['unreadable'])} images could not be read: {next(iter(found['unreadable']))} ...")
    if result["difference"]:
        for name, gap in result["difference"].items():
            figures = f"{100 * gap['difference']:+.2f} [{100 * gap['low']:+.2f}, {100 * gap['high']:+.2f}] points"
            console.print(f"cached less augmented, {name.replace('_', ' ')}: {figures}", highlight=False)


def percent(value: float | None) -> float | None:
    return None if value is None else round(100 * value, 2)


def interval(row: dict[str, Any]) -> str:
    return "-" if row["low"] is None else f"{100 * row['low']:.1f} to {100 * row['high']:.1f}"


def quiet_unless_first(world: World) -> Callable[[str, int], Any]:
    """Progress bars for the first rank, silence for the others."""

    @contextmanager
    def silent(description: str, total: int) -> Iterator[Callable[[int], None]]:
        yield lambda count: None

    return progress_bar if world.is_first else silent


def _blocks(heads: Heads, subject: Target) -> tuple[int, ...]:
    backbone = subject.backbone
    if heads == "grid":
        return tuple(number for number in (1, 2, 3, 4) if number <= backbone.num_layers)
    return (light_blocks(backbone) if heads == "light" else heavy_blocks(backbone),)


def _strategies(heads: Heads, subject: Target) -> tuple[str, ...]:
    possible = possible_strategies(subject.backbone)
    return possible if heads == "grid" else possible[:1]
