"""`mixlab detect` from data to figures: trained, stopped, resumed, shared by processes, judged again."""

import json
import multiprocessing
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from command_line import command
from ranks import free_port
from safetensors.torch import load_file
from test_average_precision import by_pycocotools

from mixlab.analysis.claims import Evidence
from mixlab.analysis.claims.orders import mamba_does_dense_better
from mixlab.data.objects import instances_file, parse_objects
from mixlab.errors import InputError
from mixlab.evaluation.dense_task import settings_digest
from mixlab.evaluation.detection import task
from mixlab.evaluation.detection.average_precision import NAMES
from mixlab.evaluation.detection.detector import Detector
from mixlab.evaluation.detection.task import plan_detection
from mixlab.recipes import find_recipe
from mixlab.run import RunDirectory
from tests.coco_folder import draw_coco
from tests.photographs import PHOTOGRAPHS, needs_photographs
from tests.waiting import exit_codes

detect = command("detect")

DATA = "shapes:n=16,size=32"
NUM = 2  # images to score
LAST = 4
SMALL = [f"steps={LAST}", "batch=4", "model.depths=[1,1,1,1]", "model.dims=[8,8,16,16]", "method.short=32,32",
         "method.channels=16", "method.hidden=16", "method.mask_convs=1", "log.every_steps=2", "optim.warmup_steps=1",
         "checkpoint.every_steps=1", "checkpoint.keep=99", "model.drop_path_rate=0.1"]  # fmt: skip
CONTEXT = multiprocessing.get_context("forkserver")
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module", autouse=True)
def one_picture():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task, "NUM_EXAMPLES", 1)
        yield


