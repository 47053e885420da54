"""`mixlab pretrain`: a backbone without labels."""

from collections.abc import Callable
from typing import Any

from mixlab.commands.dense_task import is_first, stoppable
from mixlab.commands.options import Flat, TrainingRun
from mixlab.commands.output import console, emit
from mixlab.errors import InputError
from mixlab.recipes import recipe_for
from mixlab.training.loop import Trainer, train
from mixlab.training.settings import override
from mixlab.training.slurm import TrainingJob, submit


def pretrain(on: Flat[TrainingRun]) -> dict[str, Any]:
    """Pretrain a backbone without labels: DINO, LeJEPA, or a method of your own. The same --run again resumes; torchrun
    works as is.

    SIGTERM and Ctrl-C save and stop, with exit code 143 or 130.
    """
    return start_training(on, command="pretrain")


def start_training(on: TrainingRun, *, command: str, then: Callable[[Trainer], None] | None = None) -> dict[str, Any]:
    """What `pretrain` and `train` share; `then` is called at the end, for example to evaluate."""
    config = override(recipe_for(on.run, on.recipe), on.set)
    if config.method.command != command:
        raise InputError(f"{on.recipe} is a {config.method.kind} recipe; run it with `mixlab {config.method.command}`")
    if on.launcher == "slurm":
        job = TrainingJob(
            config=config, data=on.data, run=on.run.resolve(), device=on.device, name=on.recipe, then=then
        )
        number = submit(job, on.slurm)
        console.print(f"job {number} was submitted; its output goes to {on.run / 'slurm'}")
        return emit({"job": number, "run": str(on.run)}, on.json)
    with stoppable():
        outcome = train(config, data=on.data, run=on.run, device=on.device, name=on.recipe, then=then)
    result = {"run": str(on.run), "steps": outcome.step, "from_step": outcome.from_step, "seconds": outcome.seconds}
    if not is_first():
        return result
    console.print(f"done: {outcome.step} steps; the backbone is in {on.run / 'weights.safetensors'}")
    return emit({**result, "figures": outcome.metrics}, on.json)
