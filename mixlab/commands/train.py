"""`mixlab train`: a classifier, with labels."""

from typing import Any

from mixlab.commands.options import Flat, TrainingRun
from mixlab.commands.pretrain import start_training
from mixlab.evaluation.accuracy import write_accuracy


def train(on: Flat[TrainingRun]) -> dict[str, Any]:
    """Train a classifier. The same --run again resumes where it stopped; torchrun works as is.

    SIGTERM and Ctrl-C save and stop, with exit code 143 or 130.
    """
    return start_training(on, command="train", then=write_accuracy)
