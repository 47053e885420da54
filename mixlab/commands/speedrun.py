"""`mixlab speedrun`: train a recipe, score it, note what it cost; with --publish, one row more in docs/speedrun.md."""

from __future__ import annotations

import os
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import tyro

from mixlab.commands.answer import Answer, WideAnswer
from mixlab.commands.options import Device, Flat, LabelledTarget, Settings, TrainingRun
from mixlab.commands.output import percent, percent_interval
from mixlab.errors import InputError


def speedrun(
    recipe: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE")],
    answer: Flat[Answer] = Answer(),
    *,
    run: Path,
    data: str | None = None,
    held_out: bool = False,
    seed: int | None = None,
    set: Settings = (),
    device: Device = "auto",
    workers: int | None = None,
    publish: bool = False,
) -> dict[str, Any]:
    """Train a recipe on labelled images, score kNN (k = 20) and linear probes on the validation images, and record the
    seconds that each took. Run the same command again to resume; a finished run is not repeated.

    Args:
        recipe: a recipe of `mixlab pretrain`, such as dino_vit_small160.
        run: the directory of this run; results/speedrun.json is its record.
        data: a folder with train/ and val/, each with one sub-folder per class; not needed to publish a finished run.
        held_out: for tuning: hold out a fifth of the training images and score on it; val/ is not read.
        seed: seed of the training run; default: 0, or that of a finished run.
        set: a setting such as optim.lr=1e-3; can be repeated.
        workers: data loading processes; default: all cores, less one.
        publish: add the record to docs/speedrun.md in a source checkout; the page is rebuilt from all records.
    """
    from mixlab.data.images import HELD_OUT_OF
    from mixlab.studies.speedrun.page import check_checkout, publish_record
    from mixlab.studies.speedrun.record import NAME, check_publishable, check_same, read_record, score_of

    answer.check()
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise InputError("a speedrun is timed on one device; start it without torchrun")
    if publish:
        check_checkout()
    finished = (run / "results" / f"{NAME}.json").is_file()
    if data is None and not finished and not publish:
        raise InputError("a speedrun needs labelled images: give --data FOLDER, with train/ and val/")
    source = f"{HELD_OUT_OF}{data}" if held_out and data is not None else data
    if source is not None and not finished:
        _train_and_score(recipe, source, run, settings=(f"seed={seed or 0}", *set), device=device, workers=workers)
    record = read_record(run)
    check_same(record, run, recipe=recipe, seed=seed, settings=set, data=source)
    seconds, timed_on = record["seconds"], record["timed_on"]
    rows = []
    for metric, title in (("knn_top1", "kNN, k = 20"), ("probe_top1", "linear probe, the best head")):
        found = score_of(record, metric).to_json()
        rows.append((title, percent(found["value"]), percent_interval(found), found["n"]))
    on = "a held-out fifth of the training images" if record["held_out"] else "the validation images"
    answer.table(f"{record['recipe']}, seed {record['seed']}, on {on}", ("", "top-1 %", "95 %", "n"), rows)
    answer.line(f"{timed_on}-seconds: {seconds['training']:.0f} for training, {seconds['all_in']:.0f} all in")
    if publish:
        check_publishable(record, run)
        answer.line(f"published in {publish_record(record, run)}")
    return answer.emit(record)


def _train_and_score(
    recipe: str, source: str, run: Path, *, settings: tuple[str, ...], device: str | None, workers: int | None
) -> None:
    """What `pretrain`, `knn` and `probe` do, one after the other, with the time noted."""
    from mixlab.backbones.weights import shrink_file
    from mixlab.commands.knn import knn
    from mixlab.commands.pretrain import start_training
    from mixlab.commands.probe import probe
    from mixlab.data.images import parse_source
    from mixlab.data.labelled import labelled_splits
    from mixlab.evaluation.settings import KnnSettings
    from mixlab.recipes import recipe_for
    from mixlab.run import RunDirectory
    from mixlab.run.lock import RunLock
    from mixlab.studies.elapsed import noting_time
    from mixlab.studies.speedrun.record import NAME, PROBE, SECONDS, K, changed_settings, check_same, make_record
    from mixlab.training.distributed import choose_device
    from mixlab.training.settings import override
    from mixlab.training.stored_settings import has_begun, is_over

    directory = RunDirectory(run)
    if has_begun(directory) and not (run / SECONDS).is_file():
        raise InputError(f"{run} was started by another command, so its time was not recorded; choose another --run")
    splits = labelled_splits(source)  # what cannot be scored in the end is refused before it is trained on
    if len(splits.train) < len(parse_source(source)):
        raise InputError(f"{source} has no validation images of its own; add val/, or give --held-out")
    if len(splits.train) < K:
        raise InputError(
            f"{source} has {len(splits.train)} training images; a speedrun scores by {K} neighbours, add more"
        )
    where = str(choose_device(device))
    here = [f"data.workers={workers}"] if workers is not None else []
    here += ["precision=fp32"] if where == "cpu" else []
    given = TrainingRun(recipe, data=source, run=run, set=(*here, *settings), device=device)
    asked = override(recipe_for(run, recipe), given.set)  # a wrong name leaves no run behind
    if over := is_over(directory):  # it is only scored
        config = directory.read_config()
        trained = config | {"changed": changed_settings(config["recipe"], config["settings"])}
        check_same(trained, run, recipe=recipe, seed=asked.seed, settings=settings, data=source)
    target = LabelledTarget(str(run), data=source, device=device, workers=workers)
    with redirect_stdout(sys.stderr):  # the answers of these commands are notes here
        if not over:
            with directory.kept_if_used(notes=[SECONDS]), noting_time(run / SECONDS, "training"):
                start_training(given, Answer(), command="pretrain")
        with RunLock(run), noting_time(run / SECONDS, "scoring"):
            shrink_file(run / "weights.safetensors", bits=16)  # what is scored is what is kept
            knn(target, KnnSettings(k=(K,)), Answer())
            probe(target, PROBE, WideAnswer())
    directory.write_result(NAME, make_record(directory, device=where))