def run(folder: Path, *extra: str, head: str = "cascade", data: str = DATA, num_val: int = NUM) -> dict:
    return detect(
        "detect_mambaout_femto64", data=data, run=folder, head=head, set=[*SMALL, *extra], device="cpu", num_val=num_val
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("detect") / "run"
    run(folder)
    return folder


def test_a_run_leaves_figures_a_results_file_and_pictures(finished):
    result = RunDirectory.open(finished).results()["detection"]
    assert (result["head"], result["n"], result["seed"], result["steps"]) == ("cascade", NUM, 0, LAST)
    assert set(result["boxes"]) == set(result["masks"]) == set(NAMES)
    assert result["provenance"]["versions"]["mixlab"]
    assert (finished / "figures" / "detection.png").stat().st_size > 10_000
    assert load_file(finished / "detector.safetensors").keys().isdisjoint(load_file(finished / "weights.safetensors"))


def test_figures_are_those_of_pycocotools_on_the_results_file(finished):
    found = json.loads((finished / "detections.json").read_text())
    images = {entry["image_id"] for entry in found}
    source = parse_objects(DATA, split="val")
    truth = instances_file(source)
    judged = {8 * number + 1 for number in range(NUM)}  # 2 of 16, evenly
    assert images <= judged and found
    truth["images"] = [image for image in truth["images"] if image["id"] in judged]
    truth["annotations"] = [entry for entry in truth["annotations"] if entry["image_id"] in judged]
    result = RunDirectory.open(finished).results()["detection"]
    for kind in ("boxes", "masks"):
        ours = [-1 if result[kind][name] is None else result[kind][name] for name in NAMES]
        assert ours == pytest.approx(by_pycocotools(truth, found, kind), abs=1e-9)


def test_the_figures_reach_the_ledger_and_seeds_decide_there(finished, tmp_path):
    result = RunDirectory.open(finished).results()["detection"]
    found = {m.metric: m for m in Evidence.from_runs([finished]).measurements}
    assert set(found) == {"box_ap", "mask_ap"}
    for metric, kind in (("box_ap", "boxes"), ("mask_ap", "masks")):
        m = found[metric]
        assert (m.value, m.n, [m.low, m.high]) == (result[kind]["AP"], NUM, result["intervals"][kind])
        assert (m["family"], m["training"], m.seed, m["data"], m["head"]) == (
            "gated_conv",
            "untrained",
            0,
            DATA,
            "cascade",
        )

    def verdict(num_seeds: int) -> str:
        for family, lead in (("vmamba", 0.2), ("gated_conv", 0.0)):
            for seed in range(num_seeds):
                records = [
                    {**record, "subject": {**record["subject"], "family": family, "model": family, "weights": None},
                     "seed": seed, "value": record["value"] + lead + 0.01 * seed, "low": None, "high": None}
                    for record in result["measurements"]
                ]  # fmt: skip
                other = RunDirectory.create(tmp_path / f"{family}{seed}")
                other.write_result("detection", {"measurements": records})
        return mamba_does_dense_better(Evidence.from_runs(sorted(tmp_path.iterdir()))).status

    assert verdict(num_seeds=1) == "not resolved at this scale"  # without intervals, one run against one says nothing
    assert verdict(num_seeds=3) == "supported"


def test_a_stopped_run_from_before_there_were_rules_goes_on_to_the_same_bits(finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    stored = json.loads((folder / "config.json").read_text())
    assert stored["settings"]["method"].pop("rules") == "torchvision"
    (folder / "config.json").write_text(json.dumps(stored))
    (folder / "weights.safetensors").unlink()
    for file in (folder / "checkpoints").iterdir():
        if int(file.stem.removeprefix("step-")) > 2:
            file.unlink()
    run(folder)
    for file in (f"checkpoints/step-{LAST:08d}.safetensors", "weights.safetensors", "detector.safetensors"):
        ours, theirs = load_file(folder / file), load_file(finished / file)
        assert not [name for name in theirs if not torch.equal(ours[name], theirs[name])]
    assert (folder / "detections.json").read_text() == (finished / "detections.json").read_text()


def test_the_score_can_be_followed_while_a_run_goes_on(tmp_path):
    run(tmp_path, "method.score_every_epochs=1", f"method.score_images={NUM}", head="mask")
    rows = [row for row in RunDirectory.open(tmp_path).read_metrics() if "boxes_AP50" in row]
    assert [row["step"] for row in rows] == [0, LAST]
    final = RunDirectory.open(tmp_path).results()["detection"]
    assert rows[-1]["masks_AP"] == pytest.approx(final["masks"]["AP"])  # the same images


def test_a_finished_run_is_judged_again_without_training(finished, tmp_path):
    before = RunDirectory.open(finished).results()["detection"]
    again = detect(str(finished), data=DATA, run=tmp_path, evaluate_only=True, num_val=NUM, device="cpu")
    assert (again["boxes"], again["masks"]) == (before["boxes"], before["masks"])
    assert not (tmp_path / "checkpoints").exists()


def test_a_shipped_network_is_trained_on_and_scored_again_as_what_it_is(tmp_path):
    settings = ["steps=1", "optim.warmup_steps=0", "batch=2", "method.short=32,32", "method.channels=16",
                "method.hidden=16"]  # fmt: skip
    first = detect("shipped/gatedconv", data=DATA, run=tmp_path, set=settings, num_val=2, device="cpu")
    again = detect(str(tmp_path), data=DATA, evaluate_only=True, num_val=2, device="cpu")
    assert first["subject"]["training"] == again["subject"]["training"] == "dino"
    found = RunDirectory(tmp_path).measurements()
    assert {m.metric for m in found} == {"box_ap", "mask_ap"}
    assert {(m.protocol.head, m.protocol.short_side, m.protocol.steps, m.protocol.num_images) for m in found} == {
        ("mask", 32, 1, 2)
    }
    other = detect(str(tmp_path), data=DATA, evaluate_only=True, num_val=3, device="cpu", training="supervised")
    assert other["subject"]["training"] == "supervised" and len(RunDirectory(tmp_path).measurements()) == 4
    assert {file.name for file in tmp_path.glob("detections*.json")} == {"detections.json", "detections_2.json"}


def child(judged: str, trained: str, rank: int, ports: list[int]) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2",
                   "LOCAL_WORLD_SIZE": "2"}  # fmt: skip
    os.environ["MASTER_PORT"] = str(ports[0])
    run(Path(judged))
    os.environ["MASTER_PORT"] = str(ports[1])
    settings = ["steps=2", "batch=4", "method.short=32,32", "method.channels=16", "method.hidden=16", "model.dim=16",
                "model.depth=4", "log.every_steps=1", "optim.warmup_steps=1"]  # fmt: skip
    detect("detect_dinovim_tiny64", data=DATA, run=Path(trained), head="cascade", set=settings, num_val=2, device="cpu")


def test_two_processes_train_and_find_what_one_finds(finished, tmp_path):
    """From the same weights they find the same; in training, each rank draws its own regions."""
    judged, trained = tmp_path / "judged", tmp_path / "trained"
    shutil.copytree(finished, judged)
    (judged / "detections.json").unlink()
    ports = [free_port(), free_port()]
    processes = [CONTEXT.Process(target=child, args=(str(judged), str(trained), rank, ports)) for rank in range(2)]
    for process in processes:
        process.start()
    assert exit_codes(*processes) == [0, 0]
    ours, theirs = (json.loads((place / "detections.json").read_text()) for place in (judged, finished))
    assert [(entry["image_id"], entry["category_id"]) for entry in ours] == [
        (entry["image_id"], entry["category_id"]) for entry in theirs
    ]
    assert [entry["score"] for entry in ours] == pytest.approx([entry["score"] for entry in theirs], abs=1e-4)
    rows = list(RunDirectory.open(trained).read_metrics())
    assert rows[-1]["step"] == 2 and "detection" in RunDirectory.open(trained).results()


def child_that_judges(run: str, place: str, rank: int, port: int) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.environ |= {"WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3"}
    detect(run, data=DATA, run=Path(place), evaluate_only=True, num_val=NUM, device="cpu")


def test_processes_that_cannot_share_a_batch_evenly_judge_a_run_all_the_same(finished, tmp_path):
    port = free_port()
    processes = [
        CONTEXT.Process(target=child_that_judges, args=(str(finished), str(tmp_path), rank, port)) for rank in range(3)
    ]
    for process in processes:
        process.start()
    assert exit_codes(*processes) == [0, 0, 0]
    ours, theirs = (RunDirectory.open(place).results()["detection"] for place in (tmp_path, finished))
    assert (ours["n"], ours["num_objects"]) == (NUM, theirs["num_objects"])
    for kind in ("boxes", "masks"):
        assert ours[kind]["AP"] == pytest.approx(theirs[kind]["AP"], abs=1e-4)


def test_a_frozen_backbone_leaves_the_run_as_it_came(finished, tmp_path):
    settings = [setting for setting in SMALL if not setting.startswith("model.")] + ["steps=2"]
    result = detect(str(finished), data=DATA, run=tmp_path / "run", head="mask", frozen=True, num_val=NUM, device="cpu",
                    recipe="detect_mambaout_femto64", set=settings)  # fmt: skip
    assert result["frozen"] and result["weights"] == str(finished)
    ours, theirs = (load_file(place / "weights.safetensors") for place in (tmp_path / "run", finished))
    assert not [name for name in theirs if not torch.equal(ours[name], theirs[name])]


def test_coco_folders_with_every_kind_of_image_train(tmp_path):
    draw_coco(tmp_path / "data")
    result = run(tmp_path / "run", "batch=2", "steps=2", data=str(tmp_path / "data"))
    assert result["n"] == 1 and set(result["classes"]["boxes"]) == {"cat", "kite", "brush"}


def test_a_run_does_not_resume_where_a_category_was_added(tmp_path):
    content = draw_coco(tmp_path / "data")
    run(tmp_path / "run", "batch=2", "steps=1", data=str(tmp_path / "data"))
    content["categories"].insert(1, {"id": 5, "name": "dog"})
    (tmp_path / "data" / "instances.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"\(class 2 was 'kite', is 'dog'\); put them back"):
        run(tmp_path / "run", "batch=2", "steps=1", data=str(tmp_path / "data"))
    content["categories"] = content["categories"][:2]  # one less than there were, and its objects
    content["annotations"] = [entry for entry in content["annotations"] if entry["category_id"] in (3, 5)]
    (tmp_path / "data" / "instances.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match="has other classes than"):
        run(tmp_path / "run", "batch=2", "steps=1", data=str(tmp_path / "data"))


def test_a_run_is_not_judged_by_as_many_other_categories(tmp_path):
    content = draw_coco(tmp_path / "data")
    run(tmp_path / "run", "batch=2", "steps=1", data=str(tmp_path / "data"))
    content["categories"][1]["name"] = "dog"
    (tmp_path / "data" / "other.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"\(class 2 was 'kite', is 'dog'\); evaluate it on data with the same"):
        detect(str(tmp_path / "run"), data=str(tmp_path / "data" / "other.json"), evaluate_only=True, device="cpu")


def test_unreadable_images_are_named_and_left_out_of_the_figures(tmp_path):
    draw_coco(tmp_path / "data", name="annotations/instances_train.json", images="train")
    content = draw_coco(tmp_path / "data", name="annotations/instances_val.json", images="val")
    content["images"][0]["file_name"] = "more/1.png"  # beside 1.png, which can be read
    (tmp_path / "data" / "annotations" / "instances_val.json").write_text(json.dumps(content))
    (tmp_path / "data" / "val" / "more").mkdir()
    (tmp_path / "data" / "val" / "more" / "1.png").write_bytes(b"not an image")
    result = run(tmp_path / "run", "batch=2", "steps=1", data=str(tmp_path / "data"), num_val=3)
    assert result["n"] == 2 and result["num_objects"] == 3
    assert [Path(path).relative_to(tmp_path / "data" / "val").as_posix() for path in result["skipped"]] == [
        "more/1.png"
    ]


def test_activations_can_be_made_twice_instead_of_kept(tmp_path):
    settings = ["steps=2", "batch=2", "method.short=32,32", "method.channels=16", "method.hidden=16",
                "optim.warmup_steps=1",
                "checkpoint.every_steps=2", "model.dim=16", "model.depth=4", "precision=fp64"]  # fmt: skip
    weights = []
    for number, extra in enumerate(["activation_checkpointing=false", "activation_checkpointing=true"]):
        folder = tmp_path / str(number)
        detect("detect_dinovim_tiny64", data="shapes:n=4,size=32", run=folder, set=[*settings, extra], num_val=1,
               device="cpu")  # fmt: skip
        weights.append(load_file(folder / "checkpoints" / "step-00000002.safetensors"))
    apart = [
        float((weights[0][name] - weights[1][name]).abs().max()) for name in weights[0] if weights[0][name].numel()
    ]
    assert max(apart) < 1e-9


@needs_photographs
def test_real_photographs_train_and_are_judged(tmp_path):
    result = run(
        tmp_path / "run", "steps=1", "batch=2", "method.short=64,96", "method.long=160", data=str(PHOTOGRAPHS / "coco")
    )
    assert result["n"] == NUM and len(result["classes"]["masks"]) == 80
    assert result["boxes"]["AP"] is not None


def test_wrong_calls_get_an_answer(finished, tmp_path):
    with pytest.raises(ValueError, match="give --run DIR"):
        detect("vit_tiny", data=DATA)
    with pytest.raises(ValueError, match="supervised recipe, not one for `mixlab detect`"):
        detect("supervised_vit_tiny64", data=DATA, run=tmp_path / "a")
    with pytest.raises(ValueError, match="is a recipe itself"):
        detect("detect_vit_tiny64", data=DATA, run=tmp_path / "b", recipe="detect_vit_tiny64")
    with pytest.raises(ValueError, match="3 classes, this network was trained for 10"):
        draw_coco(tmp_path / "data")
        detect(str(finished), data=str(tmp_path / "data"), run=tmp_path / "c", evaluate_only=True, device="cpu")
    with pytest.raises(ValueError, match="16 images are fewer than one batch of 64"):
        run(tmp_path / "d", "batch=64")
    with pytest.raises(ValueError, match="short sides 64 to 32"):
        run(tmp_path / "e", "method.short=64,32")
    with pytest.raises(ValueError, match="other settings"):
        run(finished, "method.hidden=8")


def test_a_signal_while_scoring_stops_at_once_and_the_run_goes_on_to_the_same_bits(finished, tmp_path, monkeypatch):
    looks = []

    def signal_then_detect(self, *inputs):
        looks.append(len(inputs))
        os.kill(os.getpid(), signal.SIGTERM)
        return find(self, *inputs)

    find = Detector.detect
    monkeypatch.setattr(Detector, "detect", signal_then_detect)
    with pytest.raises(SystemExit) as left:
        run(tmp_path / "run", "method.score_every_epochs=1")
    assert left.value.code == 143 and len(looks) == 1
    monkeypatch.undo()
    run(tmp_path / "run", "method.score_every_epochs=1")
    ours, theirs = (load_file(folder / "detector.safetensors") for folder in (tmp_path / "run", finished))
    assert ours.keys() == theirs.keys() and not [name for name in ours if not torch.equal(ours[name], theirs[name])]


def test_a_run_keeps_the_rules_it_began_with_unless_it_is_told_otherwise():
    old = {"settings": {"method": {"kind": "detect", "proposals": 1000}}}  # as runs on COCO have it
    plan = plan_detection("vit_tiny", data="somewhere")
    assert (plan.begun({}).method.rules, plan.begun({}).method.proposals) == ("mmdetection", None)
    assert (plan.begun(old).method.rules, plan.begun(old).method.proposals) == ("torchvision", 1000)
    assert plan.begun(old).method.head == "cascade"
    told = plan_detection("vit_tiny", data="somewhere", settings=["method.rules=mmdetection"])
    assert told.begun(old).method.rules == "mmdetection"  # which the training then refuses to resume


def test_settings_that_are_newer_than_a_run_do_not_change_its_protocol():
    assert settings_digest(find_recipe("detect_vit_tiny64")) == "bb10b264b0f4"  # as runs of before have it
    assert settings_digest(find_recipe("segment_vit_tiny64")) == "f4ab01545a07"
    published = find_recipe("detect_mambaout_tiny")
    before = replace(published, method=replace(published.method, rules="torchvision", proposals=1000, drop_path=None))
    assert settings_digest(before) == "aa9945234e3e" != settings_digest(published)


def test_shapes_get_a_small_recipe_and_photographs_the_published_one():
    small = plan_detection("vit_tiny", data="shapes:n=4").config
    large = plan_detection("vit_tiny", data="somewhere", settings=["method.head=mask"]).config
    assert (small.method.short[1], large.method.short[1]) == (64, 800)
    assert large.method.head == "mask"
