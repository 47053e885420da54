"""`mixlab auc`: scores with their baselines, studies, and what could not be read."""

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import command
from look_runs import make_run
from PIL import Image

from mixlab.cli import main
from mixlab.errors import InputError
from mixlab.run import RunDirectory

auc = command("auc")


def test_studies_are_scored_stored_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vit, vim = make_run(tmp_path / "vit", "vit_tiny"), make_run(tmp_path / "vim", "dinovim_tiny")
    arguments = [str(vit), str(vim), "--data", "shapes:n=12", "--study", "model", "layer", "head"]
    main(["auc", *arguments, "--run", str(tmp_path / "out"), "--json", "-"])
    printed = json.loads(capsys.readouterr().out)
    assert set(printed["results"]) == {"model", "layer", "head"}
    run = RunDirectory.open(tmp_path / "out")
    row = run.results()["auc_model"]["rows"][0]
    assert {"auc", "raw_auc", "centre_prior", "above_centre_prior", "untrained", "above_untrained"} <= set(row)
    assert row["training"] == "dino"
    raw = run.arrays("auc_model")["vit"][:, 0, 0]
    normalised = np.maximum(raw, 1 - raw)
    assert row["auc"]["mean"] == pytest.approx(np.nanmean(normalised))
    assert len(run.results()["auc_layer"]["rows"]) == 4
    figures = {path.name for path in (tmp_path / "out" / "figures").iterdir()}
    assert figures == {"auc_model.svg", "auc_layer.svg", "auc_head.svg", "auc_roc.svg"}


def test_mismatched_and_broken_files_are_named_and_the_rest_is_scored(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    images, masks = tmp_path / "set" / "images", tmp_path / "set" / "masks"
    images.mkdir(parents=True)
    masks.mkdir()
    for index in range(6):
        pixels = np.random.default_rng(index).integers(0, 255, (48, 64, 3), dtype=np.uint8)
        mask = np.zeros((48, 64), dtype=np.uint8)
        mask[10:40, 12:40] = 255 if index else 0  # the first has no foreground
        Image.fromarray(pixels).save(images / f"{index}.jpg")
        Image.fromarray(mask).save(masks / f"{index}.png")
    Image.fromarray(np.zeros((9, 90), dtype=np.uint8)).save(masks / "5.png")  # another shape
    Image.fromarray(pixels).save(images / "alone.jpg")
    vit = make_run(tmp_path / "vit", "vit_tiny")
    result = auc([str(vit)], data=str(tmp_path / "set"), twins=False)["results"]["model"]
    assert result["rows"][0]["auc"]["n"] == 4
    assert result["rows"][0]["auc"]["undefined"] == 1
    assert [Path(path).name for path in result["skipped"]] == ["5.png"]
    assert [Path(path).name for path in result["unpaired"]] == ["alone.jpg"]
    assert "1 of 5 images is left out for vit: no foreground" in capfd.readouterr().err

    for index in range(1, 6):
        (masks / f"{index}.png").unlink()
    with pytest.raises(InputError, match="no map of vit could be scored: at 64 px"):
        auc([str(vit)], data=str(tmp_path / "set"), run=tmp_path / "none")
    assert not [*(tmp_path / "none").rglob("*.json")], "a table of dashes is no result"


def test_a_study_on_a_second_data_set_or_view_stays_beside_the_first(tmp_path: Path) -> None:
    conv = make_run(tmp_path / "conv", "gatedconv_tiny")
    first = {"data": "shapes:n=3", "study": ("model", "map"), "twins": False}
    for call in (first, first | {"data": "shapes:n=4"}, first | {"fit": "crop"}, first):
        auc([str(conv)], **call)
    results = RunDirectory.open(conv).results()
    for study in ("model", "map"):
        stored = [results[f"auc_{study}{number}"] for number in ("", "_2", "_3")]
        assert [(found["data"], found["protocol"]["fit"]) for found in stored] == [
            ("shapes:n=3", "squash"), ("shapes:n=4", "squash"), ("shapes:n=3", "crop")
        ]  # fmt: skip
    assert len(results) == 6
    charts = {f"auc_{kind}{number}.svg" for kind in ("model", "roc", "map") for number in ("", "_2", "_3")}
    assert {path.name for path in (conv / "figures").iterdir()} == charts


def test_training_said_on_the_command_line_pairs_targets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    taught = make_run(tmp_path / "taught", "vit_tiny", training="supervised", seed=1)
    dino = make_run(tmp_path / "dino", "vit_tiny")
    for said in ((), ("taught=supervised", "dino=dino")):
        found = auc(
            [str(taught), str(dino)],
            data="shapes:n=4",
            study=("training",),
            training=said,
            twins=False,
            run=tmp_path / "o",
        )
        (comparison,) = found["results"]["training"]["comparisons"]
        assert (comparison["first"], comparison["second"], comparison["n"]) == ("dino", "taught", 4)
        found_none = comparison["difference"]["low"] <= 0 <= comparison["difference"]["high"]
        said = "cosine of dino minus cosine of taught"
        [line] = [line for line in capsys.readouterr().out.splitlines() if said in line]
        assert line.endswith(", not significant") is found_none


def test_probe_accuracies_stored_in_runs_are_correlated_with_scores(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"run{index}", "vit_tiny", seed=index) for index in range(4)]
    for index, run in enumerate(runs):
        record = {"metric": "probe_top1", "value": 0.5 + index / 10, "n": 100}
        RunDirectory.open(run).write_result("probe", {"measurements": [record]})
    found = auc([str(run) for run in runs], data="shapes:n=6", twins=False, run=tmp_path / "out")["results"]["model"]
    assert found["correlations"]["probe_accuracy"]["n"] == 4
    assert [row["probe_accuracy"] for row in found["rows"]] == [0.5, 0.6, 0.7, 0.8]


