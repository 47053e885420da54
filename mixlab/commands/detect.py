"""`mixlab detect`: Mask R-CNN or Cascade Mask R-CNN on any backbone: train, score, show."""

import json
from typing import Any

from mixlab.choices import HeadKind
from mixlab.commands.answer import Answer
from mixlab.commands.dense_task import train_or_evaluate
from mixlab.commands.options import DenseTarget, Flat
from mixlab.commands.output import drawing, is_first, percent, percent_interval
from mixlab.console import console
from mixlab.errors import counted
from mixlab.run import RunDirectory, provenance
from mixlab.run.files import write_atomically


def detect(
    on: Flat[DenseTarget], answer: Flat[Answer] = Answer(), *, data: str, head: HeadKind | None = None
) -> dict[str, Any]:
    """Train a detector on a backbone and score it. Run the same command again to resume. Works under torchrun.

    SIGTERM and Ctrl-C save a checkpoint and stop, with exit code 143 or 130.

    Args:
        data: shapes (drawn scenes), a COCO folder (instances*.json next to its images, or in annotations/), or an
            instances file.
        head: mask (Mask R-CNN) or cascade (Cascade Mask R-CNN); default: the recipe's.
    """
    from mixlab.evaluation.detection.average_precision import NAMES
    from mixlab.evaluation.detection.task import evaluate_detection, fit_detection, plan_detection
    from mixlab.training.distributed import choose_device

    answer.check()
    result, run = train_or_evaluate(
        on,
        data,
        plan=plan_detection,
        fit=fit_detection,
        evaluate=evaluate_detection,
        published="COCO",
        settings=[f"method.head={head}"] if head else [],
    )
    if not is_first():
        return {}
    folder = RunDirectory.create(run)
    content = result.to_json() | {"provenance": provenance(seed=result.seed, device=str(choose_device(on.device)))}
    name = folder.write("detection", content)
    answers = folder.path / f"{name.replace('detection', 'detections', 1)}.json"
    write_atomically(answers, lambda file: file.write(json.dumps(result.answers.results).encode()))
    if result.examples:
        with drawing():
            from mixlab.analysis.figures import detection_pictures, save_figure

            images, truths, found = zip(*result.examples, strict=True)
            figure = detection_pictures(images, truths, found, result.categories)
            save_figure(figure, folder.figure_path(f"{name}.png"))
    rows = []
    for kind in ("boxes", "masks"):
        ap, *others = (percent(content[kind][metric]) for metric in NAMES)
        ends = content["intervals"][kind]
        rows.append(
            (kind, ap, percent_interval(dict(zip(("low", "high"), ends, strict=True))) if ends else "", *others)
        )
    title = "Cascade Mask R-CNN" if content["head"] == "cascade" else "Mask R-CNN"
    seen, objects = counted(content["n"], "image", "images"), counted(content["num_objects"], "object", "objects")
    about = f"n = {seen}, {objects}"
    columns = ("%", "AP", "95 %", *NAMES[1:])
    answer.table(f"{title} with {content['model']} on {content['data']}, {about}", columns, rows)
    console.print(f"results in {folder.path}, COCO's results file in {answers}")
    return answer.emit(content)
