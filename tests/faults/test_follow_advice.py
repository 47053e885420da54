"""What an error advises can be done, and the run resumes: images removed, a loss that is not finite, files lost."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from mixlab.data.images import parse_source
from mixlab.data.skipped import TooManyUnreadableError
from mixlab.errors import InputError, WorkError
from mixlab.evaluation.target import load_target
from mixlab.recipes import RECIPES
from mixlab.run.files import read_json
from mixlab.training.image_list import as_listed, changed_list, write_list
from mixlab.training.loop import train
from mixlab.training.settings import override
from tests.stopped_runs import stopped_after

LAST, HALF = 8, 4
SETTINGS = [f"steps={LAST}", "batch=4", "data.size=32", "model.dim=16", "model.depth=1", "model.image=32",
            "method.size=32", "optim.warmup_steps=0", "log.every_steps=1", "log.tensorboard=false",
            "data.workers=0", "checkpoint.every_steps=1", "checkpoint.keep=99", "knn.every_epochs=0"]  # fmt: skip


def run(data: Path | str, folder: Path, *extra: str) -> None:
    config = override(RECIPES["supervised_vit_tiny64"](), [*SETTINGS, *extra])
    train(config, data=str(data), run=folder, device="cpu", name="supervised_vit_tiny64")


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "checkpoints" / f"step-{LAST:08d}.safetensors")


def assert_same_end(folder: Path, other: Path) -> None:
    ours, theirs = weights(folder), weights(other)
    assert ours.keys() == theirs.keys()
    assert not [name for name in ours if not torch.equal(ours[name], theirs[name])]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes; the last one has a single image."""
    folder = tmp_path_factory.mktemp("photos")
    values = torch.randint(0, 256, (19, 32, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    for number, pixels in enumerate(values):
        place = folder / "abc"[number // 9] / f"{number:02d}.png"
        place.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels.numpy()).save(place)
    return folder


@pytest.fixture(scope="module")
def whole(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(photos, folder)
    return folder


def test_one_image_that_came_or_went_is_one(photos: Path, tmp_path: Path) -> None:
    data = tmp_path / "photos"
    shutil.copytree(photos, data)
    (tmp_path / "run").mkdir()
    write_list(tmp_path / "run", parse_source(str(data)))
    (data / "a" / "03.png").rename(data / "a" / "new.png")
    source = parse_source(str(data))
    listed = changed_list(tmp_path / "run", source)
    assert listed is not None
    _, said = as_listed(source, listed, name="photos")
    assert "1 of the 19 images that the run was started with is gone; " in said
    assert "1 new image is left out, since the run was started without it" in said


def test_removed_images_keep_their_numbers_and_the_run_resumes(photos: Path, whole: Path, tmp_path: Path) -> None:
    data = tmp_path / "photos"
    shutil.copytree(photos, data)
    run(data, tmp_path / "whole")
    damaged, removed = (stopped_after(tmp_path / "whole", tmp_path / name, HALF) for name in ("damaged", "removed"))
    bad = [data / "a" / "03.png", data / "b" / "11.png", data / "c" / "18.png"]
    for file in bad:
        file.write_bytes(b"no image")
    with pytest.raises(TooManyUnreadableError, match="Repair or remove them"):
        run(data, removed)
    run(data, damaged, "data.skip_limit=1")
    for file in bad:
        file.unlink()
    (data / "c").rmdir()
    shutil.copy(data / "a" / "00.png", data / "a" / "new.png")
    run(data, removed)
    assert_same_end(removed, damaged)
    config = read_json(removed / "config.json")
    assert config["num_images"] == 19 and config["classes"] == ["a", "b", "c"]
    assert config["sessions"][-1]["num_removed_images"] == 3
    changed = [name for name, value in weights(removed).items() if not torch.equal(value, weights(whole)[name])]
    assert changed, "nothing was removed from what is seen"


def test_all_images_gone_is_a_wrong_path(photos: Path, whole: Path, tmp_path: Path) -> None:
    data = tmp_path / "photos"
    shutil.copytree(photos, data)
    run(data, tmp_path / "run")
    for file in data.rglob("*.png"):
        file.rename(file.with_name(f"other{file.name}"))
    with pytest.raises(InputError, match="none of the 19 images that the run was started with"):
        run(data, tmp_path / "run")


def test_after_a_loss_that_is_not_finite_the_rate_may_be_lowered_and_config_json_says_when(
    photos: Path, tmp_path: Path
) -> None:
    folder, too_high = tmp_path / "run", ["optim.lr=1e30", "optim.warmup_steps=3"]
    lower = ["optim.lr=1e-3", "optim.warmup_steps=3", "optim.clip=0.5", "precision=bf16"]
    with pytest.raises(WorkError, match="last good checkpoint is that of step 2.* with a lower optim.lr, ") as error:
        run(photos, folder, *too_high)
    assert "it resumes from there (where the same happens again, remove checkpoints/step-00000002.json" in str(
        error.value
    )
    assert read_json(folder / "config.json")["failed"]["step"] == 3
    with pytest.raises(InputError, match="started with other settings .*optim.betas"):
        run(photos, folder, *lower, "optim.betas=0.5,0.5")
    with pytest.raises(WorkError, match="not a finite number at step 3"):  # weights of step 2 are finite, and huge
        run(photos, folder, *lower)
    (folder / "checkpoints" / "step-00000002.json").unlink()
    run(photos, folder, *lower)
    config = read_json(folder / "config.json")
    assert config["changes"] == [
        {"step": 1, "settings": {"optim.clip": [3.0, 0.5], "optim.lr": [1e30, 1e-3], "precision": ["fp32", "bf16"]}}
    ]
    assert [session["from_step"] for session in config["sessions"]] == [0, 2, 1]
    assert config["settings"]["optim"]["lr"] == 1e-3
    assert all(value.isfinite().all() for value in weights(folder).values())
    run(photos, folder, *lower)
    assert "failed" not in read_json(folder / "config.json")  # it is beyond that step
    with pytest.raises(InputError, match=r"optim.lr was 0.001, is 0.1"):
        run(photos, folder, *lower, "optim.lr=0.1")


def test_a_deleted_config_is_noticed_and_restored_and_never_replaced_by_other_settings(
    photos: Path, whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = stopped_after(whole, tmp_path / "run", HALF)
    before = read_json(folder / "config.json")
    (folder / "config.json").unlink()
    with pytest.raises(InputError, match=r"seed was 0, is 1"):
        run(photos, folder, "seed=1")
    assert not (folder / "config.json").exists()
    assert load_target(str(folder), device="cpu").training == "supervised"
    run(photos, folder)
    assert "config.json is gone; it is restored from the checkpoint" in " ".join(capfd.readouterr().err.split())
    after = read_json(folder / "config.json")
    assert len(after.pop("sessions")) == 2 and after == {key: before[key] for key in before if key != "sessions"}
    assert_same_end(folder, whole)
    shutil.rmtree(folder / "checkpoints")
    (folder / "config.json").unlink()
    with pytest.raises(InputError, match="holds a run without its config.json"):
        run(photos, folder)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a number": lambda lines: b"7\n" + lines,
    "not UTF-8": lambda lines: lines + b"\xff\xfe\n",
    "a step that is text": lambda lines: b'{"step": "one"}\n' + lines,
    "zeros": lambda lines: lines[:40] + b"\0" * 500 + lines[40:],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_log_does_not_block_a_resume(
    damage: str, photos: Path, whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = stopped_after(whole, tmp_path / "run", HALF)
    log = folder / "metrics.jsonl"
    log.write_bytes(DAMAGES[damage](log.read_bytes()))
    run(photos, folder)
    assert "metrics.jsonl has 1 damaged line, left out" in " ".join(capfd.readouterr().err.split())
    assert [json.loads(line)["step"] for line in log.read_text().splitlines()][-1] == LAST
    assert_same_end(folder, whole)


def test_a_full_disk_names_the_file_and_what_it_needs_and_with_room_the_run_resumes(
    photos: Path, whole: Path, tmp_path: Path, small_disk: Callable[[int], Path]
) -> None:
    size = (whole / "checkpoints" / f"step-{HALF:08d}.safetensors").stat().st_size
    disk = small_disk(size * 3)
    folder = disk / "run"
    with pytest.raises(WorkError, match="could not be written") as error:
        run(photos, folder)
    text = str(error.value)
    (good,) = sorted(int(file.stem.removeprefix("step-")) for file in folder.glob("checkpoints/step-*.json"))[-1:]
    assert f"step-{good + 1:08d}.safetensors could not be written (No space left on device): it needs" in text
    assert "are free in" in text and f"the last good checkpoint is that of step {good}. Make room" in text
    shutil.copytree(folder, tmp_path / "run")
    run(photos, tmp_path / "run")
    assert_same_end(tmp_path / "run", whole)
