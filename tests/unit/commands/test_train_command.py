"""`mixlab train` measures its classifier on images that it has not seen, and only there."""

import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mixlab.backbones.weights import model_from_file
from mixlab.cli import main
from mixlab.data.decode import decode, fit_image, to_tensor
from mixlab.data.labelled import labelled_splits
from mixlab.data.source import Subset
from mixlab.evaluation import accuracy
from mixlab.evaluation.machine import CentreView
from mixlab.recipes import RECIPES
from mixlab.run.files import read_json
from mixlab.training.loop import Trainer
from mixlab.training.loop import train as train_here
from mixlab.training.settings import override
from tests.drawn_folders import draw_folders

QUICK = ("--set", "epochs=1", "--set", "batch=16", "--set", "knn.every_epochs=0", "--device", "cpu")


def train(data: Path, run: Path) -> None:
    assert main(["train", "supervised_vit_tiny64", "--data", str(data), "--run", str(run), *QUICK]) == 0


def test_the_accuracy_is_that_of_the_exported_classifier(tmp_path: Path) -> None:
    photos, _ = draw_folders(tmp_path)
    train(photos, tmp_path / "run")
    found = read_json(tmp_path / "run" / "results" / "accuracy.json")
    backbone = model_from_file(tmp_path / "run" / "weights.safetensors").eval()
    head = load_file(tmp_path / "run" / "classifier.safetensors")
    classes = sorted(path.name for path in (photos / "val").iterdir() if path.is_dir())
    correct = 0
    mean, std = (torch.tensor(part)[:, None, None] for part in (backbone.pixel_mean, backbone.pixel_std))
    for place in (photos / "val").rglob("*.png"):
        image = to_tensor(fit_image(decode(place), size=73, fit="crop"))[:, 4:68, 4:68]  # 64 of 64 / 0.875
        with torch.no_grad():
            logits = head["head.weight"] @ backbone(((image / 255 - mean) / std)[None])[0] + head["head.bias"]
        correct += classes[int(logits.argmax())] == place.parent.name
    assert found["score"]["correct"] == correct
    answers = found["measurements"][0]["by_image"]
    assert found["measurements"][0]["n"] == len(answers) == len(list((photos / "val").rglob("*.png")))
    assert answers.count("1") == correct, "of every image, for pairs"


@pytest.mark.filterwarnings("ignore:.*has no validation part")
def test_without_a_held_out_part_nothing_is_claimed(tmp_path: Path) -> None:
    photos, _ = draw_folders(tmp_path)
    train(photos / "train", tmp_path / "run")
    assert not (tmp_path / "run" / "results" / "accuracy.json").exists()


def test_labels_of_all_images_are_not_learnt_in_silence(tmp_path: Path) -> None:
    photos, _ = draw_folders(tmp_path)
    with pytest.warns(
        UserWarning, match=r"has no validation set: .* all \d+ images, .*; --data heldout:.* holds some out"
    ):
        train(photos / "train", tmp_path / "run")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(Path(f"heldout:{photos / 'train'}"), tmp_path / "held")
    assert (tmp_path / "held" / "results" / "accuracy.json").exists()


def test_a_run_whose_images_were_removed_keeps_its_validation_set(tmp_path: Path) -> None:
    photos, _ = draw_folders(tmp_path)
    train(photos, tmp_path / "run")
    found = tmp_path / "run" / "results" / "accuracy.json"
    first = read_json(found)["score"]
    found.unlink()
    next((photos / "train").rglob("*.png")).unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(photos, tmp_path / "run")
    assert read_json(found)["score"] == first


def test_ranks_share_the_validation_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos, _ = draw_folders(tmp_path)
    seen: list[list[int]] = []

    def answers(trainer: Trainer, source: Subset, view: CentreView) -> dict[int, bool]:
        seen.append(source.indexes.tolist())
        return {number: number == 2 for number in range(len(source))}  # the images 4 of all

    monkeypatch.setattr(accuracy, "_answers", answers)
    monkeypatch.setattr(accuracy, "from_all", lambda value: [value, {0: True, 3: True, 4: False}])  # 1, 7 and 9 of all

    def as_second_of_two(trainer: Trainer) -> None:
        whole = len(labelled_splits(trainer.data).val)
        for rank in range(2):
            trainer.world = replace(trainer.world, rank=rank, size=2)
            accuracy.write_accuracy(trainer)
        assert sorted(seen[0] + seen[1]) == list(range(whole)) and abs(len(seen[0]) - len(seen[1])) <= 1
        trainer.config = replace(trainer.config, sharding="fsdp")
        accuracy.write_accuracy(trainer)
        assert seen[2] == list(range(whole))  # shards need every rank in every pass

    settings = [setting for setting in QUICK if "=" in setting]
    config = override(RECIPES["supervised_vit_tiny64"](), settings)
    train_here(config, data=str(photos), run=tmp_path / "run", device="cpu", then=as_second_of_two)
    found = read_json(tmp_path / "run" / "results" / "accuracy.json")
    assert (found["score"]["correct"], found["score"]["n"]) == (3, len(seen[0]) + 3)
    assert found["measurements"][0]["by_image"][:8] == "01010100", "images 0, 1, 2, 4, 6, 7, 8, 9: in order"
