"""Runs as they were when they had been stopped."""

import shutil
from pathlib import Path


def stopped_after(whole: Path, folder: Path, step: int) -> Path:
    """A copy of a finished run as it was after a step."""
    shutil.copytree(whole, folder)
    (folder / "weights.safetensors").unlink()
    for file in (folder / "checkpoints").iterdir():
        if int(file.stem.removeprefix("step-")) > step:
            file.unlink()
    return folder
