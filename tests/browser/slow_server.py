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
from tests.waiting import PATIENCE_S


class SlowLaboratory(Laboratory):
    """Sweeps take minutes, and principal components of the first layer until it hurries: the real answers, in steps."""

    hurries: bool

    def answer(self, question: Question, picture: Picture, progress: Progress) -> dict[str, Any]:
        step, steps = 0, 6000
        while question.is_long or (question.kind == "pca" and question.layer == 0 and not self.hurries):
            progress(step, steps, "thinking")
            time.sleep(0.05)
            step += 1
        return super().answer(question, picture, progress)


def slow_laboratory(*, hurries: bool = False) -> SlowLaboratory:
    laboratory: Any = tiny_laboratory()
    laboratory.__class__, laboratory.hurries = SlowLaboratory, hurries
    made: SlowLaboratory = laboratory
    return made


def serve_slowly(port: int) -> None:
    torch.set_num_threads(1)
    application = create_app(slow_laboratory(hurries=True), patience_s=PATIENCE_S)
    uvicorn.run(application, host="127.0.0.1", port=port, log_level="critical")
