"""`mixlab knn`: kNN accuracy, the quickest test of features."""

from contextlib import ExitStack
from typing import Any

from mixlab.choices import OUTPUT
from mixlab.commands.answer import Answer
from mixlab.commands.options import Flat, LabelledTarget
from mixlab.commands.output import evaluation_machine, name_unreadable, percent, percent_interval
from mixlab.console import console
from mixlab.errors import InputError, check_counts, few
from mixlab.evaluation.settings import KnnSettings
from mixlab.run import provenance
from mixlab.run.directory import file_name
from mixlab.run.lock import RunLock


def knn(
    on: Flat[LabelledTarget], settings: Flat[KnnSettings], answer: Flat[Answer] = Answer(), *, batch: int = 256
) -> dict[str, Any]:
    """kNN accuracy: classify images by a weighted vote of their nearest neighbours, as DINO does. Works under torchrun.

    Args:
        batch: images per forward pass.
    """
    from mixlab.evaluation.knn import evaluate_knn
    from mixlab.evaluation.seen_labels import seen_labels
    from mixlab.training.distributed import once_per_machine

    check_counts(image=settings.image, batch=batch, num_train=settings.num_train, num_val=settings.num_val)
    if not settings.k:
        raise InputError("--k has no number; give one or more, such as 20")
    check_counts(k=min(settings.k))
    if settings.strategy == OUTPUT and settings.blocks != 1:
        raise InputError(
            f"--blocks {settings.blocks} has no effect on the backbone's output; add --strategy, such as cls"
        )
    answer.check()
    directory = on.open_run()
    features = directory.path / "features"
    with (
        evaluation_machine(on.device, workers=on.workers, batch=batch, features=features) as machine,
        ExitStack() as stack,
    ):
        if machine.world.is_first:
            features.mkdir(parents=True, exist_ok=True)
            stack.enter_context(RunLock(features, machine.say))
        splits = once_per_machine(machine.world, on.splits)
        for note in (*splits.notes(), *seen_labels(on.target, splits)):
            machine.say(note)
        loaded = on.load(machine.world.device, settings.seed)
        found = evaluate_knn(loaded, splits, settings, machine=machine)
        if not machine.world.is_first:
            return {}
    about = provenance(seed=settings.seed, device=str(machine.world.device))
    result = found.to_json() | {"seed": settings.seed, "provenance": about}
    directory.write(f"knn_{file_name(loaded.label)}", result)
    answer.table(
        f"Nearest neighbours of {loaded.label} on {on.data}, among {found.num_neighbours:,} images of "
        f"{found.num_classes:,} classes (chance {100 / found.num_classes:.3g} %)",
        ("k", "top-1 %", "95 %", "n"),
        [(row["k"], percent(row["top1"]), percent_interval(row), row["n"]) for row in result["scores"]],
    )
    if left_out := sorted(set(settings.k) - set(found.scores)):
        console.print(f"k {few(left_out)} left out: there are only {found.num_neighbours:,} training images")
    name_unreadable(found.unreadable)
    console.print(f"results in {directory.path}")
    return answer.emit(result)
