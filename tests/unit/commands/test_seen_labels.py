"""kNN and probes of a run that was trained on labels say so."""

import shutil
from pathlib import Path

import pytest
from drawn_folders import draw_folders

from mixlab.cli import main

QUICK = [part for one in ("steps=1", "batch=4", "model.depth=1", "model.dim=32", "optim.warmup_steps=0",
                          "knn.every_epochs=0") for part in ("--set", one)]  # fmt: skip
IMAGES = "was trained on the labels of these validation images: this says nothing about new images"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("seen")
    photos, _ = draw_folders(root)
    shutil.copytree(photos / "train", root / "flat")
    for method, data, run in (
        ("train supervised", "photos", "labels"),
        ("train supervised", "flat", "all"),
        ("train supervised", "heldout:flat", "most"),
        ("pretrain dino", "flat", "dino"),
    ):
        command, recipe = method.split()
        prefix = "heldout:" if data.startswith("heldout:") else ""
        data = prefix + str(root / data.removeprefix(prefix))
        call = [command, f"{recipe}_vit_tiny64", "--data", data, "--run", str(root / run), "--device", "cpu", *QUICK]
        assert main(call) == 0
    return root


def said(place: Path, run: str, data: str, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    data = f"heldout:{place / data.removeprefix('heldout:')}" if data.startswith("heldout:") else str(place / data)
    capsys.readouterr()
    call = ["knn", str(place / run), "--data", data, "--image", "32", "--run", str(place / "out"), *options]
    assert main([*call, "--device", "cpu"]) == 0
    return " ".join(capsys.readouterr().err.split())


def test_knn_says_whose_labels_the_run_has_learnt(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    classes = (
        f"labels was trained on labels of these classes ({place / 'photos'}): these are not features learnt without"
    )
    assert classes in said(place, "labels", "photos", capsys)
    assert IMAGES in said(place, "all", "flat", capsys)
    assert IMAGES in said(place, "all", "heldout:flat", capsys)
    assert IMAGES in said(place, "all", "photos", capsys, "--val-data", str(place / "flat"))
    for data in ("flat", "heldout:flat"):
        found = said(place, "most", data, capsys)
        assert IMAGES not in found and "trained on labels of these classes" in found
    assert "labels of" not in said(place, "dino", "flat", capsys)


def test_classes_are_counted_and_others_are_no_matter(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, _ = sorted((place / "flat").iterdir())
    for name, folder in ((first.name, first), ("other", second)):
        shutil.copytree(folder, tmp_path / "two" / name)
        shutil.copytree(folder, tmp_path / "none" / f"not_{name}")
    assert "was trained on labels of 1 of these 2 classes" in said(place, "all", str(tmp_path / "two"), capsys)
    assert "trained on" not in said(place, "all", str(tmp_path / "none"), capsys)


def test_a_probe_says_it_too(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["probe", str(place / "all"), "--data", str(place / "flat"), "--epochs", "1", "--image", "32"]
    assert main([*call, "--run", str(place / "probe"), "--device", "cpu"]) == 0
    assert IMAGES in " ".join(capsys.readouterr().err.split())
