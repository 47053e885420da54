"""Training that pauses, so that a signal or a kill always comes before its end, however late whoever sends it is.

A process that is started anew pauses with MIXLAB_IMPORT=tests.paused_training and `told` in its environment.
"""

import json
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mixlab.signals import StopRequests
from mixlab.training.update import Update

VARIABLE = "MIXLAB_TEST_PAUSES"


def pause(places: Mapping[int, Path | None]) -> None:
    """In this process, from now on: before each of these steps, until its file is there, or, without a file, until the
    training is asked to stop. The first step is step 0."""
    train_step = Update.__call__

    def pauses(step: int) -> bool:
        file = places[step]
        return not (is_asked_to_stop() if file is None else file.exists())

    def pause_then_train(update: Update, passes: Any, step: int) -> Any:
        while step in places and pauses(step):
            time.sleep(0.002)
        return train_step(update, passes, step)

    Update.__call__ = pause_then_train  # type: ignore[method-assign]


def is_asked_to_stop() -> bool:
    """By a signal that the training has noted."""
    noting = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return isinstance(noting, StopRequests) and noting.asked()


def told(places: Mapping[int, Path | None]) -> dict[str, str]:
    """The environment of a process that is to pause."""
    return {VARIABLE: json.dumps({step: file and str(file) for step, file in places.items()})}


def pause_as_told() -> None:
    if text := os.environ.get(VARIABLE):
        pause({int(step): file and Path(file) for step, file in json.loads(text).items()})


pause_as_told()
