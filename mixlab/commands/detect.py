"""`mixlab detect`: Mask R-CNN or Cascade Mask R-CNN on any backbone: train, judge, show."""

import json as json_text
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import tyro
from matplotlib.figure import Figure

from mixlab.analysis.figures import save_figure
from mixlab.commands import dense_task
from mixlab.commands.dense_task import finished_run, say_recipe, train_and_judge
from mixlab.commands.output import bar_of_first_rank, console, emit, table
from mixlab.commands.pretrain import Settings
from mixlab.data.objects import ObjectSource, instances_file, parse_objects
from mixlab.data.source import Subset, at_most
from mixlab.errors import InputError
from mixlab.evaluation.dense.targets import training_of
from mixlab.evaluation.detection.average_precision import NAMES
from mixlab.evaluation.detection.detector import HeadKind
from mixlab.evaluation.detection.evaluate import Found, Precision, find_objects, measure
from mixlab.evaluation.detection.pictures import detection_pictures
from mixlab.evaluation.detection.recipe import DetectionConfig, DetectionRecipe
from mixlab.evaluation.detection.recipes import detect as on_coco
from mixlab.evaluation.detection.recipes import detect_64 as on_shapes
from mixlab.evaluation.target import Target
from mixlab.run import RunDirectory, provenance
from mixlab.run.directory import write_aside
from mixlab.training.config import TrainConfig
from mixlab.training.distributed import World, num_workers
from mixlab.training.loop import Trainer
from mixlab.training.precision import autocast

NUM_PICTURES = 6


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
    num_val: int | None = None,
    evaluate_only: bool = False,
    device: str | None = "auto",
    json: str | None = None,
) -> dict[str, Any]:
    """Train a detector on a backbone and judge it. The same --run again resumes where it stopped; torchrun works as is.

    SIGTERM and Ctrl-C save and stop, with exit code 143 or 130.

    Args:
        target: a run (its backbone), a name of the zoo, timm/NAME, or a recipe such as detect_mambaout_femto64 for its
            own backbone from scratch.
        data: shapes, a COCO folder (instances*.json beside its images, or in annotations/), or an instances file.
        run: the directory of this run; with --evaluate-only the target itself without it.
        head: mask (Mask R-CNN) or cascade (Cascade Mask R-CNN); without it what the recipe says.
        recipe: another recipe than the papers' for COCO (for shapes: a small one), or the config.json of a run.
        set: a setting such as epochs=12, seed=1 or method.short=480,800; may be given many times.
        frozen: train the neck and the heads alone.
        weights: a weight file for a name.
        num_val: judge by at most so many images, evenly spread, while training too.
        evaluate_only: the target is a finished detection run; judge it on this data and train nothing.
        device: auto (a GPU where there is one), cpu, cuda or cuda:N.
        json: also write the result as JSON to this file, or to stdout for "-".
    """
    if evaluate_only:
        return emit(_judge(Path(target), data, run, num_val, device), json)
    settings = [*set, *([f"method.head={head}"] if head else [])]
    config = choose_config(
        target, data=data, recipe=recipe, settings=settings, frozen=frozen, weights=weights, num_val=num_val
    )
    say_recipe(config, target=target, data=data, recipe=recipe, device=device, published="COCO")

    def judged(trainer: Trainer) -> dict[str, Any]:
        now = trainer.recipe
        assert isinstance(now, DetectionRecipe)
        return judge(now, config, data=data, world=trainer.world, folder=trainer.folder, num_val=num_val)

    name = recipe or target
    return train_and_judge(config, data=data, run=run, device=device, name=name, judge=judged, json=json)


choose_config = partial(dense_task.choose_config, method=DetectionConfig, on_shapes=on_shapes, published=on_coco)


