"""`mixlab train`: a classifier, with labels."""

from pathlib import Path
from typing import Annotated, Any

import tyro

from mixlab.commands.pretrain import Launcher, Settings, launch
from mixlab.evaluation.accuracy import write_accuracy
from mixlab.training.slurm import SlurmConfig


def train(
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
    """Train a classifier. The same --run again resumes where it stopped; torchrun works as is.

    SIGTERM and Ctrl-C save and stop, with exit code 143 or 130.

    Args:
        recipe: a recipe such as supervised_mambaout_tiny, or the config.json of another run.
        data: shapes, a folder with one sub-folder per class, or wds:PATTERN.
        run: the directory of this run.
        set: a setting such as optim.lr=1e-3 or model.drop_path=0.1; may be given many times.
        device: auto (a GPU where there is one), cpu, cuda or cuda:N.
        launcher: here, or slurm to send the run as a job (needs the extra mixlab[slurm]).
        slurm: what to ask SLURM for.
        json: also write a summary as JSON to this file, or to stdout for "-".
    """
    return launch(
        recipe,
        kind="supervised",
        data=data,
        run=run,
        settings=set,
        device=device,
        launcher=launcher,
        slurm=slurm,
        json=json,
        then=write_accuracy,
    )
