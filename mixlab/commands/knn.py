"""`mixlab knn`: the accuracy of nearest neighbours, the quickest test of features."""

from contextlib import ExitStack
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
from mixlab.errors import check_counts
from mixlab.evaluation.knn import evaluate_knn
from mixlab.evaluation.machine import CROP_SHARE, PrecisionChoice
from mixlab.evaluation.target import load_target
from mixlab.run import provenance
from mixlab.run.directory import RunLock, file_name
from mixlab.training.knn import KS, TEMPERATURE


def knn(
    target: Annotated[str, tyro.conf.Positional],
    *,
    data: str = "shapes",
    val_data: str | None = None,
    k: tuple[int, ...] = KS,
    temperature: float = TEMPERATURE,
    blocks: int = 1,
    strategy: str = "output",
    source: Literal["auto", "branch", "stream"] = "auto",
    label_share: float = 1.0,
    num_train: int | None = None,
    num_val: int | None = None,
    image: int | None = None,
    crop_share: float = CROP_SHARE,
    batch: int = 256,
    precision: PrecisionChoice = "auto",
    workers: int | None = None,
    weights: str | None = None,
    training: str | None = None,
    device: str | None = "auto",
    seed: int = 0,
    run: Path | None = None,
    json: str | None = None,
) -> dict[str, Any]:
    """Classify images by a weighted vote of their nearest neighbours, as DINO does. torchrun works as is.

    Args:
        target: a run, an exported file, a name of the zoo, or timm/NAME; TARGET=LABEL gives it another name in tables.
        data: shapes, a folder with one sub-folder per class (below train and val, or alone), or wds:PATTERN.
        val_data: another source of validation images; without it the val split, or every fifth image of each class.
        k: how many neighbours vote, one or more numbers.
        temperature: of the votes; a neighbour weighs exp(cosine / temperature).
        blocks: how many of the last blocks to compare, unless the strategy is output.
        strategy: output (what the backbone returns), cls, mean, max, cls+mean or cls+max.
        source: branch or stream, unless the strategy is output; auto is as published.
        label_share: keep this share of each class as neighbours only, such as 0.01 or 0.1, chosen by --seed.
        num_train: at most so many neighbours, spread evenly.
        num_val: at most so many validation images, spread evenly.
        image: the side in pixels; without it, what the backbone was made for.
        crop_share: how much of each side the view of an image keeps: 0.875 is 224 of 256.
        batch: images at a time.
        precision: of the backbone: bf16 or fp32; auto is bf16 on a GPU.
        workers: processes that read images; the cores shared out without it.
        weights: a weight file for a name.
        training: how the target was trained (dino, supervised, ...), where its run does not say.
        device: auto (a GPU where there is one), cpu, cuda or cuda:N.
        seed: of the choice of few labels, and of an untrained target.
        run: the directory for results; the target's own if it is a run, else runs/look.
        json: also write the result as JSON to this file, or to stdout for "-".
    """
    check_counts(image=image, batch=batch, num_train=num_train, num_val=num_val)
    check_json(json)
    splits = labelled_splits(data, val_data=val_data)
    directory = open_run(run, [target])
    features = directory.path / "features"
    features.mkdir(exist_ok=True)
    with evaluation_machine(device, workers=workers, batch=batch, features=features) as machine, ExitStack() as stack:
        if machine.world.is_first:
            stack.enter_context(RunLock(features))
        for note in splits.notes():
            machine.say(note)
        loaded = load_target(target, weights=weights, training=training, device=machine.world.device, seed=seed)
        found = evaluate_knn(
            loaded,
            splits,
            ks=k,
            temperature=temperature,
            strategy=strategy,
            blocks=blocks,
            source=source,
            label_share=label_share,
            label_seed=seed,
            num_train=num_train,
            num_val=num_val,
            image=image,
            crop_share=crop_share,
            precision=precision,
            machine=machine,
        )
        if not machine.world.is_first:
            return {}
    result = found.to_json() | {"seed": seed, "provenance": provenance(seed=seed, device=str(machine.world.device))}
    directory.write(f"knn_{file_name(loaded.label)}", result)
    table(
        f"Nearest neighbours of {loaded.label} on {data}, among {found.num_neighbours:,} images",
        ("k", "top-1 %", "95 %", "n"),
        [(row["k"], percent(row["top1"]), percent_interval(row), row["n"]) for row in result["scores"]],
    )
    name_unreadable(found.unreadable)
    console.print(f"results in {directory.path}")
    return emit(result, json)
