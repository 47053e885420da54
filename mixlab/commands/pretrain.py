"""`mixlab pretrain`: a backbone without labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mixlab.commands.answer import Answer
from mixlab.commands.options import Flat, TrainingRun
from mixlab.commands.output import is_first, stoppable
from mixlab.console import console
from mixlab.errors import InputError

if TYPE_CHECKING:
    from mixlab.training.loop import Trainer


def pretrain(on: Flat[TrainingRun], answer: Flat[Answer] = Answer()) -> dict[str, Any]:
    """Pretrain a backbone without labels: DINO, LeJEPA, or a method of your own. Run the same command again to resume.
    Works under torchrun.

    SIGTERM and Ctrl-C save a checkpoint and stop, with exit code 143 or 130.
    """
    return start_training(on, answer, command="pretrain")


def start_training(
    on: TrainingRun, answer: Answer, *, command: str, then: Callable[[Trainer], None] | None = None
) -> dict[str, Any]:
    """What `pretrain` and `train` share; `then` is called at the end, for example to evaluate."""
    from mixlab.recipes import recipe_for
    from mixlab.training.loop import train
    from mixlab.training.settings import override
    from mixlab.training.slurm import SlurmConfig, TrainingJob, submit

    answer.check()
    config = override(recipe_for(on.run, on.recipe), on.set)
    if config.method.command != command:
        raise InputError(f"{on.recipe} is a {config.method.kind} recipe; run it with `mixlab {config.method.command}`")
    if on.launcher == "here" and on.slurm != SlurmConfig():
        raise InputError("--slurm options have no effect without --launcher slurm; add it, or leave them out")
    if on.launcher == "slurm":
        job = TrainingJob(
            config=config, data=on.data, run=on.run.resolve(), device=on.device, name=on.recipe, then=then
        )
        number = submit(job, on.slurm)
        console.print(f"job {number} was submitted; its output goes to {on.run / 'slurm'}")
        return answer.emit({"job": number, "run": str(on.run)})
    with stoppable():
        outcome = train(config, data=on.data, run=on.run, device=on.device, name=on.recipe, then=then)
    result = {"run": str(on.run), "steps": outcome.step, "from_step": outcome.from_step, "seconds": outcome.seconds}
    if not is_first():
        return result
    answer.line(
        f"done: {outcome.step} step{'s' * (outcome.step != 1)}; the backbone is in {on.run / 'weights.safetensors'}"
    )
    return answer.emit({**result, "figures": outcome.metrics})
