"""`mixlab segment`: UperNet on any backbone: train, score, show."""

from typing import Any

from mixlab.choices import InferenceMode
from mixlab.commands.answer import Answer
from mixlab.commands.dense_task import train_or_evaluate
from mixlab.commands.options import DenseTarget, Flat
from mixlab.commands.output import drawing, is_first, percent, warn
from mixlab.console import console
from mixlab.run import RunDirectory, provenance


def segment(
    on: Flat[DenseTarget], answer: Flat[Answer] = Answer(), *, data: str, inference: InferenceMode = "single"
) -> dict[str, Any]:
    """Train UperNet on a backbone and score it. Run the same command again to resume. Works under torchrun.

    SIGTERM and Ctrl-C save a checkpoint and stop, with exit code 143 or 130.

    Args:
        data: shapes (drawn scenes), or a folder: ADE20K, PASCAL VOC, or images/ next to annotations/ or labels/.
        inference: single (one pass), multi (six scales, each also flipped) or slide (sliding windows of the training
            size).
    """
    from mixlab.evaluation.segmentation.task import evaluate_segmentation, fit_segmentation, plan_segmentation
    from mixlab.training.distributed import choose_device

    answer.check()
    result, run = train_or_evaluate(
        on,
        data,
        plan=plan_segmentation,
        fit=fit_segmentation,
        evaluate=evaluate_segmentation,
        published="ADE20K",
        inference={"inference": inference},
    )
    if not is_first():
        return {}
    folder, mode = RunDirectory.create(run), result.protocol.mode
    content = result.to_json() | {"provenance": provenance(seed=result.seed, device=str(choose_device(on.device)))}
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
    title = f"Segmentation of {content['data']} by {content['model']}, n = {result.n}"
    answer.table(title, ("class", "IoU %", "accuracy %", "pixels"), rows)
    shares = {metric: percent(content[metric.lower()]) for metric in ("mIoU", "mAcc", "aAcc")}
    overall = ", ".join(f"{metric} {'-' if share is None else share}" for metric, share in shares.items())
    ends = [str(percent(end)) for end in result.scores.miou_interval or ()]
    interval = f"; mIoU 95 %: {' to '.join(ends)}" if ends else ""
    answer.line(f"{overall} (%, {mode}{interval})")
    if content["miou"] is None:
        why = (
            "no pixel of these images is labelled: all are 255 (0 in annotations/)" if result.n else "no image was read"
        )
        warn(f"{why}, so there is nothing to score; give images whose label maps have classes")
    console.print(f"results in {folder.path}")
    return answer.emit(content)
