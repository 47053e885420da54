"""Heads out of files, ours and released ones, and networks whose outputs have names."""

import argparse
import json
import os
import re
import stat
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file
from tiny_backbones import run_tiny, tiny_backbone, tiny_settings, tiny_splits
from torch import nn

import mixlab
from mixlab.backbones.weights import WeightsError
from mixlab.data.imagenet_labels import imagenet_classes
from mixlab.errors import WorkError
from mixlab.evaluation.accuracy import write_accuracy
from mixlab.evaluation.classifier import ProbedBackbone, probe_classifier, timm_classifier, trained_classifier
from mixlab.evaluation.features import HeadInput
from mixlab.evaluation.knn import KnnSettings
from mixlab.evaluation.machine import CentreView, Machine
from mixlab.evaluation.own_classifier import _classifier_in, load_classifier, own_probe
from mixlab.evaluation.probe import ProbeSettings
from mixlab.evaluation.probe_head import ProbeHead, load_head, save_head
from mixlab.evaluation.target import as_target, load_target, network_digest
from mixlab.recipes import RECIPES
from mixlab.run import RunDirectory
from mixlab.training.distributed import World
from mixlab.training.loop import train
from mixlab.training.settings import override
from tests.unit.backbones.released_dino_vit import random_vit_state, released_vit_features
from tests.unit.backbones.released_mambaout import released_mambaout_name
from tests.unit.backbones.released_mambas import isotropic_state
from tests.unit.backbones.released_stages import plain_state, staged_state

VIEW = CentreView(16)


def test_the_saved_best_head_scores_what_was_reported_for_it(tmp_path: Path) -> None:
    outcome = run_tiny(tmp_path, tiny_settings(mode="cached"))
    file = tmp_path / "probe" / "cached" / "best_head.safetensors"
    backbone, splits = tiny_backbone(), tiny_splits()
    head = load_head(file, backbone)
    assert head.classes == splits.classes and head.source == "branch"
    counts = outcome.correct.sum(1)
    assert head.about["correct"] == counts.max() and head.about["n"] == len(splits.val)
    assert json.loads(file.with_suffix(".json").read_text())["lr"] == outcome.heads[int(counts.argmax())].lr
    classifier = probe_classifier(as_target(backbone), head, view=VIEW)
    assert classifier.kind == "cached probe, 3 epochs"
    loaded = list(VIEW.loader(splits.val, batch=16))
    images = torch.cat([batch.images for batch in loaded])
    right = classifier.logits(images).argmax(-1) == torch.cat([batch.labels for batch in loaded])
    # Features were kept in half precision while training: an image on the border may fall to the other side.
    assert (right != outcome.correct[int(counts.argmax())]).sum() <= 1


def test_a_network_in_memory_is_scored_by_its_probe(tmp_path: Path) -> None:
    run_tiny(tmp_path, tiny_settings(mode="cached"))
    file = tmp_path / "probe" / "cached" / "best_head.safetensors"
    classifier = mixlab.load_classifier(tiny_backbone(), head=file)
    assert classifier.classes == tiny_splits().classes and classifier.label == tiny_backbone().name
    found = mixlab.evaluate_shifts(classifier, tiny_splits().val, machine=Machine(World(torch.device("cpu"))))
    assert found.accuracies["plain"].n == len(tiny_splits().val)
    with pytest.raises(mixlab.InputError, match="has no classifier: give head=FILE"):
        mixlab.load_classifier(tiny_backbone())


def test_a_run_is_judged_by_its_probe_with_all_labels(tmp_path: Path) -> None:
    few = tiny_settings(mode="cached", epochs=1, label_share=0.5)
    for settings, name in (
        (few, "probe"),
        (replace(few, label_share=1.0), "probe_2"),
        (replace(few, seed=6), "probe_3"),
    ):
        run_tiny(tmp_path, settings)
        assert (tmp_path / name / "cached").is_dir()
    assert own_probe(tmp_path) == tmp_path / "probe_2" / "cached" / "best_head.safetensors"
    assert own_probe(tmp_path / "probe") is None
    run_tiny(tmp_path, replace(few, label_share=1.0, epochs=2))
    assert own_probe(tmp_path) == tmp_path / "probe_4" / "cached" / "best_head.safetensors", "the one of more epochs"


