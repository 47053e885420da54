"""Training on data sets given in Python: the same order, skips and resume as for files."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch.utils.data import Dataset

import mixlab
from mixlab.data import parse_label_maps
from mixlab.data.given import as_data
from mixlab.evaluation.accuracy import write_accuracy
from mixlab.run.files import read_json
from mixlab.training.settings import override

SMALL = ["steps=3", "batch=4", "data.size=none", "data.workers=0", "model.dim=32", "model.depth=1", "model.image=32",
         "optim.warmup_steps=0", "log.tensorboard=false"]  # fmt: skip
DINO = [*SMALL, "method.num_prototypes=32", "method.hidden=16", "method.bottleneck=8", "method.num_local=2",
        "method.global_size=32", "method.local_size=16", "method.frozen_prototype_epochs=0",
        "method.teacher_warmup_epochs=0", "knn.every_epochs=0"]  # fmt: skip


class Photos(Dataset):
    """Images of unequal sizes, two classes one after the other."""

    def __init__(self, number: int = 12, broken: tuple[int, ...] = (), shift: int = 0) -> None:
        self.number, self.broken, self.shift = number, broken, shift

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> tuple[Image.Image, str]:
        if index in self.broken:
            raise OSError("the disk is gone")
        pixels = np.random.default_rng(index + self.shift).integers(0, 256, (20 + index, 30, 3), dtype=np.uint8)
        return Image.fromarray(pixels), "ab"[2 * index // self.number]


def pretrain(data: Any, run: Path, *settings: str) -> Path:
    config = override(mixlab.find_recipe("dino_vit_tiny64"), [*DINO, *settings])
    mixlab.train(config, data=data, run=run, device="cpu")
    return run


def draw(folder: Path, number: int = 12) -> Path:
    for index, (image, label) in enumerate(map(Photos(number).__getitem__, range(number))):
        (folder / label).mkdir(parents=True, exist_ok=True)
        image.save(folder / label / f"{index:02d}.png")
    return folder


@pytest.mark.parametrize("part", ["", "heldout:"])
def test_a_run_resumes_after_its_photographs_were_moved(part: str, tmp_path: Path) -> None:
    photos, elsewhere = draw(tmp_path / "photos"), tmp_path / "elsewhere"
    whole = pretrain(f"{part}{photos}", tmp_path / "whole")
    run = pretrain(f"{part}{photos}", tmp_path / "run", "checkpoint.every_steps=2")
    for left in (run / "weights.safetensors", run / "results" / "training.json", *run.glob("checkpoints/*3.*")):
        left.unlink()
    copy = draw(tmp_path / "copy")
    with pytest.raises(ValueError, match=r"was started on .*photos'"):  # whose pixels may differ
        pretrain(f"{part}{copy}", run, "checkpoint.every_steps=2")
    photos.rename(elsewhere)
    (elsewhere / "a" / "00.png").rename(tmp_path / "00.png")
    with pytest.raises(ValueError, match=r"was started on .*photos'"):
        pretrain(f"{part}{elsewhere}", run, "checkpoint.every_steps=2")
    (tmp_path / "00.png").rename(elsewhere / "a" / "00.png")
    pretrain(f"{part}{elsewhere}", run, "checkpoint.every_steps=2")
    ours, theirs = load_file(run / "weights.safetensors"), load_file(whole / "weights.safetensors")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert read_json(run / "config.json")["data"] == f"{part}{elsewhere}"


def test_a_data_set_trains_to_the_bits_of_the_same_images_in_files(tmp_path: Path) -> None:
    files = pretrain(str(draw(tmp_path / "files")), tmp_path / "of_files")
    given = pretrain(Photos(), tmp_path / "given")
    ours, theirs = load_file(given / "weights.safetensors"), load_file(files / "weights.safetensors")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    config = read_json(given / "config.json")
    assert config["data"].startswith("dataset:Photos-") and config["classes"] == ["a", "b"]


def test_a_sample_that_raises_is_recorded_and_too_many_of_them_stop_the_run(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"skipped Photos\[5\]: OSError: the disk is gone"):
        pretrain(Photos(broken=(5,)), tmp_path / "one", "data.skip_limit=0.1")
    skipped = read_json(tmp_path / "one" / "results" / "training.json")["skipped"]
    assert skipped == {"Photos[5]": "OSError: the disk is gone"}
    with warnings.catch_warnings(), pytest.raises(ValueError, match=r"images cannot be read.*Photos\["):
        warnings.simplefilter("ignore")
        pretrain(Photos(broken=(1, 4, 5, 8)), tmp_path / "many", "data.skip_limit=0.1")


def test_another_set_under_the_same_name_does_not_resume_a_run(tmp_path: Path) -> None:
    pretrain(mixlab.DatasetSource(Photos(), name="mine"), tmp_path)
    outcome = mixlab.train(
        override(mixlab.find_recipe("dino_vit_tiny64"), DINO),
        data=mixlab.DatasetSource(Photos(), name="mine"),
        run=tmp_path,
        device="cpu",
    )
    assert outcome.from_step == 3
    for other in (Photos(number=14), Photos(shift=1)):
        with pytest.raises(ValueError, match=r"dataset:mine is not the data set that .* was started on"):
            pretrain(mixlab.DatasetSource(other, name="mine"), tmp_path)
    with pytest.raises(ValueError, match=r"was started on 'dataset:mine', not 'dataset:yours'"):
        pretrain(mixlab.DatasetSource(Photos(), name="yours"), tmp_path)


def test_a_classifier_is_scored_on_the_validation_set_that_was_given(tmp_path: Path) -> None:
    settings = [*SMALL, "method.size=32", "knn.every_epochs=1", "knn.k=2"]
    config = override(mixlab.find_recipe("supervised_gatedconv_tiny64"), settings)
    data = {
        "train": mixlab.DatasetSource(Photos(), name="old"),
        "val": mixlab.DatasetSource(Photos(6, shift=9), name="new"),
    }
    outcome = mixlab.train(config, data=data, run=tmp_path, device="cpu", then=write_accuracy)
    assert {"knn_accuracy", "accuracy"} <= set(outcome.metrics)
    (measurement,) = read_json(tmp_path / "results" / "accuracy.json")["measurements"]
    assert measurement["protocol"]["data"] == "dataset:old + new" and measurement["n"] == 6


def test_evaluators_take_sources_and_data_sets(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = mixlab.create_model("vit_tiny", dim=64, depth=1, patch=8, image=32)
    with pytest.warns(UserWarning, match=r"skipped Photos\[3\]"):
        found = mixlab.evaluate_knn(model, Photos(broken=(3,)), mixlab.KnnSettings(k=(2,)))
    assert found.unreadable == {"Photos[3]": "OSError: the disk is gone"}
    assert found.measurements[0].protocol.data.startswith("dataset:Photos-")
    named = mixlab.DatasetSource(Photos(), name="mine")
    probe = mixlab.evaluate_linear_probe(model, named, mixlab.ProbeSettings(mode="cached", epochs=1, blocks=(1,)))
    assert probe.protocol.data == "dataset:mine"
    maps = mixlab.activation_maps([model], named)
    assert maps.protocol.data == "dataset:mine" and maps.seen.names[0] == "mine[0]"
    ranks = mixlab.measure_ranks(model, named, layers=[0], heads=[0])
    assert ranks.protocol.data == "dataset:mine"
    with pytest.raises(ValueError, match="dataset:mine gives Tensor; a score of maps takes a Source whose load gives"):
        mixlab.score_maps([model], named)
    with pytest.raises(ValueError, match="dataset:mine gives Tensor; segmentation takes a Source whose load gives"):
        plan = mixlab.plan_segmentation(model, data=named, settings=["steps=1"])
        mixlab.fit_segmentation(plan, tmp_path, device="cpu")


class Masked(mixlab.Source):
    """Eight lines of one's own that give masks."""

    title = "halves"

    def __len__(self) -> int:
        return 3

    def load(self, index: int) -> mixlab.MaskedImage:
        image = torch.zeros(3, 32, 32, dtype=torch.uint8)
        image[:, :, 16:] = 200
        return mixlab.MaskedImage(image, (image[0] > 0).to(torch.uint8), self.name(index))

    def name(self, index: int) -> str:
        return f"half-{index}"


def test_masks_to_train_on_and_to_validate_on_have_the_same_classes(tmp_path: Path) -> None:
    train, val = Masked(), Masked()
    train.classes, val.classes = ("dark", "light"), ("light", "dark")
    model = mixlab.create_model("vit_tiny", dim=64, depth=1, patch=8, image=32)
    plan = mixlab.plan_segmentation(model, data={"train": train, "val": val}, settings=["steps=1"])
    with pytest.raises(ValueError, match=r"of the training set \(class 1 was 'dark', is 'light'\); give both the same"):
        mixlab.fit_segmentation(plan, tmp_path, device="cpu")


def test_a_source_of_masks_is_scored_and_cut_into_splits() -> None:
    parts = [parse_label_maps(as_data(Masked()), split=split) for split in ("train", "val")]
    assert [part.name(0) for part in parts] == ["half-1", "half-0"]
    model = mixlab.create_model("vit_tiny", dim=64, depth=1, patch=8, image=32)
    result = mixlab.score_maps([model], Masked(), twins=False)
    assert result.to_json()["measurements"][0]["protocol"]["data"] == "dataset:halves"
