"""What cannot fit into memory is refused before it begins; what may fit is not."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import mixlab
from mixlab.analysis.isolation import isolation_maps
from mixlab.app.laboratory import build_laboratory
from mixlab.backbones import room
from mixlab.cli import main
from mixlab.data.images import parse_source
from mixlab.evaluation.machine import CentreView

FREE = 2 * 10**9


@pytest.fixture(autouse=True)
def two_gigabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "free_memory", lambda: FREE)


@pytest.fixture
def model() -> mixlab.Backbone:
    return mixlab.create_model("vit_tiny", dim=32, depth=2, patch=8, image=32, head_dim=16).eval()


def test_the_sentence_names_tokens_memory_and_a_size_that_is_not_refused(model: mixlab.Backbone) -> None:
    with pytest.raises(ValueError, match=r"256 images of 4,000 px \(250,000 tokens of vit_tiny each\)") as refused:
        room.check_room(model, 4000, images=256)
    assert "2.0 GB are free on this machine; try 168 px, or a smaller batch" in str(refused.value)
    with pytest.raises(ValueError, match="a matrix of 250,000 x 250,000 of them") as refused:
        room.check_room(model, 4000, pairs=[-1])
    size = int(str(refused.value).rpartition("try ")[2].removesuffix(" px"))
    room.check_room(model, size, pairs=[-1])
    assert size % 8 == 0 and 160 * (size // 8) ** 4 <= FREE / 0.8 < 160 * (size // 8 + 1) ** 4


def test_only_what_is_surely_more_than_there_is_is_refused(model: mixlab.Backbone) -> None:
    side = int((FREE / room._PAIR) ** 0.25) * 8  # its matrix fits just so
    room.check_room(model, side, pairs=[0, 1])
    with pytest.raises(ValueError, match="takes at least"):
        room.check_room(model, int(1.1 * side), pairs=[0])
    pixels = int((FREE / 5 / 3) ** 0.5)  # one byte and four of each
    room.check_pixels(pixels, images=5)
    with pytest.raises(ValueError, match=r"5 images of 19,\d+ px \(their pixels alone each\)"):
        room.check_pixels(int(1.7 * pixels), images=5)


def test_a_gpu_counts_what_torch_holds_and_does_not_use(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda:1")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10**9, 10**11))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 7 * 10**9)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 4 * 10**9)
    assert room._free(gpu) == 4 * 10**9
    assert room._lacking((10**9, 4 * 10**9), gpu) == ""
    assert "4.0 GB are free on cuda:1" in room._lacking((10**9, 6 * 10**9), gpu)


COMMANDS = {
    "rank": "rank shipped/vit --data shapes:n=2 --image 20000",
    "maps": "maps shipped/vit --data shapes:n=2 --image 40000",
    "matrices": "matrices shipped/vit --data photo:cat --image 8000",
    "norms": "norms shipped/vit --data shapes:n=2 --image 40000",
    "auc": "auc shipped/vit --data shapes:n=2 --image 40000",
    "knn": "knn shipped/vit --data shapes:n=40 --image 1000000",
    "knn in batches": "knn shipped/vit --data shapes:n=400 --image 4000",
    "probe": "probe shipped/vit --data shapes:n=400 --image 4000",
    "look": "look missing.jpg --image 40000 --no-open --port 0",
}


@pytest.mark.parametrize("line", COMMANDS.values(), ids=COMMANDS)
def test_a_command_refuses_it_before_anything_is_read(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*line.split(), "--device", "cpu"]) == 1
    said = " ".join(capfd.readouterr().err.split())
    assert "tokens of vit_tiny" in said and "2.0 GB are free on this machine; try " in said, said
    assert not any(tmp_path.rglob("*.json"))


PYTHON: dict[str, Callable[[mixlab.Backbone], object]] = {
    "rank": lambda model: mixlab.measure_ranks(model, mixlab.ViewedImages("shapes:n=2", size=20_000)),
    "features": lambda model: mixlab.labelled_features(model, "shapes:n=2", image=40_000),
    "page": lambda model: build_laboratory(["shipped/vit"], image=40_000, device="cpu"),
    "patches": lambda model: isolation_maps(torch.zeros(1, 200, 200, 1)),
    "batches": lambda model: CentreView(40_000).loader(parse_source("shapes:n=4"), batch=4),
}


@pytest.mark.parametrize("call", PYTHON.values(), ids=PYTHON)
def test_so_does_a_function(call: Callable[[mixlab.Backbone], object], model: mixlab.Backbone) -> None:
    with pytest.raises(ValueError, match="2.0 GB are free"):
        call(model)
