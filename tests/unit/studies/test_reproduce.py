"""`mixlab reproduce`: every item of both papers, its plan on true folders, its run on stand-ins, and its document."""

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import timm
import torch
from command_line import command, parse_command
from in_process import here
from reproduce_root import draw_root

import mixlab
from mixlab.analysis.cost import count_macs, on_meta
from mixlab.backbones.zoo import ZOO, ZooEntry
from mixlab.evaluation import paper
from mixlab.run import RunDirectory
from mixlab.studies.reproduce import ITEMS, Item, ItemSetting, find_items
from mixlab.studies.reproduce.data_sets import DATA_SETS
from mixlab.studies.reproduce.document import page
from mixlab.studies.reproduce.hours import GMACS, MEASURED, estimate_hours
from mixlab.studies.reproduce.items import PaperFigure, Reading, difference
from mixlab.studies.reproduce.listing import ON_PAPER, hours_of
from mixlab.studies.reproduce.mambaout import QUOTED
from mixlab.studies.reproduce.mambaout_tables import TABLE_1, TABLE_2, TABLE_3
from mixlab.studies.reproduce.readings import score_gap
from mixlab.studies.reproduce.run import plan_item
from tests.unit.backbones.released_stages import staged_state

ROOT = Path(__file__).parents[3]
reproduce = command("reproduce")
EVERYTHING = os.environ.get("MIXLAB_TEST_REPRODUCE") == "1"


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("mixlab.studies.workers.worker_pool", here)
    monkeypatch.setattr(sys, "argv", ["mixlab"])
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))
    yield


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_root(tmp_path_factory.mktemp("DATA"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared: items train a network once."""
    return tmp_path_factory.mktemp("reproduced") / "run"


@pytest.mark.parametrize("names", [("first", "second"), ("better", "worse")], ids=["", "an older result"])
def test_differences_of_scores_are_read_from_either_side(names: tuple[str, str], tmp_path: Path) -> None:
    found = {"mean": -0.2, "low": -0.3, "high": -0.1, "n": 17, "undefined": 3}
    by_another_map = found | {"mean": 0.4}
    gaps = [{**dict(zip(names, "ab", strict=True)), "difference": gap} for gap in (found, by_another_map)]
    RunDirectory(tmp_path / "fig4f").write_result("auc_model", {"comparisons": gaps})
    setting = ItemSetting(run=tmp_path, data={})
    assert score_gap("fig4f", "model", "a", "b")(setting) == Reading(-0.2, -0.3, -0.1, 17)
    assert score_gap("fig4f", "model", "b", "a")(setting) == Reading(0.2, 0.1, 0.3, 17)
    assert score_gap("fig4f", "model", "a", "c")(setting) is None


def test_every_table_and_figure_of_both_papers_is_an_item() -> None:
    first = [f"table{n}" for n in range(1, 7)] + [f"fig{n}" for n in range(1, 14) if n != 4]
    first += [f"fig4{panel}" for panel in "abcdef"] + ["ranks"]
    second = [f"table{n}" for n in range(1, 6)] + ["fig1a", "fig1b", "fig2", "fig3a", "fig3b", "fig4"]
    assert set(ITEMS) == {f"dino-mamba-{name}" for name in first} | {f"mambaout-{name}" for name in second}
    drawings = {name for name, item in ITEMS.items() if item.is_drawing}
    assert drawings == {
        *(f"dino-mamba-fig{n}" for n in (2, 3, 13)),
        *(f"mambaout-fig{n}" for n in ("1a", "2", "3a", "4")),
    }
    for item in ITEMS.values():
        assert item.is_drawing or item.cells or item.settings or item.work(ON_PAPER, item.available(ON_PAPER))


def figures(name: str) -> dict[tuple[str, str], float | None]:
    found = {(cell.row, cell.column): cell.paper for cell in ITEMS[name].cells}
    assert len(found) == len(ITEMS[name].cells), "two figures of one name"
    return found


def test_published_figures_are_those_of_the_papers() -> None:
    assert (len(TABLE_1), len(TABLE_2), len(TABLE_3)) == (76, 36, 49)
    assert len([c for c in ITEMS["dino-mamba-table1"].cells if c.column == "top-1, %"]) == len(paper.TABLE_1) == 9
    assert figures("dino-mamba-table1")["DinoMamba-Reg-B, heavy head", "top-1, %"] == 78.5
    assert figures("dino-mamba-table2") == {
        ("LinearViT-B", "mIoU, %"): 29.2, ("LinearViT-B", "mAcc, %"): 38.7, ("DinoVim-B", "mIoU, %"): 38.0,
        ("DinoVim-B", "mAcc, %"): 47.1, ("ViT-B", "mIoU, %"): 43.2, ("ViT-B", "mAcc, %"): 52.5,
    }  # fmt: skip
    assert len(figures("dino-mamba-table3")) == 36
    assert figures("dino-mamba-table3")["DinoVim-B", "masks AP_large"] == 55.0
    assert figures("dino-mamba-table4")["ViT-B", "r, %"] == 38.0
    assert list(figures("dino-mamba-table5").values()) == [71.8, 75.6, 76.7, 77.2, 75.7, 76.4, 77.3, 77.1, 77.2, 77.4]
    assert figures("dino-mamba-table6") == {
        ("cls", "top-1, %"): 77.2, ("mean", "top-1, %"): 75.9, ("max", "top-1, %"): 74.6,
        ("cls+mean", "top-1, %"): 76.5, ("cls+max", "top-1, %"): 76.3,
    }  # fmt: skip
    assert figures("mambaout-fig3b")["ViT-Ti, causal", "top-1, %"] == 70.6
    table1, table2, table3 = (figures(f"mambaout-table{number}") for number in (1, 2, 3))
    assert table1["MambaOut-Small", "top-1, %"] == 84.1 and table1["VMambaV9-T", "MACs, G"] == 4.9
    assert table2["MambaOut-Tiny", "masks AP"] == 41.0 and ("Swin-B", "boxes AP50") not in table2
    assert (
        table3["PlainMamba-L2", "mIoU, multi-scale"] == 46.8 and ("PlainMamba-L2", "mIoU, single-scale") not in table3
    )
    assert all(timm.is_model(name) for name in QUOTED.values())


def test_counted_sizes_are_the_published_ones_within_rounding_and_settings_are_the_same() -> None:
    setting = ItemSetting(run=Path("nowhere"), data={})
    for cell in ITEMS["mambaout-table4"].cells[:4]:  # femto and tiny
        ours = cell.read(setting)
        assert ours is not None and abs(cell.unit * ours.value - (cell.paper or 0)) < 0.08, cell
    settings = ITEMS["mambaout-table5"].settings
    assert settings is not None and len(settings()) == 19
    assert all(ours == theirs for _, ours, theirs in settings())


def test_speeds_are_those_of_the_experiments_and_hours_follow_the_formula() -> None:
    text = (ROOT / "EXPERIMENTS.md").read_text(encoding="utf-8")
    for speed in MEASURED.values():
        heading = speed.source.partition(": ")[0]
        assert re.search(rf"^### .*{re.escape(heading)}$", text, re.MULTILINE), heading
    for number in ("447.7", "618.6", "1,795", "2,825", "2,899", "148", "58.4", "59.6", "55.7", "47.6", "30.1", "30.2"):
        assert number in text
    known = estimate_hours("dino", "dinovim_base", 1_281_167 * 100)
    assert known is not None and known.hours == pytest.approx(1_281_167 * 100 / 447.7 / 3600) == pytest.approx(
        79.5, abs=0.1
    )
    small = estimate_hours("supervised", "vit_tiny", 3600 * 2825)
    assert small is not None and small.hours == pytest.approx(GMACS["vit_tiny"] / GMACS["vit_base"])
    assert "by multiply-accumulates" in small.basis
    assert estimate_hours("dino", "nothing_known", 1) is None
    for name in ("vit_tiny", "mambaout_femto"):
        assert count_macs(on_meta(name), 224) / 1e9 == pytest.approx(GMACS[name], abs=0.06)
    training, then = hours_of(ITEMS["dino-mamba-table2"].plan(ON_PAPER))
    epochs = 1_281_167 / 3600
    linear = 618.6 * GMACS["vit_base"] / GMACS["linearvit_base"]
    assert training == pytest.approx(epochs * (100 / 447.7 + 400 / 618.6 + 100 / linear))
    assert then == pytest.approx(160_000 * 16 / 3600 * (1 / 55.7 + 1 / 58.4 + 1 / 59.6))


@pytest.mark.parametrize("item", [item for item in ITEMS.values() if item.networks], ids=lambda item: item.name)
def test_an_item_plans_its_commands_on_the_true_folders(item: Item, root: Path, tmp_path: Path) -> None:
    plan = plan_item(item, root=root, run=tmp_path)
    assert not plan.problems
    done: set[str] = set()
    for step in plan.steps:
        assert step.name not in done and set(step.needs) <= done, step  # each after what it needs
        done.add(step.name)
        assert step.result.is_relative_to(tmp_path)
        texts = [text for text in step.arguments if "DATA/" in text and "/DATA" not in str(root)]
        assert not texts, "a folder was not filled in"
    available = item.available(plan.setting)
    assert [step.name for step in plan.steps if step.name.startswith("train ")] == [f"train {n.key}" for n in available]
    lacking = [network for network in item.networks if network not in available]
    for network in lacking:
        assert any(network.title in note for note in plan.notes), network
        assert not network.exists or network.training != "dino"


def test_commands_at_both_scales_are_ones_that_mixlab_knows(root: Path, tmp_path: Path) -> None:
    seen: set[tuple[str, ...]] = set()
    for item in ITEMS.values():
        for step in plan_item(item, root=root, run=tmp_path, scale="tiny", device="cpu").steps:
            name, *arguments = (*step.arguments, *step.here)
            form = (name, *(text for text in arguments if text.startswith("--")))
            if step.name.startswith("arrange") or form in seen:
                continue
            seen.add(form)
            parse_command(name, arguments)
    assert len(seen) >= 8


def test_a_backbone_of_the_future_runs_once_it_is_in_the_zoo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    item = ITEMS["mambaout-table1"]
    name = "plainmamba_l1"
    monkeypatch.delitem(ZOO, name, raising=False)
    assert any(f"the zoo has no {name} yet" in note for note in plan_item(item, root=None, run=tmp_path).notes)
    monkeypatch.setitem(ZOO, name, ZooEntry("a test", "mambaout_femto"))
    weights = tmp_path / "released.pth"
    weights.touch()
    given = {"root": None, "run": tmp_path, "weights": {name: str(weights)}, "only": (name,)}
    [step] = plan_item(item, **given).steps
    assert step.arguments[:4] == ("robust", f"{name}={name}-supervised", "--weights", str(weights))
    steps = [step.arguments[:4] for step in plan_item(ITEMS["mambaout-table2"], **given).steps]
    assert steps[0] == ("export", name, "--weights", str(weights)) and steps[1][0] == "detect"


def test_differences_are_in_the_papers_unit_and_keep_their_interval() -> None:
    cell = PaperFigure("row", "top-1, %", 78.1, lambda setting: None)
    found = difference(Reading(0.779, 0.775, 0.783, 50_000), cell)
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((-0.2, -0.6, 0.2))
    assert difference(Reading(0.5), PaperFigure("row", "AUC", None, lambda setting: None, said="above 0")) is None


def test_items_run_on_stand_ins_and_ours_stands_beside_the_paper(
    root: Path, run: Path, in_process: None, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["dino-mamba-table2", "dino-mamba-table4", "dino-mamba-fig8"]
    call = {"root": root, "run": run, "scale": "tiny", "device": "cpu", "only": "dinovim_base"}
    found = reproduce(names, **call)["items"]
    rows = {(row["row"], row["column"]): row for row in found["dino-mamba-table2"]["rows"]}
    stored = json.loads((run / "dinovim_base-dino-ade20k" / "results" / "segmentation.json").read_text())
    ours = rows["DinoVim-B", "mIoU, %"]
    assert ours["ours"] == pytest.approx(100 * stored["miou"]) and ours["n"] == 2 and ours["paper"] == 38.0
    assert ours["difference"] == pytest.approx(100 * stored["miou"] - 38.0)
    assert rows["ViT-B", "mIoU, %"]["ours"] is None
    shifted = {row["column"]: row for row in found["dino-mamba-table4"]["rows"] if row["row"] == "DinoVim-B"}
    assert {column: row["n"] for column, row in shifted.items()} == {
        f"{name}, %": 6 if name == "real" else 3 for name in paper.TABLE_4_COLUMNS
    }
    [token] = found["dino-mamba-fig8"]["rows"]
    assert token["ours"] is not None and token["said"] == "above 0"
    assert (run / "dino-mamba-fig8" / "figures" / "auc_roc_token.svg").is_file()
    text = (run / "report.html").read_text(encoding="utf-8")
    assert "Our results beside the papers" in text and "Dino-Mamba, Table 4" in text and "Tiny scale" in text

    capsys.readouterr()
    again = reproduce(names[:1], **call)["items"]["dino-mamba-table2"]
    assert "steps are done already" in capsys.readouterr().err
    assert [row["ours"] for row in again["rows"]] == [row["ours"] for row in found["dino-mamba-table2"]["rows"]]
    (run / "report.html").write_text("changed by hand, as demo and study also overwrite")
    looked = reproduce(names[1:2], run=run)["items"]["dino-mamba-table4"]
    assert "Dino-Mamba, Table 4" in (run / "report.html").read_text(encoding="utf-8")
    assert [row["ours"] for row in looked["rows"]] == [row["ours"] for row in found["dino-mamba-table4"]["rows"]]
    with pytest.raises(ValueError, match=r"begun with other settings \(scale was 'tiny', is 'full'\)"):
        reproduce(names[:1], **(call | {"scale": "full"}))


def test_released_weights_replace_a_training(root: Path, run: Path, in_process: None, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = mixlab.create_model("vit_base", dim=32, depth=2, image=32, patch=8, head_dim=16)
    mixlab.save_weights(model, tmp_path / "released.safetensors")
    with pytest.raises(ValueError, match=r"no item has a network vit_huge"):
        reproduce(["dino-mamba-fig4f"], root=root, run=run, weights="vit_huge=x", scale="tiny")
    with pytest.raises(FileNotFoundError, match=r"vit_base=nowhere: there is no such file"):
        reproduce(["dino-mamba-fig4f"], root=root, run=run, weights="vit_base=nowhere", scale="tiny")
    plan = plan_item(
        ITEMS["dino-mamba-fig4f"], root=root, run=tmp_path / "run", only=("vit_base",),
        weights={"vit_base": str(tmp_path / "released.safetensors")},
    )  # fmt: skip
    assert [step.arguments[0] for step in plan.steps] == ["pair-masks", "export", "auc"]
    assert "imagenet" not in ITEMS["dino-mamba-fig4f"].needs(plan.setting, ("vit_base",))
    assert "vit_base-dino=dino" in plan.steps[-1].arguments


def test_a_released_classifier_is_scored_on_the_sorted_validation_images(
    root: Path, in_process: None, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    network = timm.create_model("mambaout_femto").eval()
    torch.save(network.state_dict(), tmp_path / "released.pth")
    call = {"root": root, "run": tmp_path / "run", "only": "mambaout_femto", "device": "cpu"}
    found = reproduce(["mambaout-fig1b"], weights=f"mambaout_femto={tmp_path / 'released.pth'}", **call)
    rows = {(row["row"], row["column"]): row for row in found["items"]["mambaout-fig1b"]["rows"]}
    score = rows["MambaOut-Femto", "top-1, %"]
    assert score["n"] == 6 and score["paper"] == 78.9 and score["low"] is not None
    assert rows["MambaOut-Femto", "parameters, M"]["ours"] == pytest.approx(7.3, abs=0.05)
    key = "mambaout_femto-supervised"
    stored = json.loads((tmp_path / "run" / key / "results" / f"robust_{key}.json").read_text())
    assert stored["view"] == {"size": 224, "crop_share": 1.0, "fit": "crop"}  # MambaOut's own


def test_networks_that_the_papers_quote_come_from_released_weights(tmp_path: Path) -> None:
    item, run = ITEMS["dino-mamba-fig4a"], tmp_path / "run"
    names = {network.model for network in item.available(ItemSetting(run=run, data={}))}
    assert names == {"vit_small", "vit_base", "dinovim_tiny", "dinovim_small", "dinovim_base", "dinomambareg_base"}
    shown = plan_item(item, root=None, run=run)
    assert sum("--weights vim_small=FILE; or train it by another (`mixlab train supervised_vim_small" in note
               for note in shown.notes) == 1  # fmt: skip
    released = [step.arguments for step in shown.steps if step.arguments[0] == "export"]
    assert [arguments[1:4] for arguments in released] == [
        (name, "--weights", "FILE") for name in ("vim_tiny", "vim_small", "vim_base", "mambareg_base")
    ]
    assert {"dinovim_small-dino", "vim_small-supervised"} <= {Path(text).name for text in shown.steps[-1].arguments}

    by_hand = run / "vim_small-supervised"  # someone trains it all the same
    by_hand.mkdir(parents=True)
    (by_hand / "config.json").touch()
    steps = {step.name: step.arguments for step in plan_item(item, root=None, run=run).steps}
    assert steps["train vim_small-supervised"][:2] == ("train", "supervised_vim_small")
    assert steps["train vim_tiny-supervised"][0] == "export"


def test_released_classifiers_are_scored_and_fine_tuned_as_they_were_published(tmp_path: Path) -> None:
    def steps(item: str, model: str) -> dict[str, tuple[str, ...]]:
        planned = plan_item(ITEMS[item], root=None, run=tmp_path, only=(model,)).planned
        return {one.step.arguments[0]: one.step.arguments for one in reversed(planned)}  # the first of each

    swin = "timm/swin_tiny_patch4_window7_224"
    accuracy = steps("mambaout-table1", swin)["robust"]
    assert accuracy[1].startswith(swin) and accuracy[accuracy.index("--crop-share") + 1] == "0.875"  # timm: 0.9
    assert steps("mambaout-table2", swin)["detect"][1:4] == (swin, "--weights", "FILE")
    assert "model.strict_img_size=false" in steps("mambaout-table3", swin)["segment"]
    assert "--crop-share" not in steps("mambaout-table1", "vmamba_tiny")["robust"]
    deit = plan_item(
        ITEMS["mambaout-table1"], root=None, run=tmp_path, only=("vit_tiny",), weights={"vit_tiny": __file__}
    )
    assert deit.steps[-1].arguments[1] == "vit_tiny=vit_tiny-supervised", "which keeps 224 of 256 px; timm's 0.9"
    assert mixlab.create_model("vit_tiny", depth=1).crop_share == 0.875


def test_a_released_visual_mamba_stands_beside_the_paper_and_reaches_the_ledger(
    root: Path, in_process: None, tmp_path: Path
) -> None:
    state = staged_state("efficientvmamba", [48, 96, 192, 384], [2, 2, 4, 2])
    draw = torch.Generator().manual_seed(0)
    state["classifier.head.weight"] = torch.randn(1000, 384, generator=draw) / 20
    state["classifier.head.bias"] = torch.zeros(1000)
    torch.save({"state_dict": {f"module.{key}": value for key, value in state.items()}}, tmp_path / "released.pth")
    call = {"root": root, "run": tmp_path / "run", "only": "efficientvmamba_tiny", "device": "cpu"}
    found = reproduce(["mambaout-table1"], weights=f"efficientvmamba_tiny={tmp_path / 'released.pth'}", **call)
    rows = {(row["row"], row["column"]): row for row in found["items"]["mambaout-table1"]["rows"]}
    score = rows["EfficientVMamba-T", "top-1, %"]
    assert score["n"] == 6 and score["paper"] == 76.5 and score["difference"] is not None
    place = tmp_path / "run" / "efficientvmamba_tiny-supervised"
    [one] = RunDirectory(place).measurements()
    assert (one.metric, one["model"], one["family"], one.n) == ("top1", "efficientvmamba_tiny", "mamba1", 6)
    data = str(tmp_path / "run" / "data" / "imagenet")  # as `mixlab train` of the same item is given it
    assert (one["data"], one["split"], one["training"]) == (data, "val", "supervised")


@pytest.mark.skipif(not EVERYTHING, reason="minutes: set MIXLAB_TEST_REPRODUCE=1")
@pytest.mark.parametrize("name", list(ITEMS))
def test_every_item_runs_on_stand_ins(name: str, root: Path, run: Path, in_process: None) -> None:
    item = ITEMS[name]
    if item.networks and not item.available(ItemSetting(run=run, data={}, scale="tiny")):
        pytest.skip("no backbone of this item is in the zoo yet")
    found = reproduce([name], root=root, run=run, scale="tiny", device="cpu")["items"][name]
    available = {network.key for network in item.available(ItemSetting(run=run, data={}, scale="tiny"))}
    for cell, row in zip(item.cells, found["rows"], strict=True):
        if cell.network is not None and cell.network.key in available and cell.paper is not None:
            assert row["ours"] is not None, row


def test_without_a_root_an_item_says_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    described = reproduce(["dino-mamba-table3"])["items"][0]
    told = "".join(capsys.readouterr())
    assert "needs COCO 2017 in DATA/coco" in told and "mixlab detect RUN/dinovim_base-dino --data DATA/coco" in told
    assert "42.8" in told and described["gpu_hours"]["then"] > 30
    listed = reproduce()["items"]
    told = "".join(capsys.readouterr())
    assert [one["item"] for one in listed] == list(ITEMS)
    assert all(name in told for name in ITEMS)


def test_released_weights_that_are_not_given_have_a_place_in_the_printed_commands() -> None:
    commands = [shlex.split(line) for line in reproduce(["dino-mamba-fig4c"])["items"][0]["commands"]]
    assert commands[0][1:5] == ["export", "timm/vit_small_patch14_dinov2", "--weights", "FILE"]
    assert commands[-1][1] == "auc" and {"model", "registers", "size"} <= set(commands[-1])


def test_of_several_items_those_that_lack_something_are_left_out(
    root: Path, in_process: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = reproduce(["dino-mamba-fig4c", "mambaout-table5"], root=root, run=tmp_path / "run")["items"]
    assert list(found) == ["mambaout-table5"] and len(found["mambaout-table5"]["settings"]) == 19
    assert "dino-mamba-fig4c is left out: " in capsys.readouterr().err


def test_an_item_that_needs_nothing_is_run_without_data(tmp_path: Path) -> None:
    rows = reproduce(["mambaout-table4"], run=tmp_path / "run")["items"]["mambaout-table4"]["rows"]
    sizes = {row["row"]: row["ours"] for row in rows if row["column"].startswith("parameters")}
    published = {"MambaOut-Femto": 7.3, "MambaOut-Tiny": 26.5, "MambaOut-Small": 48.5, "MambaOut-Base": 84.8}  # Table 4
    assert sizes == pytest.approx(published, abs=0.05)
    with pytest.raises(FileNotFoundError, match="add --root DATA"):
        reproduce(["mambaout-table4", "dino-mamba-table2"], run=tmp_path / "nothing")


def test_wrong_calls_name_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no item 'dino-mamba-tabel1'; did you mean dino-mamba-table1"):
        find_items(["dino-mamba-tabel1"])
    assert [item.name for item in find_items(["mambaout-fig1*"])] == ["mambaout-fig1a", "mambaout-fig1b"]
    with pytest.raises(ValueError, match="options need an item"):
        reproduce(root=tmp_path)
    with pytest.raises(ValueError, match=r"has no network vit_huge; (did you mean|it has) .*vit_"):
        reproduce(["dino-mamba-table2"], only="vit_huge")
    with pytest.raises(ValueError, match=r"--weights 'vit_base' must be NAME=FILE"):
        reproduce(["dino-mamba-table2"], weights="vit_base")
    with pytest.raises(
        ValueError, match=r"no network that can be had here.*--weights timm/vit_small_patch14_dinov2=FILE"
    ):
        reproduce(["dino-mamba-fig4c"], root=draw_root(tmp_path / "DATA"), run=tmp_path / "run")
    with pytest.raises(FileNotFoundError, match="is not a run directory: .* add --root DATA"):
        reproduce(["dino-mamba-table2"], run=tmp_path / "nothing")


def test_the_document_is_written_from_the_table() -> None:
    written = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8")
    assert written == page(), "docs/reproduce.md is old; run `python -m mixlab.studies.reproduce.document`"
    for item in ITEMS.values():
        assert f"`{item.name}`" in written
    assert all(f"`{data.place}`" in written for data in DATA_SETS.values())
    assert all(shlex.split(line) for line in written.splitlines() if line.startswith("mixlab "))
