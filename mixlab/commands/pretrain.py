"""`mixlab pretrain`: a backbone by DINO, without labels."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from mixlab.commands.output import console, emit
from mixlab.data.source import TooManyUnreadableError
from mixlab.errors import InputError, WorkError
from mixlab.recipes import find_recipe
from mixlab.training.loop import Trainer, train
from mixlab.training.settings import override
from mixlab.training.slurm import SlurmConfig, TrainingJob, submit
from mixlab.training.stopping import Stopped

Settings = Annotated[list[str], tyro.conf.UseAppendAction]
Launcher = Literal["here", "slurm"]
COMMANDS = {"dino": "pretrain", "supervised": "train", "segment": "segment", "detect": "detect"}


def pretrain(
    recipe: Annotated[str, tyro.conf.Positional],
    *,
    data: str,
    run: Path,
    set: Settings = [],  # noqa: B006  tyro reads the default, nobody changes it
    device: str | None = "auto",
    launcher: Launcher = "here",
    slurm: SlurmConfig = SlurmConfig(),  # noqa: B008  frozen
    json: str | None = None,
) -> dict[str, Any]:
    """Pretrain a backbone with DINO. The same --run again resumes where it stopped; torchrun works as is.

    SIGTERM and Ctrl-C save and stop, with exit code 143 or 130.

    Args:
        recipe: a recipe such as dino_dinovim_tiny64, or the config.json of another run.
        data: shapes, a folder of images, or wds:PATTERN.
        run: the directory of this run.
        set: a setting such as optim.lr=1e-3 or model.depth=12; may be given many times.
        device: auto (a GPU where there is one), cpu, cuda or cuda:N.
        launcher: here, or slurm to send the run as a job (needs the extra mixlab[slurm]).
        slurm: what to ask SLURM for.
        json: also write a summary as JSON to this file, or to stdout for "-".
    """
    return launch(
        recipe, kind="dino", data=data, run=run, settings=set, device=device, launcher=launcher, slurm=slurm, json=json
    )


def launch(
    recipe: str,
    *,
    kind: str,
    data: str,
    run: Path,
    settings: list[str],
    device: str | None,
    launcher: Launcher,
    slurm: SlurmConfig,
    json: str | None,
    then: Callable[[Trainer], None] | None = None,
) -> dict[str, Any]:
    """What `pretrain` and `train` share; `then` looks at what was trained."""
    config = override(find_recipe(recipe), settings)
    if config.method.kind != kind:
        command = COMMANDS[config.method.kind]
        raise InputError(f"{recipe} is a {config.method.kind} recipe; run it with `mixlab {command}`")
    if launcher == "slurm":
        job = TrainingJob(config=config, data=data, run=run.resolve(), device=device, name=recipe, then=then)
        number = submit(job, slurm)
        console.print(f"job {number} was sent; its output goes to {run / 'slurm'}")
        return emit({"job": number, "run": str(run)}, json)
    try:
        outcome = train(config, data=data, run=run, device=device, name=recipe, then=then)
    except Stopped as stopped:
        console.print(f"{stopped}; run the same command again to resume")
        raise SystemExit(stopped.exit_code) from stopped
    except TooManyUnreadableError as error:
        raise WorkError(f"{error} (data.skip_limit)") from error
    result = {"run": str(run), "steps": outcome.step, "from_step": outcome.from_step, "seconds": outcome.seconds}
    if os.environ.get("RANK", "0") != "0":
        return result
    console.print(f"done: {outcome.step} steps; the backbone is in {run / 'weights.safetensors'}", highlight=False)
    return emit({**result, "figures": outcome.figures}, json)