def test_many_networks_are_ranked_and_all_pairs_are_in_the_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Six networks once gave 60 lines. The twins are one network under two names: no pair of them differs."""
    runs = [f"{make_run(tmp_path / f'run{seed}', 'vit_tiny', seed=seed)}" for seed in range(3)]
    given = [*runs, f"{runs[0]}=twin", f"{make_run(tmp_path / 'conv', 'gatedconv_tiny')}"]
    found = auc(given, data="shapes:n=24", twins=False, run=tmp_path / "out")["results"]["model"]
    assert len(found["comparisons"]) == 3 * 10 + 6  # by the default map, norm and isolation; mixing_mean of four
    *_, table = capsys.readouterr().out.split("map\tmodel\tAUC\tminus the next\tsignificantly above\n")
    lines = [line.split("\t") for line in table.splitlines()]
    assert len(lines) == 3 * 5 + 4
    norms = [line for line in lines if line[0] == "norm"]
    assert [float(line[2]) for line in norms] == sorted((float(line[2]) for line in norms), reverse=True)
    assert norms[-1][3:] == ["-", "-"]
    pairs = {frozenset((one["first"], one["second"])): one for one in found["comparisons"] if one["map"] == "norm"}
    for place, (_, label, _, following, above) in enumerate(norms[:-1]):
        gap = pairs[frozenset((label, norms[place + 1][1]))]["difference"]
        assert float(following.split(" ± ")[0]) == pytest.approx(abs(gap["mean"]), abs=6e-4)
        below = [norm[1] for norm in norms[place + 1 :]]
        sure = [each for each in below if not _not_significant(pairs[frozenset((label, each))])]
        assert above == ("all below" if sure == below and len(below) > 1 else ", ".join(sure) or "none")
        assert {label, *sure} != {"run0", "twin"}


def _not_significant(one: dict) -> bool:
    return one["difference"]["low"] <= 0 <= one["difference"]["high"]


def test_probes_on_single_registers_are_correlated_with_their_scores(tmp_path: Path) -> None:
    reg = make_run(tmp_path / "reg", "dinomambareg_tiny", num_registers=4)
    records = [{"metric": "probe_top1", "value": v, "n": 50, "register": r} for r, v in enumerate((0.2, 0.6, 0.5, 0.3))]
    RunDirectory.open(reg).write_result("probe", {"measurements": records})
    found = auc([str(reg)], data="shapes:n=6", study=("register",), twins=False)["results"]["register"]
    assert found["correlations"]["reg"]["n"] == 4
    assert [row["index"] for row in found["rows"]] == [0, 1, 2, 3]
    assert found["rows"][0]["probe_accuracy"] is None


def test_unknown_studies_and_sets_without_masks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"study .heads. does not exist; choose from model, size"):
        auc(["vit_tiny"], study=("heads",), run=tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="holds no masks in a known layout"):
        auc(["vit_tiny"], data=str(tmp_path / "empty"), run=tmp_path / "out")
