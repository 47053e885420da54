"""`mixlab segment` from end to end: it trains, stops, goes on, judges, and says what is wrong."""

import json
import multiprocessing
import os
import re
import shutil
import signal
import stat
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import command
from PIL import Image
from ranks import free_port
from safetensors.torch import load_file

import mixlab
from mixlab.backbones.weights import save_weights
from mixlab.backbones.weights.reading import WeightsError
from mixlab.backbones.zoo import create_model
from mixlab.commands.dense_task import say_recipe, small_recipe, target_and_recipe
from mixlab.data.mask_formats import parse_label_maps
from mixlab.errors import InputError
from mixlab.evaluation.dense_task import DensePlan
from mixlab.evaluation.segmentation import task
from mixlab.evaluation.segmentation.task import plan_segmentation
from mixlab.evaluation.target import Target
from mixlab.recipes import RECIPES
from mixlab.run import RunDirectory
from mixlab.training.loop import train
from mixlab.training.settings import override
from tests.paused_training import pause
from tests.photographs import PHOTOGRAPHS, needs_photographs
from tests.waiting import exit_codes, wait_for

segment = command("segment")

DATA = "shapes:n=24,size=32"
NUM = 3  # images to score
LAST = 4
SMALL = [f"steps={LAST}", "batch=4", "model.dim=16", "model.depth=4", "model.image=32", "model.patch=4",
         "method.crop=32", "method.short_side=32", "method.channels=16", "method.auxiliary_channels=8",
         "optim.warmup_steps=1", "log.every_steps=2", "checkpoint.every_steps=1", "checkpoint.keep=99"]  # fmt: skip
CONTEXT = multiprocessing.get_context("forkserver")
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module", autouse=True)
def one_picture():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task, "NUM_EXAMPLES", 1)
        yield


def call(folder: Path, *extra: str, target: str = "segment_gatedconv_tiny64", **options) -> dict:
    return segment(target, data=DATA, run=folder, set=[*SMALL, *extra], num_val=NUM, device="cpu", **options)


def planned(target: str, *, data: str = DATA, recipe: str | None = None, **options) -> DensePlan:
    chosen, base = target_and_recipe(target, recipe)
    return plan_segmentation(chosen, data=data, recipe=base, name=recipe or target, **options)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("segment") / "run"
    call(folder)
    return folder


def assert_same_end(folder: Path, other: Path, step: int = LAST) -> None:
    for file in (f"checkpoints/step-{step:08d}.safetensors", "weights.safetensors", "segmenter.safetensors"):
        ours, theirs = load_file(folder / file), load_file(other / file)
        assert ours.keys() == theirs.keys()
        assert not [name for name in ours if not torch.equal(ours[name], theirs[name])]


def test_a_finished_run_holds_scores_pictures_and_all_that_rebuilds_it(finished: Path) -> None:
    result = json.loads((finished / "results" / "segmentation.json").read_text())
    assert result["n"] == NUM and result["seed"] == 0 and len(result["classes"]) == 11
    with np.load(finished / "results" / "segmentation.npz", allow_pickle=False) as stored:
        matrix = stored["confusion"]
    assert matrix.sum() == NUM * 32 * 32
    assert result["aacc"] == pytest.approx(np.trace(matrix) / matrix.sum())
    assert result["provenance"]["versions"]["torch"]
    (found,) = RunDirectory(finished).measurements()
    assert (found.metric, found.value, found.n, found.seed) == ("miou", result["miou"], NUM, 0)
    assert (found.subject.family, found.subject.training, found.subject.label) == ("gated_conv", "untrained", "run")
    protocol = found.protocol
    assert (protocol.data, protocol.split, protocol.num_images, protocol.precision) == (DATA, "val", NUM, "fp32")
    assert (protocol.head, protocol.image, protocol.frozen, protocol.steps) == ("upernet", 32, False, LAST)
    assert (protocol.mode, protocol.scales, protocol.flip, protocol.short_side) == ("single", (1.0,), False, 32)
    assert (finished / "figures" / "segmentation.png").stat().st_size > 1000
    assert (finished / "segmenter.safetensors").is_file() and (finished / "weights.safetensors").is_file()


