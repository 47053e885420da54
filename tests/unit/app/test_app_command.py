"""The command behind the page: which models it offers, and where it serves."""

import json
import multiprocessing
import os
import signal
import socket
from pathlib import Path

import pytest
from PIL import Image

from mixlab.app.laboratory import build_laboratory, card_of
from mixlab.app.pictures import read_samples
from mixlab.backbones.weights import save_weights
from mixlab.backbones.zoo import SHIPPED, create_model
from mixlab.commands.answer import Answer
from mixlab.commands.app import app, bind
from mixlab.evaluation.target import as_target
from mixlab.run import RunDirectory
from tests.unit.app.live_page import MODELS, request
from tests.waiting import exit_codes, wait_for

DATA = ("shapes:size=64,n=2",)


def make_run(path: Path) -> Path:
    run = RunDirectory.create(path)
    run.write_config({"data": "shapes", "settings": {"method": {"kind": "dino"}}})
    run.write_result("knn_x", {"measurements": [{"metric": "knn_top1", "value": 0.4321, "n": 10}]})
    save_weights(create_model("vit_tiny", **MODELS["vit_tiny"]), path / "weights.safetensors")
    return path


def test_without_targets_every_kind_of_mixer_is_offered_and_trained() -> None:
    laboratory = build_laboratory([], num_samples=2)
    assert {card.family for card in laboratory.models} == {"attention", "linear_attention", "mamba2", "gated_conv"}
    assert {card.id: card.training for card in laboratory.models} == dict.fromkeys(SHIPPED, "dino")
    assert {card.image for card in laboratory.models} == {160}
    assert [sample.id for sample in laboratory.samples] == ["sample-1", "sample-2", "sample-3", "sample-4"]
    assert [sample.label for sample in laboratory.samples[:2]] == ["cat.jpg", "coffee.jpg"]
    assert [sample.mask is None for sample in laboratory.samples] == [True, True, False, False]


def test_all_models_see_pictures_at_the_size_that_is_asked_for() -> None:
    cards = build_laboratory(["shipped/vit", "shipped/vit=again"], data=DATA, image=96).models
    assert [(card.id, card.image) for card in cards] == [("shipped/vit", 96), ("again", 96)]
    assert build_laboratory(["shipped/vit"], data=DATA).models[0].image == 160  # twice what it was made for


def test_a_run_is_named_by_its_folder_with_its_training_and_its_figures(tmp_path: Path) -> None:
    run = make_run(tmp_path / "my_run")
    [card, other] = build_laboratory([str(run), f"{run}=second"], data=DATA).models
    assert (card.id, card.training, card.architecture) == ("my_run", "dino", "vit_tiny")
    assert card.facts == ("data shapes", "kNN 43.2 %")
    assert other.id == "second"


def test_timm_models_come_with_weights_and_show_what_they_have(tmp_path: Path) -> None:
    weights = tmp_path / "resnet.safetensors"
    save_weights(create_model("timm/resnet10t"), weights)
    laboratory = build_laboratory(["timm/resnet10t"], weights=[f"timm/resnet10t={weights}"], data=DATA)
    [card] = laboratory.models
    assert card.training == "trained"
    assert not card.has_matrix
    assert "mixing_rows" not in card.maps
    assert "pooled_cosine" in card.maps


def test_a_mistake_in_a_mixer_is_not_taken_for_a_model_without_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*inputs: object) -> None:
        raise ValueError("shapes do not fit")

    target = as_target(create_model("vit_tiny", **MODELS["vit_tiny"]))
    monkeypatch.setattr(type(target.backbone), "mixings", wrong)
    with pytest.raises(ValueError, match="shapes do not fit"):
        card_of(target)


@pytest.mark.parametrize(
    ("targets", "weights", "words"),
    [
        (["vit_tinny"], [], "vit_tiny"),
        (["vit_tiny", "dinovim_tiny"], ["x.pth"], "NAME=FILE, such as vit_tiny=x.pth"),
        (["vit_tiny"], ["dinovim_tiny=x.pth"], "not among the targets"),
        (["mambaout_femto", "mambaout_femto"], [], "share a label"),
    ],
)
def test_wrong_targets_are_refused_with_a_way_out(targets: list[str], weights: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        build_laboratory(targets, weights=weights, data=DATA)


def test_a_taken_port_is_named_with_a_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="try --port 0"):
        bind("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(ValueError, match="0 to 65535"):
        bind("127.0.0.1", 70_000)


def run_app(told: Path, printed: Path) -> None:
    """The command, in a process of its own."""
    with printed.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    app((), Answer(json=str(told)), port=0, data=DATA)


def test_the_command_says_where_the_page_is_serves_it_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    told, printed = tmp_path / "page.json", tmp_path / "printed.txt"
    process = multiprocessing.get_context("forkserver").Process(target=run_app, args=(told, printed))
    process.start()
    try:
        wait_for(lambda: told.is_file() or not process.is_alive(), seen=printed.read_text)
        url = json.loads(told.read_text())["url"]
        assert url.startswith("http://localhost:")
        address = url.removeprefix("http://").rstrip("/")
        assert b"mixlab" in request(address, "GET", "/").body
        assert len(request(address, "GET", "/api/about").body["models"]) == 5
        os.kill(process.pid or 0, signal.SIGINT)
        assert exit_codes(process) == [0]
    finally:
        process.kill()
    assert url in printed.read_text()
    assert "Traceback" not in printed.read_text()


def test_samples_of_a_plain_folder_come_without_masks(tmp_path: Path) -> None:
    Image.new("RGB", (50, 30), "red").save(tmp_path / "a.png")
    [sample] = build_laboratory(["mambaout_femto"], data=[str(tmp_path)]).samples
    assert sample.mask is None
    assert sample.pixels.shape == (30, 50, 3)


def test_torn_files_among_the_samples_are_skipped(tmp_path: Path) -> None:
    for folder, colour in (("images", "red"), ("masks", "white")):
        (tmp_path / "masked" / folder).mkdir(parents=True)
        for name in "ab":
            Image.new("RGB", (50, 30), colour).save(tmp_path / "masked" / folder / f"{name}.png")
    (tmp_path / "plain").mkdir()
    Image.new("RGB", (50, 30), "red").save(tmp_path / "plain" / "b.png")
    for torn in ("masked/images/a.png", "plain/a.png"):
        (tmp_path / torn).write_bytes(b"half a file")
    with pytest.warns(UserWarning, match="skipped 1") as told:
        samples = read_samples([str(tmp_path / "masked"), str(tmp_path / "plain")], 1)
    assert [(sample.id, sample.label, sample.mask is None) for sample in samples] == [
        ("sample-1", "b.png", False), ("sample-2", "b.png", True),
    ]  # fmt: skip
    assert len(told) == 2
    (tmp_path / "plain" / "b.png").unlink()
    with pytest.raises(ValueError, match=r"plain' holds no image that can be read. skipped 1: .*a.png"):
        read_samples([str(tmp_path / "plain")], 1)


def test_of_several_photographs_one_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.jpg", tmp_path / "bad.jpg"
    Image.new("RGB", (40, 30)).save(good)
    bad.write_text("no picture")
    for order in ((good, bad), (bad, good)):
        with pytest.warns(UserWarning, match="bad.jpg' holds no image that can be read"):
            assert [sample.label for sample in read_samples([str(file) for file in order], 4)] == ["good.jpg"]
    with pytest.warns(UserWarning), pytest.raises(ValueError, match="holds no image that can be read"):
        read_samples([str(bad), str(bad)], 4)
