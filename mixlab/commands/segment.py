"""`mixlab segment`: UperNet on any backbone: train, score, show."""

from pathlib import Path
from typing import Annotated, Any

import tyro

from mixlab.commands.dense_task import is_first, say_recipe, stoppable, target_and_recipe
from mixlab.commands.output import check_json, drawing, emit, percent, progress_bar, table
from mixlab.commands.pretrain import Settings
from mixlab.console import console
from mixlab.errors import InputError, check_counts
from mixlab.evaluation.segmentation.task import (
    SegmentationResult,
    evaluate_segmentation,
    fit_segmentation,
    plan_segmentation,
)
from mixlab.evaluation.segmentation.upernet import Mode
from mixlab.run import RunDirectory, provenance
from mixlab.training.distributed import choose_device


def segment(
    target: Annotated[str, tyro.conf.Positional],
    *,
    data: str,
    run: Path | None = None,
    recipe: str | None = None,
    set: Settings = [],  # noqa: B006  tyro reads the default, nobody changes it
    frozen: bool = False,
    weights: str | None = None,
    training: str | None = None,
    inference: Mode = "single",
    num_val: int | None = None,
    evaluate_only: bool = False,
    device: str | None = "auto",
    json: str | None = None,
) -> dict[str, Any]:
    """Train UperNet on a backbone and score it. The same --run again resumes where it stopped; torchrun works as is.

    SIGTERM and Ctrl-C save and stop, with exit code 143 or 130.

    Args:
        target: a run (its backbone), an exported file, a name of the zoo, shipped/NAME, timm/NAME, or a recipe such as
            segment_dinovim_tiny64 for its own backbone from scratch.
        data: shapes, or a folder: ADE20K's, PASCAL VOC's, or images/ beside annotations/ or labels/.
        run: the directory of this run; with --evaluate-only the target itself without it.
        recipe: another recipe than the papers' for ADE20K (for shapes: a small one), or the config.json of a run.
        set: a setting such as steps=2000 or method.crop=256; may be given many times.
        frozen: train the neck and the head alone.
        weights: a weight file for a name.
        training: how the target was trained (dino, supervised, ...), where its run does not say.
        inference: single, multi (six scales and their mirror images) or slide (windows of the training's size).
        num_val: score at most so many images, evenly spaced, while training too.
        evaluate_only: the target is a segmentation run; score it on this data and train nothing.
        device: auto (a GPU where there is one), cpu, cuda or cuda:N.
        json: also write the result as JSON to this file, or to stdout for "-".
    """
    check_counts(num_val=num_val)
    check_json(json)
    common: dict[str, Any] = {"inference": inference, "num_val": num_val, "device": device, "bar": progress_bar}
    if evaluate_only:
        result = evaluate_segmentation(target, data, training=training, **common)
        return _write(result, run or Path(target), device, json)
    if run is None:
        raise InputError("a run needs a directory; give --run DIR")
    chosen, base = target_and_recipe(target, recipe)
    plan = plan_segmentation(
        chosen,
        data=data,
        recipe=base,
        settings=set,
        frozen=frozen,
        weights=weights,
        training=training,
        num_val=num_val,
        name=recipe or target,
    )
    if base is None:
        say_recipe(plan, device=device, published="ADE20K")
    with stoppable():
        result = fit_segmentation(plan, run, **common)
    return _write(result, run, device, json)


def _write(result: SegmentationResult, run: Path, device: str | None, json: str | None) -> dict[str, Any]:
    """Scores into results/segmentation[_MODE], pictures into figures/."""
    if not is_first():
        return {}
    folder, mode = RunDirectory.create(run), result.protocol.mode
    content = result.to_json() | {"provenance": provenance(seed=result.seed, device=str(choose_device(device)))}
    name = "segmentation" if mode == "single" else f"segmentation_{mode}"
    name = folder.write(name, content, {"confusion": result.scores.matrix})
    if result.examples:
        with drawing():
            from mixlab.analysis.figures import prediction_pictures, save_figure

            pairs, predicted = zip(*result.examples, strict=True)
            save_figure(prediction_pictures(pairs, predicted, result.classes), folder.figure_path(f"{name}.png"))
    rows = [
        (entry["name"], percent(entry["iou"]), percent(entry["accuracy"]), entry["pixels"])
        for entry in sorted(content["classes"], key=lambda entry: -entry["pixels"])[:20]
    ]
    table(f"Segmentation of {content['data']} by {content['model']}, n = {result.n}",
          ("class", "IoU %", "accuracy %", "pixels"), rows)  # fmt: skip
    overall = ", ".join(f"{metric} {percent(content[metric.lower()])}" for metric in ("mIoU", "mAcc", "aAcc"))
    ends = [str(percent(end)) for end in result.scores.miou_interval or ()]
    sure = f"; mIoU 95 %: {' to '.join(ends)}" if ends else ""
    console.print(f"{overall} (%, {mode}{sure})", highlight=False)
    console.print(f"results in {folder.path}", highlight=False)
    return emit(content, json)
