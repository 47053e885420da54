"""What commands print at a terminal of 80 columns, and to another program; numbers are masked, layout not.

`MIXLAB_SNAPSHOTS=write pytest tests/unit/commands/test_snapshots.py` writes them anew: look at the difference.
"""

import json
import os
import re
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import pytest
import torch

import mixlab
from mixlab.cli import COMMANDS, main
from mixlab.data.photographs import photograph_place
from mixlab.run import RunDirectory
from mixlab.studies.speedrun.page import DOCS, read_records
from tests.terminal import terminal
from tests.waiting import wait_for

SNAPSHOTS = Path(__file__).parent / "snapshots"
SMALL = ["--data", "shapes:n=8,size=32", "--device", "cpu"]
LABELLED = ["--data", "shapes:n=20,size=32", "--device", "cpu", "--workers", "0"]
HEADS = ["--mode", "cached", "--epochs", "1", "--blocks", "1", "--strategies", "cls", "--weight-decays", "0"]
TINY = ["--set", "steps=1", "--set", "batch=4", "--set", "optim.warmup_steps=0", "--set", "model.dim=32"]
DENSE = ["--data", "shapes:n=4", "--num-val", "2", "--device", "cpu", *TINY]
SERVED = ["--port", "0", "--device", "cpu", "--json", "page.json"]
CALLS: dict[str, list[str]] = {
    "overview": [],
    "models": ["models", "*vit_tiny"],
    "models-wide": ["models", "shipped/vit", "--wide"],
    "advise": ["advise", "--image", "800x1280"],
    "rank": ["rank", "vit", "--chunk", "8", "--num-images", "1", *SMALL],
    "maps": ["maps", "vit", "--num-images", "1", *SMALL],
    "auc": ["auc", "vit", *SMALL],
    "auc-wide": ["auc", "vit", "--wide", *SMALL],
    "knn": ["knn", "vit", "--k", "1", "5", *LABELLED],
    "probe": ["probe", "vit", *HEADS, *LABELLED],
    "report": ["report", "vit", "--no-measure", "--out", "page.html"],
    "export": ["export", "vit", "--out", "vit.safetensors", "--force"],
    "pretrain": ["pretrain", "dino_vit_tiny64", "--data", "shapes:n=8", "--run", "dino", "--device", "cpu", *TINY],
    "train": ["train", "supervised_vit_tiny64", "--data", "shapes:n=8", "--run", "labels", "--device", "cpu", *TINY],
    "robust": ["robust", "labels", "--shifts", "shapes:n=8", "--device", "cpu", "--workers", "0"],
    "segment": ["segment", "segment_vit_tiny64", "--run", "segmented", *DENSE],
    "detect": ["detect", "detect_vit_tiny64", "--run", "detected", *DENSE],
    "matrices": ["matrices", "vit", "--device", "cpu", "--data", "photo:cat"],
    "norms": ["norms", "vit", "--num-images", "2", *SMALL],
    "claims": ["claims"],
    "reproduce": ["reproduce"],
    "bench": ["bench", "ssd", "--quick"],
    "study": ["study", "miniature", "--list"],
    "app": ["app", "vit", "--data", "shapes:n=1", *SERVED],
    "look": ["look", "photo.jpg", "--models", "vit", "--no-open", *SERVED],
    "speedrun": ["speedrun", "dino_vit_tiny160", "--run", "finished"],
    "ship": ["ship", "vit", "--out", "vit.onnx"],
    "error": ["auc", "shipped/vti"],
    "typo": ["modls"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a run called vit, as training leaves it, a photograph, and a speedrun that somebody finished."""
    place = tmp_path_factory.mktemp("snapshots")
    run = RunDirectory.create(place / "vit")
    run.write_config({"recipe": "dino_vit_tiny", "seed": 0, "settings": {"method": {"kind": "dino"}}})
    torch.manual_seed(0)
    model = mixlab.create_model("vit_tiny", dim=32, depth=2, patch=8, image=32, head_dim=16)
    mixlab.save_weights(model, run.path / "weights.safetensors")
    shutil.copy(photograph_place("photo") or "", place / "photo.jpg")
    record = next(one for one in read_records(DOCS) if one["recipe"] == "dino_vit_tiny160" and not one["held_out"])
    RunDirectory.create(place / "finished").write_result("speedrun", record)
    return place


@contextmanager
def stopped_when_it_answers(told: Path) -> Iterator[None]:
    """Ctrl-C for a command that serves a page, once the page has been visited."""

    def visit() -> None:
        wait_for(told.is_file)
        urlopen(json.loads(told.read_text())["url"]).read()
        os.kill(os.getpid(), signal.SIGINT)

    told.unlink(missing_ok=True)
    visitor = threading.Thread(target=visit)
    visitor.start()
    yield
    visitor.join()


def masked(text: str) -> str:
    """Numbers as #, and the space that their lengths decide as one."""
    text = re.sub(r"(?<![\w/])[-+]?\d[\d,.]*(?:e[-+]\d+)?(?!\w)|(?<=\s)-(?=\s)", "#", text)  # "-": none
    return re.sub(r" {2,}", " ", text)


@pytest.mark.parametrize("name", CALLS)
def test_the_output_is_as_it_was(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "bench" and torch.cuda.is_available():
        pytest.skip("a GPU has another table")
    monkeypatch.chdir(folder)
    if name == "robust":  # scores what `train` has trained: its own, whatever the order of these tests is
        monkeypatch.chdir(tmp_path)
        main(CALLS["train"])
        capsys.readouterr()
    ended = partial(stopped_when_it_answers, folder / "page.json") if name in ("app", "look") else nullcontext
    with terminal(80) as screen, ended():
        main(CALLS[name])
    notes = capsys.readouterr().err
    with ended():
        main(CALLS[name])
    piped = capsys.readouterr().out
    assert all(len(line) <= 80 for line in screen.lines), screen.text
    assert "…" not in screen.text + piped and "\x1b" not in piped
    told = "".join(f"{line}\n" for line in notes.splitlines() if line.startswith(("error:", "unknown")))
    # Numbers decide where lines end; of two columns of sentences, even which words are beside each other.
    shown = {"rank": " ".join(screen.text.split()) + "\n", "claims": ""}.get(name, screen.text)
    parts = {"at a terminal": shown, "piped": piped, "notes": told}
    found = "".join(f"=== {part}\n{masked(text)}" for part, text in parts.items() if text)
    file = SNAPSHOTS / f"{name}.txt"
    if os.environ.get("MIXLAB_SNAPSHOTS") == "write":
        file.parent.mkdir(exist_ok=True)
        file.write_text(found, encoding="utf-8")
    assert found == file.read_text(encoding="utf-8")


def test_every_snapshot_has_its_command_and_every_command_a_snapshot() -> None:
    assert {file.stem for file in SNAPSHOTS.iterdir()} == set(CALLS)
    assert set(COMMANDS) == {call[0] for call in CALLS.values() if call} & set(COMMANDS) | {"demo"}  # test_demo.py
