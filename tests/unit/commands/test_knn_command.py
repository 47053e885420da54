"""`mixlab knn` on drawn shapes, on folders, and on real photographs."""

import re
import tarfile
from pathlib import Path

import pytest
import torch
from command_line import command
from look_runs import make_run
from PIL import Image

import mixlab
from mixlab.data.images import parse_source
from mixlab.run import RunDirectory
from mixlab.run.files import read_json
from mixlab.training.knn import LabelledFeatures, knn_accuracy
from tests.photographs import PHOTOGRAPHS, needs_photographs

knn = command("knn")

OPTIONS = {"workers": 0, "device": "cpu"}


def test_scores_go_to_the_run_and_follow_the_vote(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mixlab.evaluation.feature_cache.WORTH_SAYING", 0)  # else only from 100 MB on
    vit = make_run(tmp_path / "vit", "vit_tiny")
    result = knn(str(vit), data="shapes:n=80,size=64", image=64, crop_share=1.0, k=(1, 20, 500), **OPTIONS)
    stored = sum(file.stat().st_size for file in (vit / "features").glob("*/00000.npy"))
    text = " ".join(capsys.readouterr().err.split())
    said = re.search(r"features of 160 images, (\d+) values each: ([\d.]+) kB in", text)
    assert said and float(said[2]) == pytest.approx(stored / 1e3, abs=0.5)  # two headers of 128 bytes
    assert "k 500 left out: there are only 80 training images" in text
    assert result == RunDirectory.open(vit).results()["knn_vit"]
    model = mixlab.model_from_file(vit / "weights.safetensors").eval()
    features, labels = {}, {}
    for split in ("train", "val"):
        source = parse_source("shapes:n=80,size=64", split=split)
        pixels = torch.stack([source.load(index) for index in range(80)]).float() / 255
        mean, std = (torch.tensor(part)[:, None, None] for part in (model.pixel_mean, model.pixel_std))
        with torch.no_grad():
            features[split], labels[split] = model((pixels - mean) / std), source.labels()
    for row in result["scores"]:
        bank, queries = (LabelledFeatures(features[split], labels[split]) for split in ("train", "val"))
        expected = knn_accuracy(bank, queries, num_classes=10, k=row["k"], temperature=0.07, device=torch.device("cpu"))
        assert row["top1"] == pytest.approx(expected, abs=1 / 80)  # rounding may move one image
    assert [record["protocol"]["k"] for record in result["measurements"]] == [row["k"] for row in result["scores"]]
    assert result["num_neighbours"] == 80


def test_features_are_kept_under_the_precision_in_use(tmp_path: Path) -> None:
    vit = make_run(tmp_path / "vit", "vit_tiny")
    for precision, folders in (("auto", 2), ("fp32", 2), ("bf16", 4)):
        knn(str(vit), data="shapes:n=20,size=64", k=(1,), precision=precision, **OPTIONS)
        stored = [read_json(file)["precision"] for file in (vit / "features").glob("*/about.json")]
        assert len(stored) == folders and "auto" not in stored


def test_few_labels_and_unreadable_images_are_counted(tmp_path: Path) -> None:
    for split, number in (("train", 10), ("val", 3)):
        for name in ("ant", "bee"):
            (tmp_path / "photos" / split / name).mkdir(parents=True)
            for index in range(number):
                colour = (250, 10, index) if name == "ant" else (10, 250, index)
                Image.new("RGB", (70, 70), colour).save(tmp_path / "photos" / split / name / f"{index}.png")
    (tmp_path / "photos" / "val" / "bee" / "1.png").write_bytes(b"broken")
    vit = make_run(tmp_path / "vit", "vit_tiny")
    with pytest.warns(UserWarning, match="skipped"):
        result = knn(str(vit), data=str(tmp_path / "photos"), k=(1,), label_share=0.2, **OPTIONS)
    assert result["num_neighbours"] == 4 and result["scores"][0]["n"] == 5
    assert result["scores"][0]["top1"] == 1.0  # any network distinguishes red and green
    assert [Path(path).name for path in result["unreadable"]] == ["1.png"]


def test_bad_calls_get_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="strategy 'centre' does not exist"):
        knn("vit_tiny", data="shapes:n=20", strategy="centre", run=tmp_path, **OPTIONS)
    with pytest.raises(ValueError, match="label share is 0"):
        knn("vit_tiny", data="shapes:n=20", label_share=0.0, run=tmp_path, **OPTIONS)


@needs_photographs
def test_a_trained_network_knows_real_photographs_by_their_neighbours(tmp_path: Path) -> None:
    with tarfile.open(PHOTOGRAPHS / "imagenette_112px.tar") as tar:
        files = [member for member in tar if member.isfile() and member.name.endswith(".jpg")]
        wanted = [member for split in ("train", "val") for member in files if f"{split}/" in member.name]
        tar.extractall(tmp_path / "photos", members=wanted[::120], filter="data")
    weights = PHOTOGRAPHS / "weights" / "tf_efficientnet_lite0_imagenet_timm.pth"
    options = {
        "data": str(tmp_path / "photos"),
        "image": 80,
        "crop_share": 1.0,
        "k": (10,),
        "run": tmp_path,
        **OPTIONS,
    }
    trained = knn("timm/tf_efficientnet_lite0=trained", weights=str(weights), **options)["scores"][0]
    untrained = knn("timm/tf_efficientnet_lite0=untrained", **options)["scores"][0]
    assert trained["n"] >= 30
    assert trained["low"] > 0.5 > 0.4 > untrained["high"]
