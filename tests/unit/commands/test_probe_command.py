"""`mixlab probe` from a run to tables, results and a head that can be used again."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import command
from look_runs import make_run

from mixlab.cli import main
from mixlab.evaluation import paper
from mixlab.evaluation.probe.heads import Head
from mixlab.evaluation.target import load_target
from mixlab.recipes import find_recipe
from mixlab.run import RunDirectory, measurements_of
from mixlab.run.codec import to_json
from mixlab.training.settings import override
from tests.unit.backbones.released_dino_vit import random_vit_state

probe = command("probe")

DATA = "shapes:n=60,size=32"
RATES = (2.5e-4, 5e-4, 1e-3, 2e-3)  # the paper's
QUICK = ["--data", DATA, "--image", "32", "--epochs", "2", "--batch", "20", "--workers", "0", "--device", "cpu"]


def test_the_whole_ablation_comes_from_one_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vim = make_run(tmp_path / "vim", "dinovim_tiny", depth=4, state=8)
    main(["probe", f"{vim}=vim", *QUICK, "--lrs", *map(str, RATES), "--mode", "both", "--json", "-"])
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    assert result == RunDirectory.open(vim).results()["probe"]
    assert set(result["modes"]) == {"augmented", "cached"}
    for found in result["modes"].values():
        assert len(found["heads"]) == 4 * 5 * 4 * 4
        best = found["best"]
        assert best["top1"] == max(head["top1"] for head in found["heads"]) and best["n"] == 60
        assert best["low"] <= best["top1"] <= best["high"]
        assert {name: len(rows) for name, rows in found["tables"].items()} == {
            "blocks": 4, "strategy": 5, "lr": 4, "weight_decay": 4
        }  # fmt: skip
        assert all(row["paper"] is None for row in found["heads"])  # the paper did not probe drawn shapes
    assert result["difference"]["same_head"]["n"] == 60
    assert result["source"] == "branch" and result["provenance"]["seed"] == 0
    assert "cached minus augmented" in printed.err and "strategy" in printed.err
    bits = RunDirectory.open(vim).arrays("probe")["cached_correct_bits"]
    counts = np.unpackbits(bits, axis=1)[:, :60].sum(1)
    assert counts.tolist() == [head["correct"] for head in result["modes"]["cached"]["heads"]]
    for mode, found in result["modes"].items():
        best, *cells = (m for m in measurements_of(result, "here") if m["mode"] == mode)
        assert best["blocks"] is None and best.subject.training == "dino" and best.value == found["best"]["top1"]
        assert len(cells) == 4 * 5 + len(paper.ABLATIONS)
        for m in cells:  # each at its best learning rate and weight decay, then single heads of the ablations
            protocol = m.protocol
            cell = [
                head["top1"]
                for head in found["heads"]
                if (head["blocks"], head["strategy"]) == (protocol.blocks, protocol.strategy)
                and head["lr"] in protocol.lrs
                and head["weight_decay"] in protocol.weight_decays
            ]
            assert m.value == max(cell) and len(cell) == len(protocol.lrs) * len(protocol.weight_decays)
    assert (vim / "probe" / "augmented" / "best_head.safetensors").is_file()


def test_a_single_head_is_the_same_alone_and_in_the_grid(tmp_path: Path) -> None:
    vim = make_run(tmp_path / "vim", "dinovim_tiny", depth=4, state=8)
    options = {"data": DATA, "image": 32, "epochs": 2, "batch": 20, "workers": 0, "device": "cpu", "mode": "cached"}
    whole = probe(str(vim), **options)["modes"]["cached"]["heads"]
    alone = probe(
        str(vim), **options, blocks=(3,), strategies=("cls+max",), lrs=(1e-3,), weight_decays=(5e-3,), name="alone"
    )["modes"]["cached"]["heads"]
    assert len(alone) == 1
    twin = next(head for head in whole if all(head[key] == alone[0][key] for key in Head._fields))
    assert twin == alone[0]


def test_light_heavy_and_few_labels_choose_their_heads_and_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vim = make_run(tmp_path / "vim", "dinovim_tiny", depth=4, state=8)
    options = {"data": DATA, "image": 32, "epochs": 1, "workers": 0, "device": "cpu", "mode": "cached", "lrs": RATES}
    heavy = probe(str(vim), **options, heads="heavy", label_share=0.1)
    found = heavy["modes"]["cached"]
    assert {(head["blocks"], head["strategy"]) for head in found["heads"]} == {(4, "cls")}
    assert len(found["heads"]) == 16
    assert found["num_train"] == found["batch"] == 10  # one image of each class; the batch is cut to fit
    probe(str(vim), **options, heads="heavy", label_share=0.2)
    assert "holds a probe with other settings (label_share was 0.1, is 0.2" in " ".join(capsys.readouterr().err.split())
    assert {path.name for path in (vim / "results").glob("*.json")} == {"probe.json", "probe_2.json"}


def test_the_papers_figures_stand_only_where_the_setting_is_the_papers() -> None:
    setting = paper.ProbeSetting(
        model="dinovim_small", pretrained=True, num_classes=1000, num_train=1_281_167, epochs=100, augmented=True
    )
    head = {"blocks": 4, "strategy": "cls", "lr": 2e-3, "weight_decay": 1e-3}
    assert paper.probe_figure(setting, **head) == pytest.approx(0.774)
    assert paper.probe_figure(setting, **{**head, "blocks": 2}) is None
    assert paper.best_probe_figure(setting, width=2048, strategy="cls") == pytest.approx(0.774)
    assert paper.best_probe_figure(setting, width=1536, strategy="cls") == pytest.approx(0.767)
    vit = replace(setting, model="vit_base")
    assert paper.best_probe_figure(vit, width=1536, strategy="cls+mean") == pytest.approx(0.782)
    assert paper.best_probe_figure(vit, width=1536, strategy="cls") is None  # as many features, but not DINO's
    for change in ({"num_train": 12_811}, {"epochs": 10}, {"augmented": False}, {"pretrained": False}):
        other = replace(setting, **change)
        assert paper.probe_figure(other, **head) is None
        assert paper.best_probe_figure(other, width=2048, strategy="cls") is None
    assert paper.robustness_figure("dinovim_base", "a") == pytest.approx(0.142)
    assert paper.robustness_figure("dinovim_base", "val") is None and paper.robustness_figure("x", "a") is None


def pretraining_of(name: str, **changes: Any) -> dict[str, Any]:
    """The config.json of a pretraining on ImageNet, by the recipe unless changed."""
    settings = [f"{setting}={value}" for setting, value in changes.items()]
    config = override(find_recipe(f"dino_{name}"), settings)
    steps = 1_281_167 // config.batch
    return {"settings": to_json(config), "steps_per_epoch": steps, "total_steps": config.total_steps(steps)}


def test_only_the_papers_own_pretraining_brings_its_figures() -> None:
    published = paper.pretrained_as_published
    assert published("dinovim_base", pretraining_of("dinovim_base"))
    for change in ({"epochs": 10}, {"method.num_local": 2}, {"batch": 256}, {"model.patch": 8}):
        assert not published("dinovim_base", pretraining_of("dinovim_base", **change)), change
    assert not published("dinovim_base", {**pretraining_of("dinovim_base"), "steps_per_epoch": 4})  # of a few images
    assert not published("dinovim_base", {}) and not published("vit_base", pretraining_of("vit_base"))
    assert published("vit_base", pretraining_of("vit_base", epochs=400))  # the paper's ViT are DINO's own, of 400 ...
    assert published("vit_small", pretraining_of("vit_small", epochs=800))  # ... and 800 epochs


def test_released_checkpoints_are_known_by_their_epochs(tmp_path: Path) -> None:
    state = random_vit_state(dim=192, depth=12, side=14, patch=16)
    state = {f"backbone.{name}": value for name, value in state.items()}
    for epoch, expected in ((100, True), (40, False), (None, False)):
        torch.save({"teacher": state, **({} if epoch is None else {"epoch": epoch})}, tmp_path / "checkpoint.pth")
        weights = str(tmp_path / "checkpoint.pth")
        assert load_target("vit_tiny", weights=weights, training="dino", device="cpu").published == expected
    assert not load_target("vit_tiny", weights=weights, device="cpu").published


def test_a_backbone_without_a_class_token_is_probed_by_what_it_has(tmp_path: Path) -> None:
    conv = make_run(tmp_path / "conv", "gatedconv_tiny")
    result = probe(
        str(conv), data=DATA, image=32, epochs=1, batch=20, workers=0, device="cpu", mode="cached", lrs=(1e-3,)
    )
    strategies = {head["strategy"] for head in result["modes"]["cached"]["heads"]}
    assert strategies == {"output", "mean", "max"} and result["source"] == "stream"


def test_a_name_that_is_taken_or_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    for name in ("results", "../elsewhere", ""):
        with pytest.raises(ValueError, match="cannot name a folder of the run"):
            probe("vit_tiny", data=DATA, name=name, run=tmp_path, device="cpu")
