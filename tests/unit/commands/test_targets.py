"""TARGET: what it may name, what it is called, and weights that are the same in every call."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from command_line import command
from look_runs import make_run

import mixlab
from mixlab.analysis.claims import Evidence
from mixlab.cli import main
from mixlab.commands.output import open_run
from mixlab.evaluation.target import label_of, load_target, load_targets, split_target
from mixlab.run import RunDirectory

knn = command("knn")
maps = command("maps")
auc = command("auc")

NAME = "timm/vit_tiny_patch16_224"
SMALL = ("--set", "batch=8", "--set", "epochs=1", "--set", "knn.every_epochs=0", "--device", "cpu")


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_a_tag_of_released_weights_alone_brings_none() -> None:
    with pytest.warns(UserWarning, match="is untrained: its tag names released weights, but only --weights FILE"):
        assert load_target(f"{NAME}.augreg_in21k", device="cpu").training == "untrained"


@pytest.mark.parametrize("name", [NAME, "dinovim_tiny"])
def test_an_untrained_target_comes_from_its_seed_and_leaves_the_random_state(name: str) -> None:
    before = torch.random.get_rng_state()
    first, again, other = (load_target(name, seed=seed).backbone for seed in (3, 3, 4))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert same(first, again) and not same(first, other)
    assert same(first, other.twin(3))


def test_one_network_is_one_subject_whatever_it_is_called_and_another_architecture_is_another(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "linearvit_tiny", feature_map="softmax")
    here, renamed = (load_target(text, device="cpu").subject for text in (str(run), f"{run}=other"))
    assert here.identity == renamed.identity and here.label != renamed.label
    elu = make_run(tmp_path / "elu", "linearvit_tiny", feature_map="elu")  # the same weights, read in another way
    assert load_target(str(elu), device="cpu").subject.identity != here.identity


def test_the_seed_of_auc_chooses_the_untrained_target(tmp_path: Path) -> None:
    figures = [
        auc(["vit_tiny"], data="shapes:n=2", image=32, seed=seed, map="cosine", twins=False, run=tmp_path)["results"][
            "model"
        ]["rows"][0]["auc"]
        for seed in (0, 0, 1)
    ]
    assert figures[0] == figures[1] != figures[2]


def test_a_label_follows_the_last_equals_sign_unless_all_of_it_is_a_path(tmp_path: Path) -> None:
    run = make_run(tmp_path / "lr=3", "vit_tiny")
    assert split_target("vit_tiny") == ("vit_tiny", "") and split_target("vit_tiny=a") == ("vit_tiny", "a")
    assert split_target(str(run)) == (str(run), "") and label_of(str(run)) == "lr=3"
    assert split_target(f"{run}=mine") == (str(run), "mine") and label_of(f"{run}=mine") == "mine"
    (subject,) = load_targets([str(run)], training=["lr=3=supervised"], device="cpu")
    assert (subject.label, subject.training) == ("lr=3", "supervised")
    assert open_run(None, [str(run)]).path == open_run(None, [f"{run}=mine"]).path == run
    assert knn(str(run), data="shapes:n=20", training="dino", workers=0, device="cpu")["subject"]["label"] == "lr=3"
    assert (run / "results" / "knn_lr_3.json").is_file()


def test_a_folder_that_is_no_run_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    with pytest.raises(FileNotFoundError, match="photos is not a run directory"):
        knn(str(tmp_path / "photos"), data="shapes:n=20", workers=0, device="cpu")
    assert not [*(tmp_path / "photos").iterdir()]


def test_a_name_without_weights_cannot_be_called_trained() -> None:
    for load in (
        lambda: knn("vit_tiny", data="shapes:n=20", training="dinov2", device="cpu"),
        lambda: load_targets(["vit_tiny=a", "dinovim_tiny=b"], training=["b=dinov2"], device="cpu"),
    ):
        with pytest.raises(ValueError, match="has no weights and is untrained; add --weights"):
            load()
    assert load_targets(["vit_tiny"], training=["vit_tiny=untrained"], device="cpu")[0].training == "untrained"


def test_an_exported_file_is_a_target_with_weights_of_its_own(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "vit_tiny")
    file = shutil.copy(run / "weights.safetensors", tmp_path / "sup.safetensors")
    target = load_target(str(file))
    assert target.label == "sup" and target.weights == str(file)
    assert same(target.backbone, load_target(str(run)).backbone)
    with pytest.raises(ValueError, match="is a file and has weights of its own"):
        load_target(str(file), weights="other.safetensors")


def test_two_sets_of_data_leave_two_results_for_the_ledger(tmp_path: Path) -> None:
    run = make_run(tmp_path / "vit", "vit_tiny")
    for data in ("shapes:n=20", "shapes:n=25", "shapes:n=20"):
        knn(str(run), data=data, workers=0, device="cpu")
        auc([str(run)], data=data, num_images=2, twins=False, device="cpu")
    results = RunDirectory.open(run).results()
    assert set(results) == {f"{kind}{of}" for kind in ("knn_vit", "auc_model") for of in ("", "_2")}
    assert {path.stem for path in (run / "figures").iterdir()} == {
        f"auc_{kind}{of}" for kind in ("model", "roc") for of in ("", "_2")
    }
    found = Evidence.from_runs([run]).select("knn_top1", keep=lambda m: m["k"] == 10)
    assert sorted(measurement["data"] for measurement in found) == ["shapes:n=20", "shapes:n=25"]


@pytest.mark.parametrize("command", [["pretrain", "dino_vit_tiny64"], ["train", "supervised_vit_tiny64"]])
def test_a_stopped_run_is_read_from_its_checkpoint_as_it_would_be_exported(command: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert main([*command, "--data", "shapes:n=24,size=64", "--run", str(run), *SMALL]) == 0
    (run / "weights.safetensors").rename(tmp_path / "exported.safetensors")
    exported = mixlab.model_from_file(tmp_path / "exported.safetensors")
    assert same(load_target(str(run)).backbone, exported)
    assert main(["export", str(run), "--out", str(tmp_path / "again.safetensors")]) == 0
    assert same(mixlab.model_from_file(tmp_path / "again.safetensors"), exported)
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(FileNotFoundError, match=r"weights.safetensors is gone; copy that file from where it was"):
        load_target(str(run))
    (run / "results" / "training.json").unlink()
    with pytest.raises(FileNotFoundError, match="run the same command again to finish it"):
        load_target(str(run))


def test_measurements_that_are_none_are_named_by_claims_and_maps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run", "vit_tiny")
    RunDirectory.open(run).write_result("knn", {"measurements": 5})
    for name in ("claims", "maps"):
        assert main([name, str(run)]) == 1
        assert "knn.json: measurements must be a list of records, got 5; remove it" in " ".join(
            capsys.readouterr().err.replace("\n", "").split()
        )


def test_a_place_that_cannot_be_written_to_is_named_as_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text(json.dumps({}))
    with pytest.raises(OSError, match=r"cannot write to .*file/run .*choose another --run"):
        maps(["vit_tiny"], image=32, run=tmp_path / "file" / "run")
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write anywhere
    with pytest.raises(PermissionError, match=r"look is not writable; choose another --run"):
        open_run(tmp_path / "look", ["vit_tiny"])
