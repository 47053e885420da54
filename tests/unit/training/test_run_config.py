"""When a directory belongs to the run that is asked for."""

from pathlib import Path

import pytest

from mixlab.recipes import RECIPES, find_recipe, recipe_for
from mixlab.run import RunDirectory
from mixlab.run.codec import to_json
from mixlab.training.config import TrainConfig
from mixlab.training.settings import override
from mixlab.training.stored_settings import check_settings, same_data


def config(*changes: str) -> TrainConfig:
    return override(RECIPES["dino_vit_tiny64"](), changes)


def started(folder: Path, data: str = "shapes") -> RunDirectory:
    run = RunDirectory.create(folder)
    run.write_config({"data": data, "settings": to_json(config()), "sessions": [{"from_step": 0}]})
    return run


def test_a_run_that_failed_before_its_first_checkpoint_takes_other_settings_and_data(tmp_path: Path) -> None:
    run = started(tmp_path)
    assert check_settings(run, data="shapes", config=config()) == run.read_config()
    assert check_settings(run, data="shapes", config=config("optim.lr=1e-4")) == {}
    assert check_settings(run, data="shapes:n=64", config=config()) == {}


@pytest.mark.parametrize("file", ["checkpoints/step-00000001.json", "weights.safetensors", "results/training.json"])
def test_a_run_with_anything_to_show_keeps_its_settings_and_data(file: str, tmp_path: Path) -> None:
    run = started(tmp_path)
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).touch()
    with pytest.raises(ValueError, match="was started with other settings"):
        check_settings(run, data="shapes", config=config("optim.lr=1e-4"))
    with pytest.raises(ValueError, match="was started on 'shapes'"):
        check_settings(run, data="shapes:n=64", config=config())


@pytest.mark.parametrize("recipe", ["dino_dinovim_tiny", "supervised_vit_tiny"])
def test_an_older_run_resumes_as_it_recorded(recipe: str, tmp_path: Path) -> None:
    now = find_recipe(recipe)
    settings = to_json(now)
    for name in now.method.earlier:  # which did not exist
        del settings["method"][name]
    settings["data"]["size"], settings["optim"]["lr"] = 256, 4e-3  # defaults of that time
    run = RunDirectory.create(tmp_path)
    run.write_config({"data": "shapes", "recipe": recipe, "settings": settings, "sessions": []})
    assert recipe_for(tmp_path, recipe) == now, "it has not begun"
    (tmp_path / "weights.safetensors").touch()
    older = recipe_for(tmp_path, recipe)
    assert (older.data.size, older.optim.lr) == (256, 4e-3)
    assert {name: getattr(older.method, name) for name in now.method.earlier} == dict(now.method.earlier)
    assert check_settings(run, data="shapes", config=older)
    with pytest.raises(ValueError, match=r"data.size was 256, is None.*config.json as the recipe"):
        check_settings(run, data="shapes", config=now)
    assert find_recipe(str(tmp_path / "config.json")) == older
    run.write_config({**run.read_config(), "settings": to_json(now)})
    assert recipe_for(tmp_path, recipe) == now and now.data.size is None


def test_the_size_of_decoded_images_makes_no_difference_to_dense_tasks(tmp_path: Path) -> None:
    now = find_recipe("segment_vit_tiny")
    settings = to_json(now)
    settings["data"]["size"] = 256
    run = RunDirectory.create(tmp_path)
    run.write_config({"data": "shapes", "settings": settings, "sessions": []})
    (tmp_path / "weights.safetensors").touch()
    assert check_settings(run, data="shapes", config=now)


def test_data_may_be_typed_in_any_way_that_means_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "photos" / "more").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for name in ("photos/", "./photos", str(tmp_path / "photos"), "photos/more/.."):
        assert same_data("photos", name), name
    assert same_data("ade:photos:things=1-76", f"ade:{tmp_path}/photos/:things=1-76")
    assert same_data("wds:photos/{0..3}.tar", f"wds:{tmp_path}/photos/{{0..3}}.tar")
    assert not same_data("photos", "photos/more")
    assert not same_data("ade:photos:things=1-76", "ade:photos:things=1-77")
    assert not same_data("ade:photos", "voc:photos")


def test_drawn_images_are_no_folder_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shapes").mkdir()
    monkeypatch.chdir(tmp_path)
    assert not same_data("shapes", "./shapes") and not same_data("shapes:n=4", "shapes:n=5")
