"""`mixlab maps`: pictures that exist, are not empty, and show what the arrays hold."""

from pathlib import Path

import numpy as np
import pytest
import tyro
from look_runs import make_run
from PIL import Image

from mixlab.commands.maps import maps
from mixlab.run import RunDirectory


def test_pictures_and_arrays_of_several_models(tmp_path: Path) -> None:
    reg = make_run(tmp_path / "reg", "dinomambareg_tiny", num_registers=4)
    conv = make_run(tmp_path / "conv", "gatedconv_tiny")
    arguments = [str(reg), str(conv), "--data", "shapes:n=9", "--num-images", "3", "--run", str(tmp_path / "out")]
    tyro.cli(maps, args=arguments)
    run = RunDirectory.open(tmp_path / "out")
    result, arrays = run.results()["maps"], run.arrays("maps")
    assert result["maps"] == {"reg": "cosine", "conv": "pooled_cosine"}
    assert len(result["images"]) == 3
    assert arrays["map_reg"].shape == arrays["map_conv"].shape == (3, 8, 8)
    assert np.abs(arrays["map_reg"]).max() <= 1
    for name in result["figures"]:
        with Image.open(tmp_path / "out" / "figures" / name) as picture:
            assert picture.width > 300
            assert np.asarray(picture.convert("L")).std() > 10


def test_maps_of_heads_and_registers_get_a_picture_of_their_own(tmp_path: Path) -> None:
    reg = make_run(tmp_path / "reg", "dinomambareg_tiny", num_registers=4)
    for name, count in (("register_cosine", 4), ("mixing_rows", 8)):
        maps([str(reg)], data="shapes:n=2", map=name, num_images=2, layer=1)
        assert RunDirectory.open(reg).arrays("maps")["map_reg"].shape == (2, count, 8, 8)
        assert (reg / "figures" / "maps_by_part.png").is_file()


def test_components_can_be_fitted_over_the_set(tmp_path: Path) -> None:
    vit = make_run(tmp_path / "vit", "vit_tiny")
    explained = [
        maps([str(vit)], data="shapes:n=3", num_images=3, pca_fit=fit)["pca"]["explained"]["vit"]
        for fit in ("image", "set")
    ]
    assert [len(part) for part in explained] == [3, 1]


def test_an_unknown_map_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no map 'attention'; choose one of cosine"):
        maps(["vit_tiny"], map="attention", run=tmp_path / "out")
    assert not (tmp_path / "out").exists()