def released_checkpoint(path: Path, width: int, num_classes: int = 1000) -> torch.nn.Linear:
    linear = torch.nn.Linear(width, num_classes)
    state = {f"module.linear.{name}": value for name, value in linear.state_dict().items()}
    torch.save({"epoch": 100, "state_dict": state, "optimizer": {"state": {}, "param_groups": []}, "scheduler": {},
                "best_acc": 77.4, "args": argparse.Namespace(lr=0.001)}, path)  # fmt: skip
    return linear


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_a_saved_head_has_the_rights_that_umask_leaves(mask: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        save_head(
            ProbeHead(torch.zeros(2, 4), torch.zeros(2), HeadInput(1, "cls"), "branch"), tmp_path / "head.safetensors"
        )
    finally:
        os.umask(before)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    assert modes == dict.fromkeys(("head.safetensors", "head.json"), 0o666 & ~mask)


def test_a_released_probe_reads_the_branch_of_the_last_blocks(tmp_path: Path) -> None:
    backbone = tiny_backbone()
    linear = released_checkpoint(tmp_path / "probe.pth.tar", 2 * 16)
    head = load_head(tmp_path / "probe.pth.tar", backbone)
    assert head.input == HeadInput(2, "cls") and head.source == "branch" and head.classes == imagenet_classes()
    images = torch.randn(3, 3, 16, 16)
    middle = [features.summary for _, features in backbone.features(images, layers=2, source="branch")]
    classifier = probe_classifier(as_target(backbone), head, view=VIEW)
    with torch.no_grad():
        torch.testing.assert_close(classifier.network(images), linear(torch.cat(middle, dim=1)))


def test_dinos_own_probe_of_a_base_vit_reads_class_token_and_mean(tmp_path: Path) -> None:
    """As eval_linear.py with --n_last_blocks 1 --avgpool_patchtokens true: the two lie side by side, per channel."""
    state = random_vit_state(dim=64, depth=2, side=4, patch=8)
    torch.save(state, tmp_path / "backbone.pth")
    backbone = mixlab.create_model("vit_tiny", dim=64, depth=2, image=32, patch=8, weights=tmp_path / "backbone.pth")
    linear = released_checkpoint(tmp_path / "linear.pth", 128)
    head = load_head(tmp_path / "linear.pth", backbone)
    assert head.input == HeadInput(1, "cls+mean") and head.source == "stream"

    images = torch.randn(3, 3, 32, 32)
    (tokens,) = released_vit_features(state, images, last=1)
    pairs = [part for channel in range(64) for part in (tokens[:, 0, channel], tokens[:, 1:, channel].mean(1))]
    expected = torch.stack(pairs, dim=1) @ linear.weight.double().T + linear.bias.double()
    classifier = probe_classifier(as_target(backbone), head, view=CentreView(32, 1.0))
    with torch.no_grad():
        torch.testing.assert_close(classifier.network(images).double(), expected, rtol=1e-4, atol=1e-4)


def test_files_that_are_no_head_or_another_backbones_get_a_sentence(tmp_path: Path) -> None:
    backbone = tiny_backbone()
    mixlab.save_weights(backbone, tmp_path / "backbone.safetensors")
    with pytest.raises(WeightsError, match="not a probe"):
        load_head(tmp_path / "backbone.safetensors", backbone)
    released_checkpoint(tmp_path / "wide.pth", 100)
    with pytest.raises(WeightsError, match="reads 100 features, which is not a multiple of the width 16"):
        load_head(tmp_path / "wide.pth", backbone)
    released_checkpoint(tmp_path / "few.pth", 16, num_classes=7)
    with pytest.raises(ValueError, match="7 classes without names"):
        probe_classifier(as_target(backbone), load_head(tmp_path / "few.pth", backbone), view=VIEW)


def test_a_head_file_cannot_run_code(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple:
            return (exec, (f"open({str(tmp_path / 'pwned')!r}, 'w')",))

    torch.save({"state_dict": Evil()}, tmp_path / "evil.pth")
    with pytest.raises(WeightsError, match="not run"):
        load_head(tmp_path / "evil.pth", tiny_backbone())
    assert not (tmp_path / "pwned").exists()


def test_a_timm_classifier_has_timms_classes_view_and_pixels(tmp_path: Path) -> None:
    model = timm.create_model("tf_efficientnet_lite0")
    torch.save(model.state_dict(), tmp_path / "weights.pth")
    classifier = timm_classifier("tf_efficientnet_lite0", weights=tmp_path / "weights.pth")
    assert classifier.classes == imagenet_classes()
    assert (classifier.view.size, classifier.view.load_size) == (224, 256)
    images = torch.randint(256, (2, 3, 256, 256), dtype=torch.uint8)
    with torch.no_grad():
        expected = model.eval()((images[..., 16:240, 16:240] / 255 - 0.5) / 0.5)
    torch.testing.assert_close(classifier.logits(images), expected)
    with pytest.raises(WeightsError, match=r"does not fit timm's resnet18"):
        timm_classifier("resnet18", weights=tmp_path / "weights.pth")
    with pytest.raises(ValueError, match="has no model 'resnet_eighteen'"):
        timm_classifier("resnet_eighteen", weights=tmp_path / "weights.pth")


def old_swin_name(name: str) -> str:
    """Before timm moved downsampling to the stage after it."""
    name = re.sub(r"layers\.(\d)\.downsample", lambda found: f"layers.{int(found[1]) - 1}.downsample", name)
    return name.replace("head.fc.", "head.")


def test_weights_that_timm_cannot_download_are_named_with_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(WorkError, match=r"download the weights of resnet10t \(.*\); check the connection, or give --w"):
        timm_classifier("resnet10t")
    with pytest.raises(WorkError, match=r"download the weights of resnet10t"):
        mixlab.create_model("timm/resnet10t", pretrained=True)


@pytest.mark.parametrize(
    ("name", "fields", "released", "family"),
    [
        ("mambaout_femto", {}, released_mambaout_name, "gated_conv"),
        ("swin_tiny_patch4_window7_224", {"depths": (1, 1, 1, 1)}, old_swin_name, "other"),
    ],
)
def test_a_released_classifier_is_read_under_its_released_names(
    name: str, fields, released, family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = timm.create_model(name, **fields).eval()
    torch.save({"model": {released(key): value for key, value in model.state_dict().items()}}, tmp_path / "their.pth")
    monkeypatch.setattr(timm, "create_model", partial(timm.create_model, **fields))
    found = timm_classifier(name, weights=tmp_path / "their.pth")
    images = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        torch.testing.assert_close(found.network(images), model(images))
    assert found.subject.family == family


def test_what_training_exports_is_a_classifier_again(tmp_path: Path) -> None:
    backbone = tiny_backbone()
    network = backbone.with_classifier(3)
    head = {name: value for name, value in network.state_dict().items() if name.startswith("head.")}
    from safetensors.torch import save_file

    save_file(head, tmp_path / "classifier.safetensors")
    assert set(load_file(tmp_path / "classifier.safetensors")) == {"head.weight", "head.bias"}
    classes = ("n01440764", "n01443537", "n01484850")
    file = tmp_path / "classifier.safetensors"
    classifier = trained_classifier(as_target(tiny_backbone()), file, classes=classes, view=VIEW)
    images = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(classifier.network(images), network(images))


@pytest.mark.parametrize(
    ("recipe", "fields", "share"),
    [
        ("supervised_mambaout_femto64", ["model.depths=[1,1,1,1]", "model.dims=[8,8,8,8]"], 1.0),
        ("supervised_vit_tiny64", ["model.depth=1", "model.dim=16"], 0.875),
    ],
)
def test_a_model_is_evaluated_with_the_crop_share_of_its_own(recipe, fields, share, tmp_path: Path) -> None:
    settings = [*fields, "epochs=1", "batch=8", "optim.warmup_epochs=0", "method.size=32", "knn.every_epochs=0"]
    config = override(RECIPES[recipe](), settings)
    train(config, data="shapes:n=8,size=32", run=tmp_path, device="cpu", then=write_accuracy)
    (found,) = RunDirectory(tmp_path).measurements()
    assert found["crop_share"] == share
    assert load_classifier(str(tmp_path), device="cpu").view.crop_share == share
    backbone = load_target(str(tmp_path), device="cpu").backbone
    assert KnnSettings().view(backbone).crop_share == ProbeSettings().for_backbone(backbone).crop_share == share
    assert KnnSettings(crop_share=0.9).view(backbone).crop_share == 0.9


def test_weights_of_timms_mambaout_bring_their_classifier_under_its_name_in_the_zoo(tmp_path: Path) -> None:
    theirs = timm.create_model("mambaout_femto").eval()
    torch.save(theirs.state_dict(), tmp_path / "femto.pth")
    images = torch.randn(1, 3, 64, 64)
    for name in ("mambaout_femto", "timm/mambaout_femto"):
        found = load_classifier(name, weights=str(tmp_path / "femto.pth"), device="cpu")
        with torch.no_grad():
            assert torch.equal(found.network.eval()(images), theirs(images))


def test_a_released_classifier_is_the_default_before_and_after_a_probe(tmp_path: Path) -> None:
    theirs, file = timm.create_model("mambaout_femto").eval(), tmp_path / "femto.pth"
    torch.save(theirs.state_dict(), file)
    backbone = load_target("mambaout_femto", weights=str(file), device="cpu").backbone
    place = tmp_path / "results" / "probe" / "cached"
    place.mkdir(parents=True)
    (place / "settings.json").write_text(json.dumps({"network": network_digest(backbone)}))
    head = ProbeHead(torch.zeros(2, backbone.dim), torch.zeros(2), HeadInput(1, "mean"), "stream", ("a", "b"))
    save_head(head, place / "best_head.safetensors")
    options = {"weights": str(file), "device": "cpu", "results": tmp_path / "results"}
    assert load_classifier("mambaout_femto", **options).origin == "its own"
    torch.save({name: value for name, value in theirs.state_dict().items() if "head.fc" not in name}, file)
    assert load_classifier("mambaout_femto", **options).origin == "probe, 1 x mean, stream"


def test_released_weights_of_a_zoo_model_bring_their_classifier(tmp_path: Path) -> None:
    torch.manual_seed(0)
    theirs = timm.create_model("deit_tiny_patch16_224", depth=2).eval()
    torch.nn.init.normal_(theirs.head.weight, std=0.1)
    torch.save({"model": theirs.state_dict()}, tmp_path / "deit.pth")
    ours = mixlab.create_model("vit_tiny", depth=2)
    mixlab.load_weights(ours, tmp_path / "deit.pth")
    head = _classifier_in(str(tmp_path / "deit.pth"), ours)
    assert head is not None and head.classes[0] == "n01440764"
    images = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        torch.testing.assert_close(
            ProbedBackbone(ours.eval(), head, image=224)(images), theirs(images), atol=1e-4, rtol=0
        )
    without = {name: value for name, value in theirs.state_dict().items() if not name.startswith("head")}
    torch.save(without, tmp_path / "backbone.pth")
    assert _classifier_in(str(tmp_path / "backbone.pth"), ours) is None
    scan = mixlab.create_model("dinovim_tiny", depth=1)
    torch.save({"norm_f.weight": torch.ones(1), "head.weight": torch.ones(1000, 4), "head.bias": torch.ones(1000)},
               tmp_path / "dino.pth")  # fmt: skip
    assert _classifier_in(str(tmp_path / "dino.pth"), scan) is None  # part of Dino-Mamba's files, never trained


STAGES = {"dims": (16, 32, 64, 128), "depths": (1, 1, 1, 1), "image": 64}
PLAIN = {"dim": 16, "depth": 2, "image": 64}


@pytest.mark.parametrize(
    ("name", "state", "fields"),
    [
        ("vim_tiny", partial(isotropic_state, "vim", dim=16, depth=2, side=4), PLAIN),
        ("mambareg_small", partial(isotropic_state, "mambareg", dim=16, depth=2, side=4), PLAIN),
        ("localvim_tiny", partial(isotropic_state, "localvim", dim=16, depth=2, side=4), PLAIN),
        ("plainmamba_l2", partial(plain_state, dim=16, depth=2, side=4, stem_convs=2, local=False), PLAIN),
        ("vmamba_tiny", partial(staged_state, "vmamba0", [16, 32, 64, 128], [1, 1, 1, 1]), STAGES),
        ("efficientvmamba_tiny", partial(staged_state, "efficientvmamba", [16, 32, 64, 128], [1, 1, 1, 1]), STAGES),
    ],
)
def test_files_of_visual_mambas_bring_their_classifier(name: str, state, fields, tmp_path: Path) -> None:
    model, entries = mixlab.create_model(name, **fields).eval(), state()
    linear, place = nn.Linear(model.dim, 1000), "classifier.head" if "dims" in fields else "head"
    if name.startswith("plainmamba"):  # a file of mmcls: the classifier stands beside the backbone
        place, entries = "head.fc", {f"backbone.{key}": value for key, value in entries.items()}
    entries |= {f"{place}.weight": linear.weight.data, f"{place}.bias": linear.bias.data}
    torch.save({"state_dict": entries}, tmp_path / "released.pth")
    mixlab.load_weights(model, tmp_path / "released.pth")
    head = _classifier_in(str(tmp_path / "released.pth"), model)
    assert head is not None
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        network = ProbedBackbone(model, head, image=64)
        torch.testing.assert_close(network(images), linear(model(images)))
        assert network.double()(images.double()).dtype == torch.float64