def judge(
    recipe: DetectionRecipe,
    config: TrainConfig,
    *,
    data: str,
    world: World,
    folder: RunDirectory,
    num_val: int | None,
) -> dict[str, Any]:
    """Average precision on the held-out part, COCO's results file and pictures. Empty but on rank 0."""
    method, source = config.method, at_most(parse_objects(data, split="val"), num_val)
    assert isinstance(method, DetectionConfig)
    if len(source.classes) != recipe.num_classes:
        raise InputError(
            f"{data!r} has {len(source.classes)} classes, this network was trained for {recipe.num_classes}; "
            "judge it on the categories that it knows"
        )
    with bar_of_first_rank(world)("judging", -(-len(source) // world.size)) as step:
        found = find_objects(
            recipe.network,
            source,
            method.resizing(),
            batch=config.part_size(world.size),
            world=world,
            precise=autocast(config.precision, world.device),
            workers=num_workers(config.data.workers, world),
            progress=step,
        )
    if world.is_first:
        content = json_text.dumps(found.results).encode()
        write_aside(folder.path / "detections.json", lambda file: file.write(content))
    scores = measure(source, found, world=world)
    if not world.is_first:
        return {}
    about = Target(
        label=folder.path.name, backbone=recipe.backbone, training=training_of(config.model), seed=config.seed
    ).describe()
    result = {
        "task": "detection",
        "head": method.head,
        "data": data,
        "split": "val",
        "n": scores.num_images,
        "num_objects": scores.num_objects,
        "num_detections": len(found.results),
        **scores.figures,
        "classes": scores.classes,
        "model": config.model.name,
        "subject": about,
        "weights": config.model.weights,
        "frozen": method.frozen,
        "steps": config.steps,
        "epochs": config.epochs,
        "seed": config.seed,
        "skipped": found.unreadable,
        "measurements": _records(scores, {**about, "data": data, "frozen": method.frozen, "head": method.head}),
        "provenance": provenance(seed=config.seed, device=str(world.device)),
    }
    folder.write_result("detection", result)
    if chosen := _shown(source, found):
        save_figure(_pictures(source, found, chosen), folder.figure_path("detection.png"))
    _print(result)
    console.print(
        f"results in {folder.path}, COCO's results file in {folder.path / 'detections.json'}", highlight=False
    )
    return result


def _records(scores: Precision, about: dict[str, Any]) -> list[dict[str, Any]]:
    """For the ledger. An AP is no mean over images, so it has no interval: only seeds tell two of them apart."""
    values = {metric: scores.figures[kind]["AP"] for metric, kind in (("box_ap", "boxes"), ("mask_ap", "masks"))}
    return [
        {**about, "metric": metric, "value": value, "low": None, "high": None, "n": scores.num_images}
        for metric, value in values.items()
        if value is not None
    ]


def _judge(target: Path, data: str, run: Path | None, num_val: int | None, device: str | None) -> dict[str, Any]:
    """A finished run on any data with its categories."""
    with finished_run(target, method=DetectionConfig, recipe=DetectionRecipe, device=device) as (recipe, config, world):
        assert isinstance(recipe, DetectionRecipe)
        folder = RunDirectory.create(run or target)
        return judge(recipe, config, data=data, world=world, folder=folder, num_val=num_val)


def _shown(source: ObjectSource, found: Found) -> list[int]:
    """The first few images with objects that could be read."""
    full = (index for index in range(len(source)) if source.load(index).has_objects)
    return list(islice((index for index in full if not found.lacks(source.name(index))), NUM_PICTURES))


def _pictures(source: ObjectSource, found: Found, chosen: list[int]) -> Figure:
    ids = [source.load(index).number for index in chosen]
    truth = instances_file(Subset(source, chosen))["annotations"]
    return detection_pictures(
        [source.load(index).image for index in chosen],
        [[entry for entry in truth if entry["image_id"] == number] for number in ids],
        [[entry for entry in found.results if entry["image_id"] == number] for number in ids],
        dict(zip(source.class_ids, source.classes, strict=True)),
    )


def _print(result: dict[str, Any]) -> None:
    rows = [(kind, *(_percent(result[kind][name]) for name in NAMES)) for kind in ("boxes", "masks")]
    table(f"{'Cascade ' if result['head'] == 'cascade' else ''}Mask R-CNN with {result['model']} on {result['data']}, "
          f"n = {result['n']} images, {result['num_objects']} objects", ("%", *NAMES), rows)  # fmt: skip


def _percent(value: float | None) -> float | None:
    return None if value is None else round(100 * value, 2)
