"""`mixlab knn`: nearest neighbours, the quickest judgement of features."""

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from mixlab.commands.output import check_json, console, emit, open_run, table
from mixlab.commands.probe import interval, percent, quiet_unless_first
from mixlab.data.labelled import label_subset, labelled_splits
from mixlab.data.source import at_most
from mixlab.errors import check_counts
from mixlab.evaluation.accuracy import accuracy
from mixlab.evaluation.feature_cache import Extraction, FeatureCache
from mixlab.evaluation.feature_plan import FeaturePlan, head_inputs, published_source
from mixlab.evaluation.feature_table import FeatureTable
from mixlab.evaluation.target import load_target
from mixlab.evaluation.views import (
    CROP_SHARE,
    CentreView,
    Precision,
    precision_in_use,
    run_precision,
)
from mixlab.run import provenance
from mixlab.run.directory import file_name
from mixlab.run.lock import RunLock
from mixlab.training.distributed import from_all, join_world, num_workers
from mixlab.training.knn import KS, TEMPERATURE, fitting_ks, knn_correct
from mixlab.training.recipe import seed_all

HEADLINE_K = 20  # DINO's best for most models; the ledger takes one figure per model


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
    precision: Precision = "auto",
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
        val_data: another source of images to recognise; without it the val split, or every fifth image of each class.
        k: how many neighbours vote, one or more numbers.
        temperature: of the votes; a neighbour weighs exp(cosine / temperature).
        blocks: how many of the last blocks to compare, unless the strategy is output.
        strategy: output (what the backbone returns), cls, mean, max, cls+mean or cls+max.
        source: branch or stream, unless the strategy is output; auto is as published.
        label_share: keep this share of each class as neighbours only, such as 0.01 or 0.1, chosen by --seed.
        num_train: at most so many neighbours, spread evenly.
        num_val: at most so many images to recognise, spread evenly.
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
    with join_world(device) as world, ExitStack() as stack:
        seed_all(seed)  # an untrained target is the same on every rank and in every call
        subject = load_target(target, weights=weights, training=training, device=world.device, seed=seed)
        backbone = subject.backbone.requires_grad_(False)
        splits = labelled_splits(data, val_data=val_data)
        directory = open_run(run, [target])
        features = directory.path / "features"
        features.mkdir(exist_ok=True)
        if world.is_first:
            stack.enter_context(RunLock(features))
            for note in splits.notes():
                console.print(note, style="yellow", highlight=False)
        size = image or backbone.image
        chosen_source = published_source(backbone) if source == "auto" else source
        plan = FeaturePlan.build(
            backbone, head_inputs(backbone, (blocks,), (strategy,)), source=chosen_source, image=size
        )
        chosen_precision = precision_in_use(precision, world.device)
        extraction = Extraction(plan, CentreView(size, crop_share), chosen_precision, stored="float32")
        bar = quiet_unless_first(world)
        tables: dict[str, FeatureTable] = {}
        sources = {
            "train": label_subset(at_most(splits.train, num_train), label_share, seed=seed),
            "val": at_most(splits.val, num_val),
        }
        for which, images in sources.items():
            name = f"{data} {val_data or ''} [{which}]"
            cache = FeatureCache(features, extraction, backbone=backbone, source=images, name=name)
            with bar(f"features, {which}", len(images)) as step:
                tables[which] = cache.fill(
                    world=world,
                    batch=batch,
                    workers=num_workers(workers, world),
                    precise=run_precision(chosen_precision, world.device),
                    progress=step,
                )
        bank, queries = tables["train"].to(world.device), tables["val"]
        k = fitting_ks(k, len(bank))
        own = queries.every(world.size, world.rank)
        with bar("neighbours", len(own)) as step:
            right = knn_correct(
                bank,
                own,
                num_classes=len(splits.classes),
                ks=k,
                temperature=temperature,
                device=world.device,
                progress=step,
            )
        everyone = from_all({number: int(parts.sum()) for number, parts in right.items()})
        if not world.is_first:
            return {}
        rows = []
        for number in k:
            correct = sum(part[number] for part in everyone)
            rows.append({"k": number, **accuracy(correct, len(queries), seed=seed).as_json()})
        headline = next((row for row in rows if row["k"] == HEADLINE_K), rows[0])
        about = subject.describe()
        figure = {"value": headline["top1"], "low": headline["low"], "high": headline["high"], "n": headline["n"]}
        result: dict[str, Any] = {
            "kind": "knn",
            "subject": about,
            "data": data,
            "val_data": val_data,
            "image": size,
            "strategy": strategy,
            "blocks": blocks,
            "temperature": temperature,
            "label_share": label_share,
            "num_neighbours": len(bank),
            "num_classes": len(splits.classes),
            "seed": seed,
            "scores": rows,
            "unreadable": {**bank.unreadable, **queries.unreadable},
            "unknown_classes": splits.unknown,
            "absent_classes": list(splits.absent),
            "measurements": [{**about, "metric": "knn_top1", **figure, "data": data, "k": headline["k"]}],
            "provenance": provenance(seed=seed, device=str(world.device)),
        }
        directory.write(f"knn_{file_name(subject.label)}", result)
        table(
            f"Nearest neighbours of {subject.label} on {data}, among {len(bank):,} images",
            ("k", "top-1 %", "95 %", "n"),
            [(row["k"], percent(row["top1"]), interval(row), row["n"]) for row in rows],
        )
        if result["unreadable"]:
            console.print(
                f"{len(result['unreadable'])} images could not be read: {next(iter(result['unreadable']))} ..."
            )
        console.print(f"results in {directory.path}")
        return emit(result, json)
