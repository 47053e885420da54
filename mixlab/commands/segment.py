"""`mixlab segment`: UperNet on any backbone: train, judge, show."""

import math
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro

from mixlab.analysis.figures import save_figure
from mixlab.commands import dense_task
from mixlab.commands.dense_task import finished_run, say_recipe, train_and_judge
from mixlab.commands.output import bar_of_first_rank, console, emit, table
from mixlab.commands.pretrain import Settings
from mixlab.data.label_maps import parse_label_maps
from mixlab.data.masks import MaskedImage, MaskSource
from mixlab.data.source import at_most
from mixlab.data.unreadable import UnreadableImage
from mixlab.errors import InputError
from mixlab.evaluation.dense.targets import training_of
from mixlab.evaluation.segmentation.evaluate import evaluate
from mixlab.evaluation.segmentation.inference import Mode, Predictor
from mixlab.evaluation.segmentation.pictures import prediction_pictures
from mixlab.evaluation.segmentation.recipe import SegmentConfig, SegmentRecipe
from mixlab.evaluation.segmentation.recipes import segment as on_ade20k
from mixlab.evaluation.segmentation.recipes import segment_64 as on_shapes
from mixlab.evaluation.target import Target
from mixlab.run import RunDirectory, provenance
from mixlab.training.config import TrainConfig
from mixlab.training.distributed import World, num_workers
from mixlab.training.loop import Trainer
from mixlab.training.precision import autocast

NUM_PICTURES = 6


def segment(
    target: Annotated[str, tyro.conf.Positional],
    *,
    data: str,
    run: Path | None = None,
    recipe: str | None = None,
    set: Settings = [],  # noqa: B006  tyro reads the default, nobody changes it
    frozen: bool = False,
    weights: str | None = None,
    inference: Mode = "single",
    num_val: int | None = None,
    evaluate_only: bool = False,
    device: str | None = "auto",
    json: str | None = None,
) -> dict[str, Any]:
    """Train UperNet on a backbone and judge it. The same --run again resumes where it stopped; torchrun works as is.

    SIGTERM and Ctrl-C save and stop, with exit code 143 or 130.

    Args:
        target: a run (its backbone), a name of the zoo, timm/NAME, or a recipe such as segment_dinovim_tiny64 for its
            own backbone from scratch.
        data: shapes, or a folder: ADE20K's, PASCAL VOC's, or images/ beside annotations/ or labels/.
        run: the directory of this run; with --evaluate-only the target itself without it.
        recipe: another recipe than the papers' for ADE20K (for shapes: a small one), or the config.json of a run.
        set: a setting such as steps=2000 or method.crop=256; may be given many times.
        frozen: train the neck and the head alone.
        weights: a weight file for a name.
        inference: single, multi (six scales and their mirror images) or slide (windows of the training's size).
        num_val: judge by at most so many images, evenly spread, while training too.
        evaluate_only: the target is a finished segmentation run; judge it on this data and train nothing.
        device: auto (a GPU where there is one), cpu, cuda or cuda:N.
        json: also write the result as JSON to this file, or to stdout for "-".
    """
    if evaluate_only:
        return emit(_judge(Path(target), data, run, inference, num_val, device), json)
    config = choose_config(
        target, data=data, recipe=recipe, settings=set, frozen=frozen, weights=weights, num_val=num_val
    )
    say_recipe(config, target=target, data=data, recipe=recipe, device=device, published="ADE20K")

    def judged(trainer: Trainer) -> dict[str, Any]:
        now, world, folder = trainer.recipe, trainer.world, trainer.folder
        assert isinstance(now, SegmentRecipe)
        return judge(now, config, data=data, world=world, folder=folder, mode=inference, num_val=num_val)

    name = recipe or target
    return train_and_judge(config, data=data, run=run, device=device, name=name, judge=judged, json=json)


choose_config = partial(dense_task.choose_config, method=SegmentConfig, on_shapes=on_shapes, published=on_ade20k)


