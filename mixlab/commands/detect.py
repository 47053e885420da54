"""`mixlab detect`: Mask R-CNN or Cascade Mask R-CNN on any backbone: train, score, show."""

import json as json_text
from pathlib import Path
from typing import Annotated, Any

import tyro

from mixlab.commands.dense_task import is_first, say_recipe, stoppable, target_and_recipe
from mixlab.commands.output import check_json, drawing, emit, percent, progress_bar, table
from mixlab.commands.pretrain import Settings
from mixlab.console import console
from mixlab.errors import InputError, check_counts
from mixlab.evaluation.detection.evaluate import NAMES
from mixlab.evaluation.detection.regions import HeadKind
from mixlab.evaluation.detection.task import DetectionResult, evaluate_detection, fit_detection, plan_detection
from mixlab.run import RunDirectory, provenance
from mixlab.run.directory import write_aside
from mixlab.training.distributed import choose_device


def detect(
    target: Annotated[str, tyro.conf.Positional],
    *,
    data: str,
    run: Path | None = None,
    head: HeadKind | None = None,
    recipe: str | None = None,
    set: Settings = [],  # noqa: B006  tyro reads the default, nobody changes it
    frozen: bool = False,
    weights: str | None = None,
    training: str | None = None,
    num_val: int | None = None,
    evaluate_only: bool = False,
    device: str | None = "auto",
    json: str | None = None,
) -> dict[str, Any]:
    """Train a detector on a backbone and score it. The same --run again resumes where it stopped; torchrun works as is.

    SIGTERM and Ctrl-C save and stop, with exit code 143 or 130.

    Args:
        target: a run (its backbone), an exported file, a name of the zoo, shipped/NAME, timm/NAME, or a recipe such as
            detect_mambaout_femto64 for its own backbone from scratch.
        data: shapes, a COCO folder (instances*.json beside its images, or in annotations/), or an instances file.
        run: the directory of this run; with --evaluate-only the target itself without it.
        head: mask (Mask R-CNN) or cascade (Cascade Mask R-CNN); without it what the recipe says.
        recipe: another recipe than the papers' for COCO (for shapes: a small one), or the config.json of a run.
        set: a setting such as epochs=12, seed=1 or method.short=480,800; may be given many times.
        frozen: train the neck and the heads alone.
        weights: a weight file for a name.
        training: how the target was trained (dino, supervised, ...), where its run does not say.
        num_val: score at most so many images, evenly spaced, while training too.
        evaluate_only: the target is a detection run; score it on this data and train nothing.
        device: auto (a GPU where there is one), cpu, cuda or cuda:N.
        json: also write the result as JSON to this file, or to stdout for "-".
    """
    check_counts(num_val=num_val)
    check_json(json)
    common: dict[str, Any] = {"num_val": num_val, "device": device, "bar": progress_bar}
    if evaluate_only:
        result = evaluate_detection(target, data, training=training, **common)
        return _write(result, run or Path(target), device, json)
    if run is None:
        raise InputError("a run needs a directory; give --run DIR")
    chosen, base = target_and_recipe(target, recipe)
    plan = plan_detection(
        chosen,
        data=data,
        recipe=base,
        settings=[*set, *([f"method.head={head}"] if head else [])],
        frozen=frozen,
        weights=weights,
        training=training,
        num_val=num_val,
        name=recipe or target,
    )
    if base is None:
        say_recipe(plan, device=device, published="COCO")
    with stoppable():
        result = fit_detection(plan, run, **common)
    return _write(result, run, device, json)


def _write(result: DetectionResult, run: Path, device: str | None, json: str | None) -> dict[str, Any]:
    """Average precision into results/detection, COCO's results file beside, pictures into figures/."""
    if not is_first():
        return {}
    folder = RunDirectory.create(run)
    content = result.to_json() | {"provenance": provenance(seed=result.seed, device=str(choose_device(device)))}
    name = folder.write("detection", content)
    answers = folder.path / f"{name.replace('detection', 'detections', 1)}.json"
    write_aside(answers, lambda file: file.write(json_text.dumps(result.answers.results).encode()))
    if result.examples:
        with drawing():
            from mixlab.analysis.figures import detection_pictures, save_figure

            images, truths, found = zip(*result.examples, strict=True)
            figure = detection_pictures(images, truths, found, result.categories)
            save_figure(figure, folder.figure_path(f"{name}.png"))
    rows = [(kind, *(percent(content[kind][metric]) for metric in NAMES)) for kind in ("boxes", "masks")]
    title = "Cascade Mask R-CNN" if content["head"] == "cascade" else "Mask R-CNN"
    about = f"n = {content['n']} images, {content['num_objects']} objects"
    table(f"{title} with {content['model']} on {content['data']}, {about}", ("%", *NAMES), rows)
    console.print(f"results in {folder.path}, COCO's results file in {answers}", highlight=False)
    return emit(content, json)
