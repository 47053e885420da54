"""A server to kill: tiny models, on a port, whose scores of every layer take long."""

import time
from typing import Any

import torch
import uvicorn

from mixlab.app import create_app
from mixlab.app.jobs import Progress
from mixlab.app.laboratory import Laboratory
from mixlab.app.pictures import Picture
from mixlab.app.questions import Question
from tests.unit.app.live_page import tiny_laboratory


class SlowLaboratory(Laboratory):
    """Sweeps and principal components of the first layer take a while: the real answers, in slow steps."""

    def answer(self, question: Question, picture: Picture, progress: Progress) -> dict[str, Any]:
        steps = 200 if question.is_long else 40 if question.kind == "pca" and question.layer == 0 else 0
        for step in range(steps):
            progress(step, steps, "thinking")
            time.sleep(0.05)
        return super().answer(question, picture, progress)


def slow_laboratory() -> SlowLaboratory:
    laboratory = tiny_laboratory()
    laboratory.__class__ = SlowLaboratory
    return laboratory  # type: ignore[return-value]


def serve_slowly(port: int) -> None:
    torch.set_num_threads(1)
    uvicorn.run(create_app(slow_laboratory()), host="127.0.0.1", port=port, log_level="critical")