@pytest.mark.parametrize("step", [1, LAST])
def test_a_run_resumed_at_any_step_ends_with_the_same_bits(step: int, finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    for file in (folder / "checkpoints").iterdir():
        if int(file.stem.removeprefix("step-")) > step:
            file.unlink()
    call(folder)
    assert_same_end(folder, finished)


def child(folder: str, extra: list[str], rank: int = 0, size: int = 1, port: int = 0) -> None:
    torch.set_num_threads(1)
    if size > 1:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank)}
        os.environ |= {"LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
    call(Path(folder), *extra)


def child_that_pauses(folder: str) -> None:
    pause({LAST - 1: Path(folder) / "never"})
    child(folder, [])


def test_a_killed_run_goes_on_to_the_same_bits(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = CONTEXT.Process(target=child_that_pauses, args=(str(folder),))
    process.start()
    wait_for(lambda: list((folder / "checkpoints").glob("step-*2.json")) or not process.is_alive())
    process.kill()
    assert exit_codes(process) == [-signal.SIGKILL]
    assert not (folder / "weights.safetensors").is_file()
    call(folder)
    assert_same_end(folder, finished)


PRECISE = ["precision=fp64", "method.dropout=0", "steps=3"]


@pytest.fixture(scope="module")
def precise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("precise") / "run"
    call(folder, *PRECISE)
    return folder


def furthest_apart(folder: Path, other: Path, file: str) -> float:
    ours, theirs = load_file(folder / file), load_file(other / file)
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours if ours[name].numel())


def test_two_processes_give_the_weights_and_the_scores_of_one(precise: Path, tmp_path: Path) -> None:
    port = free_port()
    both = [*PRECISE, "method.score_every_epochs=1", "method.score_images=4"]
    processes = [CONTEXT.Process(target=child, args=(str(tmp_path / "two"), both, rank, 2, port)) for rank in range(2)]
    for process in processes:
        process.start()
    assert exit_codes(*processes) == [0, 0]
    assert furthest_apart(tmp_path / "two", precise, "checkpoints/step-00000003.safetensors") < 1e-9
    one, two = (json.loads((run / "results" / "segmentation.json").read_text()) for run in (precise, tmp_path / "two"))
    assert one["classes"] == two["classes"] and one["n"] == two["n"]


def test_passes_that_share_a_step_give_the_same_weights(precise: Path, tmp_path: Path) -> None:
    call(tmp_path / "four", *PRECISE, "accumulate=4")
    assert furthest_apart(tmp_path / "four", precise, "weights.safetensors") < 1e-9


def test_the_backbone_of_a_run_is_what_training_starts_from_and_frozen_it_stays(finished: Path, tmp_path: Path) -> None:
    result = call(tmp_path / "run", "steps=2", target=str(finished), recipe="segment_gatedconv_tiny64", frozen=True)
    before, after = load_file(finished / "weights.safetensors"), load_file(tmp_path / "run" / "weights.safetensors")
    assert all(torch.equal(before[name], after[name]) for name in before)
    head = [load_file(folder / "segmenter.safetensors") for folder in (finished, tmp_path / "run")]
    assert not torch.equal(head[0]["head.fuse.0.weight"], head[1]["head.fuse.0.weight"])
    assert result["frozen"] is True and result["weights"] == str(finished)
    assert result["subject"]["training"] == "segment"  # what the backbone had learnt before
    moved = call(tmp_path / "tuned", "steps=2", target=str(finished), recipe="segment_gatedconv_tiny64")
    tuned = load_file(tmp_path / "tuned" / "weights.safetensors")
    assert moved["frozen"] is False and not torch.equal(tuned["embed.project.weight"], before["embed.project.weight"])


def test_a_backbone_at_a_small_share_of_the_learning_rate_moves_less(finished: Path, tmp_path: Path) -> None:
    start = load_file(finished / "weights.safetensors")["embed.project.weight"]
    moved = {}
    for share in (1.0, 0.1):
        run = tmp_path / str(share)
        call(run, "steps=2", f"method.backbone_lr={share}", target=str(finished), recipe="segment_gatedconv_tiny64")
        moved[share] = (load_file(run / "weights.safetensors")["embed.project.weight"] - start).norm()
    assert 0 < moved[0.1] < 0.2 * moved[1.0]
    with pytest.raises(ValueError, match=r"backbone_lr is 0.0; give a share above 0, or method.frozen=true"):
        call(
            tmp_path / "zero",
            "steps=2",
            "method.backbone_lr=0",
            target=str(finished),
            recipe="segment_gatedconv_tiny64",
        )


def test_judging_a_finished_run_again_gives_the_scores_of_its_training(finished: Path, tmp_path: Path) -> None:
    again = segment(str(finished), data=DATA, run=tmp_path / "again", num_val=NUM, evaluate_only=True, device="cpu")
    first = json.loads((finished / "results" / "segmentation.json").read_text())
    assert again["classes"] == first["classes"]
    for mode in ("multi", "slide"):
        segment(str(finished), data=DATA, run=tmp_path / "again", num_val=2, evaluate_only=True, inference=mode,
                device="cpu")  # fmt: skip
    assert {file.stem for file in (tmp_path / "again" / "results").glob("*.json")} == {
        "segmentation", "segmentation_multi", "segmentation_slide"}  # fmt: skip


def test_scores_of_other_ways_to_look_stand_beside_the_first(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    for mode in ("multi", "single"):
        segment(str(folder), data=DATA, num_val=NUM, evaluate_only=True, inference=mode, device="cpu")
    segment(str(folder), data=DATA, num_val=2, evaluate_only=True, device="cpu")
    found = {(m.protocol.mode, m.protocol.num_images): m for m in RunDirectory(folder).measurements()}
    assert set(found) == {("single", NUM), ("multi", NUM), ("single", 2)}
    assert found["multi", NUM].protocol.scales == (0.5, 0.75, 1.0, 1.25, 1.5, 1.75)
    assert found["multi", NUM].protocol.flip and not found["single", NUM].protocol.flip
    assert found["single", NUM] == RunDirectory(finished).measurements()[0]
    elsewhere = segment(
        str(folder), data="shapes:n=4,size=32", run=tmp_path / "other", evaluate_only=True, device="cpu"
    )
    (measurement,) = RunDirectory(tmp_path / "other").measurements()
    assert elsewhere["data"] == measurement.protocol.val_data == "shapes:n=4,size=32"
    assert measurement.protocol.data == DATA and measurement.subject == found["single", NUM].subject


FEW_STEPS = [setting for setting in SMALL if not setting.startswith("model.")] + ["steps=1"]


def fit(target: str, folder: Path, **options) -> tuple[str, dict]:
    """The training that the result says its backbone had, and the result."""
    result = segment(target, data=DATA, run=folder, set=FEW_STEPS, num_val=2, device="cpu", **options)
    return result["subject"]["training"], result


def test_a_stopped_run_says_at_which_step_it_was_measured(finished: Path, tmp_path: Path) -> None:
    stopped = tmp_path / "stopped"
    shutil.copytree(finished, stopped)
    for left in ("weights.safetensors", *(f"checkpoints/step-{LAST:08d}.{end}" for end in ("safetensors", "json"))):
        (stopped / left).unlink()
    options = {"data": DATA, "run": tmp_path / "look", "num_val": 2, "evaluate_only": True, "device": "cpu"}
    with pytest.warns(UserWarning, match="is not finished"):
        assert segment(str(stopped), **options)["subject"]["step"] == LAST - 1
    assert segment(str(finished), **options)["subject"]["step"] is None


def test_whatever_a_target_may_be_can_be_trained_on_and_evaluated_again(finished: Path, tmp_path: Path) -> None:
    shipped_file, exported = tmp_path / "odd.safetensors", tmp_path / "exported.safetensors"
    save_weights(create_model("shipped/vit"), shipped_file)  # of a shape that no name has
    shutil.copy(finished / "weights.safetensors", exported)
    stopped = tmp_path / "stopped"
    shutil.copytree(finished, stopped)
    (stopped / "weights.safetensors").unlink()
    for number, (target, expected, options) in enumerate([
        ("shipped/vit", "dino", {}),
        (str(shipped_file), "dino", {"training": "dino"}),
        (str(exported), "trained", {}),
        (str(finished / "weights.safetensors"), "segment", {}),
        (str(stopped), "segment", {}),
    ]):  # fmt: skip
        folder = tmp_path / str(number)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a run is not finished
            training, result = fit(target, folder, frozen=True, **options)
        assert training == expected and result["frozen"]
        start = load_file(exported if number > 1 else shipped_file)
        assert all(torch.equal(value, start[name]) for name, value in load_file(folder / "weights.safetensors").items())
        again = segment(str(folder), data=DATA, run=tmp_path / "again", num_val=2, evaluate_only=True, device="cpu")
        assert again["classes"] == result["classes"] and again["subject"]["training"] == expected
    assert fit(str(tmp_path / "1"), tmp_path / "chained")[0] == "segment"  # a run of a shape that no name has
    with pytest.raises(ValueError, match="brings its own architecture"):
        segment(str(shipped_file), data=DATA, run=tmp_path / "dim", set=[*FEW_STEPS, "model.dim=8"], device="cpu")


def test_a_backbone_in_memory_is_trained_on_as_a_copy(tmp_path: Path) -> None:
    backbone = create_model("gatedconv_tiny", dim=16, depth=4, patch=4, image=32).eval()
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    target = Target(label="mine", backbone=backbone, training="dino")
    plan = mixlab.plan_segmentation(target, data=DATA, settings=FEW_STEPS)
    result = mixlab.fit_segmentation(plan, tmp_path / "run", num_val=2, device="cpu")
    assert result.subject.training == "dino" and result.n == 2 and not backbone.training
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())
    trained = load_file(tmp_path / "run" / "weights.safetensors")
    assert any(not torch.equal(value, before[name]) for name, value in trained.items())
    (measurement,) = result.measurements
    assert measurement.subject.weights != target.subject.weights and measurement.value == result.scores.miou


def test_a_run_keeps_what_it_was_told_of_its_backbones_training(tmp_path: Path) -> None:
    file = tmp_path / "file.safetensors"
    save_weights(create_model("gatedconv_tiny", dim=16, depth=4, patch=4, image=32), file)
    options = {"weights": str(file), "recipe": "segment_gatedconv_tiny64"}
    named = ["model.dim=16", "model.depth=4", "model.patch=4", "model.image=32"]
    call = {"data": DATA, "run": tmp_path / "run", "set": [*FEW_STEPS, *named], "num_val": 2, "device": "cpu"}
    first = segment("gatedconv_tiny", training="supervised", **options, **call)
    resumed = segment("gatedconv_tiny", **options, **call)
    assert [result["subject"]["training"] for result in (first, resumed)] == ["supervised", "supervised"]
    assert len(RunDirectory(tmp_path / "run").measurements()) == 1


def test_a_run_that_was_stopped_is_scored_as_far_as_it_came(finished: Path, tmp_path: Path) -> None:
    stopped = tmp_path / "run"
    shutil.copytree(finished, stopped)
    for file in ("weights.safetensors", "segmenter.safetensors"):
        (stopped / file).unlink()
    with pytest.warns(UserWarning, match="is not finished: these are the weights of step 4"):
        found = segment(str(stopped), data=DATA, run=tmp_path / "a", num_val=NUM, evaluate_only=True, device="cpu")
    whole = segment(str(finished), data=DATA, run=tmp_path / "b", num_val=NUM, evaluate_only=True, device="cpu")
    assert found["classes"] == whole["classes"]


def test_training_lowers_the_loss_with_every_mixer(tmp_path: Path) -> None:
    small = {
        "segment_dinovim_tiny64": ["model.dim=32", "model.depth=4"],
        "segment_mambaout_femto64": ["model.depths=[1,1,1,1]", "model.dims=[8,16,32,32]"],
    }
    for name, sizes in small.items():
        settings = ["steps=12", "batch=8", "method.crop=32", "method.short_side=32", "method.channels=16",
                    "optim.warmup_steps=2", "log.every_steps=4", "optim.lr=5e-2", *sizes]  # fmt: skip
        config = override(RECIPES[name](), settings)
        outcome = train(config, data="shapes:n=8,size=32", run=tmp_path / name, device="cpu", name=name)
        lines = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        assert outcome.step == 12 and lines[-1]["loss"] < 0.85 * lines[0]["loss"]


def test_live_scores_are_those_of_the_held_out_part(tmp_path: Path) -> None:
    call(tmp_path / "run", "steps=6", "method.score_every_epochs=1", f"method.score_images={NUM}")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    result = json.loads((tmp_path / "run" / "results" / "segmentation.json").read_text())
    scored = [line for line in lines if "miou" in line]
    assert len(scored) == 2  # before the first step and after the only epoch
    assert scored[-1]["miou"] == pytest.approx(result["miou"]) and scored[-1]["aacc"] == pytest.approx(result["aacc"])


@pytest.mark.parametrize(
    ("target", "options", "says"),
    [
        ("dino_vit_tiny64", {}, "is a dino recipe, not one for `mixlab segment`"),
        ("segment_vit_tiny64", {"recipe": "segment_vit_tiny"}, "is a recipe itself"),
        ("vit_tiny", {"weights": "nowhere.pth"}, "there is no nowhere.pth"),
        ("vit_tinny", {}, "unknown model 'vit_tinny'"),
        ("segment_vit_tiny64", {"settings": ["method.crop=0"]}, "method.crop is 0; give at least 1"),
        ("segment_vit_tiny64", {"settings": ["method.scale=2,1"]}, "not a range"),
        ("segment_vit_tiny64", {"settings": ["method.norm=layer"]}, "expected one of batch, group"),
    ],
)
def test_a_wrong_call_is_answered(target: str, options: dict, says: str) -> None:
    with pytest.raises((ValueError, OSError), match=says):
        planned(target, **options).config.model.build()


def test_a_bound_on_the_images_to_judge_by_bounds_the_live_scores_too(finished: Path) -> None:
    assert json.loads((finished / "config.json").read_text())["settings"]["method"]["score_images"] == NUM
    for asked, bound in ((None, 200), (500, 200), (7, 7)):
        assert planned("segment_vit_tiny64", num_val=asked).config.method.score_images == bound


@pytest.mark.parametrize(
    ("target", "data", "says"),
    [
        ("vit_tiny", DATA, ["the small one for shapes is used: 500 steps"]),
        ("timm/resnet18", "photos", ["the papers' recipe for ADE20K", "--recipe segment_vit_tiny64"]),
        ("dinovim_tiny", "photos", ["the papers' recipe for ADE20K", "--recipe segment_dinovim_tiny64"]),
    ],
)
def test_a_call_without_a_recipe_is_told_which_one_it_gets_and_on_a_cpu_a_smaller_one(
    target: str, data: str, says: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    say_recipe(planned(target, data=data), device="cpu", published="ADE20K")
    told = " ".join(capfd.readouterr().err.split())
    assert all(text in told for text in says)


def test_the_small_recipe_for_a_trained_backbone_leaves_its_shape_alone() -> None:
    config = planned("vit_tiny", data="photos", weights="vit.pth").config
    small = planned("vit_tiny", data="photos", recipe=small_recipe(config), weights="vit.pth").config
    assert small.model == config.model and small.method.crop == 64


def test_runs_of_another_kind_or_with_other_classes_are_not_judged(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give --run DIR"):
        segment("segment_vit_tiny64", data=DATA)
    with pytest.raises(FileNotFoundError, match="is not a run directory"):
        segment(str(tmp_path), data=DATA, evaluate_only=True)
    images, labels = tmp_path / "set" / "images", tmp_path / "set" / "labels"
    for folder, values in ((images, np.zeros((8, 8, 3), np.uint8)), (labels, np.zeros((8, 8), np.uint8))):
        folder.mkdir(parents=True)
        Image.fromarray(values).save(folder / "a.png")
    (tmp_path / "set" / "classes.txt").write_text("a\nb\n")
    with pytest.raises(ValueError, match="has 2 classes, this network was trained for 11"):
        segment(str(finished), data=str(tmp_path / "set"), evaluate_only=True, device="cpu")


def draw_labels(root: Path, number: int) -> Path:
    """A set in the layout of `labels/`, with as many classes as the drawn shapes have."""
    source = parse_label_maps(f"shapes:n={number},size=32", split="val")
    for index in range(number):
        pair = source.load(index)
        for part in ("training", "validation"):
            for kind, values in (("images", pair.image.permute(1, 2, 0)), ("labels", pair.mask)):
                place = root / kind / part / f"{index}.png"
                place.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(values.numpy()).save(place)
    (root / "classes.txt").write_text("\n".join(source.classes))
    return root


def test_images_that_cannot_be_judged_are_not_shown_either(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task, "NUM_EXAMPLES", 3)
    data = draw_labels(tmp_path / "set", 3)
    (data / "images" / "validation" / "0.png").write_bytes(b"half a file")
    result = segment(str(finished), data=str(data), run=tmp_path / "run", evaluate_only=True, device="cpu")
    assert result["n"] == 2 and [Path(name).name for name in result["skipped"]] == ["0.png"]
    assert (tmp_path / "run" / "figures" / "segmentation.png").is_file()
    for name in ("1.png", "2.png"):
        (data / "labels" / "validation" / name).write_bytes(b"half a file")
    again = segment(str(finished), data=str(data), run=tmp_path / "none", evaluate_only=True, device="cpu")
    assert again["n"] == 0 and len(again["skipped"]) == 3
    assert not (tmp_path / "none" / "figures").exists()


def test_images_without_a_labelled_pixel_have_no_score_and_a_sentence_says_so(
    finished: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = draw_labels(tmp_path / "set", 2)
    options = {"data": str(data), "run": tmp_path / "run", "evaluate_only": True, "device": "cpu"}
    for file in (data / "labels" / "validation").iterdir():
        Image.new("L", (32, 32), 255).save(file)
    assert segment(str(finished), **options)["miou"] is None
    said = capfd.readouterr()
    assert "mIoU -, mAcc -, aAcc - (%, single)" in said.out and "None" not in said.out
    assert "no pixel of these images is labelled: all are 255" in " ".join(said.err.split())
    assert not RunDirectory(tmp_path / "run").measurements()
    for file in (data / "labels" / "validation").iterdir():
        file.write_bytes(b"half a file")
    with pytest.warns(UserWarning, match="not an image"):
        segment(str(finished), **options)
    assert "no image was read, so there is nothing to score" in " ".join(capfd.readouterr().err.split())


def reorder_labels(data: Path) -> None:
    """The same set with its first two classes in the other order, in names and labels."""
    names = (data / "classes.txt").read_text().splitlines()
    (data / "classes.txt").write_text("\n".join([names[1], names[0], *names[2:]]))
    for file in (data / "labels").rglob("*.png"):
        labels = np.asarray(Image.open(file))
        Image.fromarray(np.where(labels < 2, 1 - labels, labels).astype(np.uint8)).save(file)


def test_a_run_does_not_resume_where_its_classes_are_in_another_order(tmp_path: Path) -> None:
    data, run = draw_labels(tmp_path / "set", 4), tmp_path / "run"
    options = {"data": str(data), "run": run, "set": [*SMALL, "steps=1"], "num_val": 2, "device": "cpu"}
    before = segment("segment_gatedconv_tiny64", **options)
    reorder_labels(data)
    says = "(class 1 was 'ground', is 'disc'); put them back in the order of"
    with pytest.raises(InputError, match=re.escape(says)):
        segment("segment_gatedconv_tiny64", **options)
    stored = (run / "config.json").read_bytes()
    (run / "config.json").unlink()  # its copy in the checkpoint counts
    with pytest.raises(InputError, match=re.escape(says)):
        segment("segment_gatedconv_tiny64", **options)
    (run / "config.json").write_bytes(stored)
    reorder_labels(data)
    (data / "images" / "training" / "3.png").unlink()  # an image that is gone is no other class
    assert segment("segment_gatedconv_tiny64", **options)["classes"] == before["classes"]


def test_a_run_is_not_judged_by_as_many_other_classes_or_in_another_order(finished: Path, tmp_path: Path) -> None:
    data = draw_labels(tmp_path / "set", 2)
    options = {"data": str(data), "run": tmp_path / "run", "evaluate_only": True, "device": "cpu"}
    assert segment(str(finished), **options)["n"] == 2
    reorder_labels(data)
    with pytest.raises(InputError, match=r"\(class 1 was 'ground', is 'disc'\); evaluate it on data with the same"):
        segment(str(finished), **options)
    reorder_labels(data)
    names = (data / "classes.txt").read_text().splitlines()
    (data / "classes.txt").write_text("\n".join([*names[:-1], "zebra"]))
    with pytest.raises(InputError, match=rf"\(class 11 was '{names[-1]}', is 'zebra'\)"):
        segment(str(finished), **options)


def test_a_torn_head_is_refused_by_name(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    head = folder / "segmenter.safetensors"
    head.write_bytes(head.read_bytes()[:-100])
    with pytest.raises(WeightsError, match=r"segmenter.safetensors is not whole safetensors .*; copy or download"):
        segment(str(folder), data=DATA, run=tmp_path / "again", evaluate_only=True, device="cpu")


def test_weights_head_and_results_have_the_rights_that_umask_leaves(finished: Path, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        call(tmp_path / "private", "steps=1")
    finally:
        os.umask(before)
    files = ("weights.safetensors", "segmenter.safetensors", "config.json", "results/segmentation.json")
    for mask, folder in ((before, finished), (0o077, tmp_path / "private")):
        modes = {file: stat.S_IMODE((folder / file).stat().st_mode) for file in files}
        assert modes == dict.fromkeys(files, 0o666 & ~mask)


def test_papers_recipes_say_what_the_papers_say() -> None:
    for name, lr in (("segment_dinovim_base", 6e-5), ("segment_vit_base", 6e-5), ("segment_mambaout_tiny", 1e-4)):
        config = RECIPES[name]()
        assert (config.steps, config.batch, config.method.crop) == (160_000, 16, 512)
        assert config.optim.lr * config.batch / config.optim.lr_batch == lr
        assert (config.optim.decay, config.optim.warmup_steps, config.optim.warmup_start) == ("poly", 1500, 1e-6)
        assert (config.optim.weight_decay, config.optim.betas) == (0.05, (0.9, 0.999))


@needs_photographs
def test_photographs_of_any_shape_are_trained_on_and_judged(tmp_path: Path) -> None:
    settings = [*SMALL, "steps=2", "batch=2", "method.crop=64", "method.short_side=64", "method.long_side=128"]
    result = segment("segment_gatedconv_tiny64", data=str(PHOTOGRAPHS / "semantic"), run=tmp_path, set=settings,
                     num_val=2, device="cpu", inference="slide")  # fmt: skip
    assert result["n"] == 2 and len(result["classes"]) == 129 and 0 <= result["aacc"] <= 1