def judge(
    recipe: SegmentRecipe,
    config: TrainConfig,
    *,
    data: str,
    world: World,
    folder: RunDirectory,
    mode: Mode,
    num_val: int | None,
) -> dict[str, Any]:
    """Scores on the held-out part into results/segmentation[_MODE], pictures into figures/. Empty but on rank 0."""
    method, source = config.method, parse_label_maps(data, split="val")
    assert isinstance(method, SegmentConfig)
    if len(source.classes) != recipe.num_classes:
        raise InputError(
            f"{data!r} has {len(source.classes)} classes, this network was trained for {recipe.num_classes}; "
            "judge it on the label set that it knows"
        )
    if num_val is not None:
        source = at_most(source, num_val)
    recipe.network.eval()
    predictor = Predictor(recipe.network, method.inference(mode), precise=autocast(config.precision, world.device))
    with bar_of_first_rank(world)(f"judging ({mode})", -(-len(source) // world.size)) as step:
        scores, skipped = evaluate(
            predictor, source, world=world, workers=num_workers(config.data.workers, world), step=step
        )
    if not world.is_first:
        return {}
    about = Target(
        label=folder.path.name, backbone=recipe.backbone, training=training_of(config.model), seed=config.seed
    ).describe()
    num_judged = len(source) - len(skipped)
    low, high = scores.miou_interval or (None, None)
    record = {
        **about,
        "metric": "miou",
        "value": scores.miou,
        "low": low,
        "high": high,
        "n": num_judged,
        "data": data,
        "frozen": method.frozen,
    }
    result = {
        "task": "segmentation",
        "data": data,
        "split": "val",
        "n": num_judged,
        **scores.as_json(source.classes),
        "inference": {"mode": mode, **predictor.inference.as_json()},
        "model": config.model.name,
        "subject": about,
        "weights": config.model.weights,
        "frozen": method.frozen,
        "steps": config.steps,
        "seed": config.seed,
        "skipped": skipped,
        "measurements": [] if math.isnan(scores.miou) else [record],
        "provenance": provenance(seed=config.seed, device=str(world.device)),
    }
    name = "segmentation" if mode == "single" else f"segmentation_{mode}"
    folder.write_result(name, result, {"confusion": scores.matrix})
    pairs, predicted = _examples(predictor, source, world)
    if pairs:
        save_figure(prediction_pictures(pairs, predicted, source.classes), folder.figure_path(f"{name}.png"))
    _print(result)
    console.print(f"results in {folder.path}", highlight=False)
    return result


def _judge(
    target: Path, data: str, run: Path | None, mode: Mode, num_val: int | None, device: str | None
) -> dict[str, Any]:
    """A finished run on any data with its label set."""
    with finished_run(target, method=SegmentConfig, recipe=SegmentRecipe, device=device) as (recipe, config, world):
        assert isinstance(recipe, SegmentRecipe)
        folder = RunDirectory.create(run or target)
        return judge(recipe, config, data=data, world=world, folder=folder, mode=mode, num_val=num_val)


def _examples(predictor: Predictor, source: MaskSource, world: World) -> tuple[list[MaskedImage], list[torch.Tensor]]:
    """A few, evenly spread, without those that cannot be read: evaluation has named them."""
    chosen, pairs = at_most(source, NUM_PICTURES), []
    for index in range(len(chosen)):
        with suppress(UnreadableImage):
            pairs.append(chosen.load(index))
    return pairs, [predictor(pair.image[None].to(world.device))[0].cpu() for pair in pairs]


def _print(result: dict[str, Any]) -> None:
    rows = [
        (entry["name"], _percent(entry["iou"]), _percent(entry["accuracy"]), entry["pixels"])
        for entry in sorted(result["classes"], key=lambda entry: -entry["pixels"])[:20]
    ]
    table(f"Segmentation of {result['data']} by {result['model']}, n = {result['n']}",
          ("class", "IoU %", "accuracy %", "pixels"), rows)  # fmt: skip
    overall = ", ".join(f"{name} {_percent(result[name.lower()])}" for name in ("mIoU", "mAcc", "aAcc"))
    ends = [str(_percent(end)) for end in result["miou_interval"] or ()]
    sure = f"; mIoU 95 %: {' to '.join(ends)}" if ends else ""
    console.print(f"{overall} (%, {result['inference']['mode']}{sure})", highlight=False)


def _percent(value: float | None) -> float | None:
    return None if value is None else round(100 * value, 2)
