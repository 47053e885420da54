"""`mixlab train`: a classifier, with labels."""

from typing import Any

from mixlab.commands.answer import Answer
from mixlab.commands.options import Flat, TrainingRun
from mixlab.commands.pretrain import start_training


def train(on: Flat[TrainingRun], answer: Flat[Answer] = Answer()) -> dict[str, Any]:
    """Train a classifier. Run the same command again to resume. Works under torchrun.

    SIGTERM and Ctrl-C save a checkpoint and stop, with exit code 143 or 130.
    """
    from mixlab.evaluation.accuracy import write_accuracy

    return start_training(on, answer, command="train", then=write_accuracy)
