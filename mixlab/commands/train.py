"""`mixlab train`: a classifier, with labels."""

from pathlib import Path
from typing import Annotated, Any

import torch
import tyro

from mixlab.commands.pretrain import Launcher, Settings, launch
from mixlab.data.labelled import labelled_splits
from mixlab.evaluation.accuracy import Accuracy
from mixlab.evaluation.target import Target
from mixlab.evaluation.views import CentreView
from mixlab.run import provenance
from mixlab.training.distributed import num_workers
from mixlab.training.loop import Trainer
from mixlab.training.slurm import SlurmConfig
from mixlab.training.supervised import SupervisedRecipe


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
        then=judge,
    )


def judge(trainer: Trainer) -> None:
    """The classifier's own accuracy on images that it has not seen, into results/accuracy.json; none, no result."""
    splits = labelled_splits(trainer.data)
    recipe, world, config = trainer.recipe, trainer.world, trainer.config
    if len(splits.train) < len(trainer.source) or not isinstance(recipe, SupervisedRecipe):
        return  # no split of its own: it was trained on all images
    backbone, view = recipe.exported().eval(), CentreView(config.method.image)
    recipe.network.eval()
    correct = num = 0
    for batch in view.loader(splits.val, batch=256, workers=num_workers(config.data.workers, world)):
        images = backbone.preprocess(view.crop(batch.images))
        with torch.no_grad(), trainer.update.precise():
            logits = recipe.network(images)
        correct += int((logits.argmax(-1).cpu() == batch.labels).sum())
        num += len(batch.labels)
    if not world.is_first:
        return
    found = Accuracy(correct, num).to_json()
    about = Target(label=trainer.folder.path.name, backbone=backbone, training="supervised", seed=config.seed)
    figure = {"value": found["top1"], "low": found["low"], "high": found["high"], "n": num}
    result = {
        "kind": "accuracy",
        "subject": about.describe(),
        "data": trainer.data,
        "image": view.size,
        "num_classes": len(splits.classes),
        "score": found,
        "measurements": [{**about.describe(), "metric": "top1", **figure, "data": trainer.data}] if num else [],
        "provenance": provenance(seed=config.seed, device=str(world.device)),
    }
    trainer.folder.write_result("accuracy", result)
