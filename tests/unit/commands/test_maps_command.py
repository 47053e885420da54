"""`mixlab maps`: pictures that exist, are not empty, and show what the arrays hold."""

from pathlib import Path

import numpy as np
import pytest
from command_line import command
from look_runs import make_run
from PIL import Image

from mixlab.choices import SHOWN_MAP
from mixlab.cli import main
from mixlab.report import write_report
from mixlab.report.findings import read_findings
from mixlab.report.pictures import picture_rows
from mixlab.run import RunDirectory
from mixlab.run.arrays import from_arrays

maps = command("maps")


def test_pictures_and_arrays_of_several_models(tmp_path: Path) -> None:
    reg = make_run(tmp_path / "reg", "dinomambareg_tiny", num_registers=4)
    conv = make_run(tmp_path / "conv", "gatedconv_tiny")
    arguments = [str(reg), str(conv), "--data", "shapes:n=9", "--num-images", "3", "--run", str(tmp_path / "out")]
    main(["maps", *arguments])
    run = RunDirectory.open(tmp_path / "out")
    result, arrays = run.results()["maps"], run.arrays("maps")
    assert result["maps"] == {"reg": SHOWN_MAP, "conv": SHOWN_MAP}
    assert len(result["images"]) == 3
    assert arrays["map_reg"].shape == arrays["map_conv"].shape == (3, 8, 8)
    assert np.isfinite(arrays["map_reg"]).all()
    for name in result["figures"]:
        with Image.open(tmp_path / "out" / "figures" / name) as picture:
            assert picture.width > 300
            assert np.asarray(picture.convert("L")).std() > 10


def test_networks_made_for_small_images_show_photographs_in_more_patches(tmp_path: Path) -> None:
    conv = make_run(tmp_path / "conv", "gatedconv_tiny")  # for 64 px, in patches of 8
    found = maps([str(conv)], data="photo:cat", map="cosine")
    assert found["maps"] == {"conv": "pooled_cosine"} and found["protocol"]["image"] == 192
    assert RunDirectory.open(conv).arrays("maps")["map_conv"].shape == (1, 20, 29)  # 24 x 24 in its own shape


def test_several_kinds_of_map_are_columns_of_one_picture(tmp_path: Path) -> None:
    vim = make_run(tmp_path / "vim", "dinovim_tiny")
    one = maps([str(vim)], data="shapes:n=2", map="cosine", run=tmp_path / "one")
    two = maps([str(vim)], data="shapes:n=2", map="cosine+front_cosine", run=tmp_path / "two")
    widths = [Image.open(tmp_path / name / "figures" / "maps.png").width for name in ("one", "two")]
    assert one["figures"] == two["figures"] == ["maps.png", "pca.png"]  # and none of heads or registers
    assert widths[1] > 1.2 * widths[0]
    [page] = [picture_rows(record) for record in read_findings([tmp_path / "two"]).of("maps")]
    assert [row["name"] for row in page["rows"]] == ["image, mask", "vim, cosine", "vim, front_cosine"]


def test_maps_of_another_protocol_replace_neither_results_nor_pictures(tmp_path: Path) -> None:
    reg = make_run(tmp_path / "reg", "dinomambareg_tiny", num_registers=4)
    calls = [("register_cosine", "shapes:n=2"), ("mixing_rows", "shapes:n=2,seed=7")]
    for name, data in (*calls, calls[0]):  # the first again: it replaces itself
        maps([str(reg)], data=data, map=name, num_images=1, layer=1)
    run = RunDirectory.open(reg)
    stored = {name: (result["maps"]["reg"], result["data"]) for name, result in run.results().items()}
    assert stored == dict(zip(("maps", "maps_2"), calls, strict=True))
    assert [run.arrays(name)["map_reg"].shape for name in stored] == [(1, 4, 8, 8), (1, 8, 8, 8)]
    pictures = [file for result in run.results().values() for file in result["figures"]]
    assert {path.name for path in (reg / "figures").iterdir()} == set(pictures)
    assert len(pictures) == len({(reg / "figures" / name).read_bytes() for name in pictures}) == 6


def test_unpaired_masks_are_counted_and_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for folder, names in (("images", ("a", "b")), ("masks", ("a", "b", "alone"))):
        (tmp_path / "set" / folder).mkdir(parents=True)
        for name in names:
            Image.fromarray(np.full((40, 60), 255, np.uint8)).save(tmp_path / "set" / folder / f"{name}.png")
    vit = make_run(tmp_path / "vit", "vit_tiny")
    result = maps([str(vit)], data=str(tmp_path / "set"))
    assert [Path(file).name for file in result["unpaired"]] == ["alone.png"]
    assert "1 file has no counterpart" in (said := capfd.readouterr().err.replace("\n", "")) and "alone.png" in said


def test_a_photograph_is_cropped_as_knn_does_unless_it_is_to_be_squashed(tmp_path: Path) -> None:
    photo = tmp_path / "wide.jpg"
    pixels = np.zeros((64, 192, 3), np.uint8)
    pixels[:, 64:128] = 255  # white in the middle square alone
    Image.fromarray(pixels).save(photo, quality=100)
    vit = make_run(tmp_path / "vit", "vit_tiny")
    for fit in ("crop", "squash"):
        maps([str(vit)], data=str(photo), fit=fit)
    run = RunDirectory.open(vit)
    for name, brightness in (("maps", 255), ("maps_2", 85)):
        assert run.arrays(name)["images"].mean() == pytest.approx(brightness, abs=3)


def test_photographs_of_several_shapes_are_kept_drawn_and_reported_in_their_own(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for name, size in (("wide", (120, 60)), ("tall", (60, 120)), ("square", (80, 80))):
        noise = np.random.default_rng(0).integers(256, size=(9, 9, 3), dtype=np.uint8)
        Image.fromarray(noise).resize(size).save(tmp_path / "photos" / f"{name}.png")
    vit, conv = make_run(tmp_path / "vit", "vit_tiny"), make_run(tmp_path / "conv", "gatedconv_tiny")
    arguments = {"data": str(tmp_path / "photos"), "image": 64, "map": "cosine+norm", "run": tmp_path / "out"}
    found = maps([str(vit), str(conv)], **arguments)
    assert (found["protocol"]["fit"], found["protocol"]["multiple"]) == ("whole", 8)
    run = RunDirectory.open(tmp_path / "out")
    arrays = run.arrays("maps")  # without pickle
    grids = {"square": (8, 8), "tall": (11, 6), "wide": (6, 11)}
    names = [Path(name).stem for name in found["images"]]
    assert sorted(names) == sorted(grids)
    for place, name in enumerate(names):
        (high, wide), image = grids[name], arrays[f"images[{place}]"]
        assert image.shape == (3, 8 * high, 8 * wide)
        assert arrays[f"map_vit[{place}]"].shape == (2, high, wide)
        assert arrays[f"pca_colours_conv[{place}]"].shape == (high, wide, 3)
        np.testing.assert_array_equal(from_arrays(arrays, "images")[place], image)
    with Image.open(tmp_path / "out" / "figures" / "maps.png") as figure:
        heights = sum(high / wide for high, wide in grids.values())
        assert figure.height / figure.width == pytest.approx((1.35 * heights + 0.4) / (1.35 * 5 + 0.3), rel=0.02)
    record = read_findings([tmp_path / "out"]).of("maps")[0]
    page = picture_rows(record)
    assert page["widths"] == [round(grids[name][1] / grids[name][0], 4) for name in names]
    assert [len(row["maps"]) for row in page["rows"]] == [3] * 5
    write_report([tmp_path / "out"], tmp_path / "page.html")


def test_a_network_that_takes_squares_only_is_shown_them_with_a_note_or_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    photo, run = tmp_path / "wide.png", tmp_path / "out"
    Image.new("RGB", (120, 60), "red").save(photo)
    call = ["maps", "timm/mixer_s16_224", "--data", str(photo), "--run", str(run), "--map", "norm", "--device", "cpu"]
    with pytest.warns(UserWarning, match="timm/mixer_s16_224 takes squares only: shown with --fit square") as told:
        assert main(call) == 0
    assert len(told) == 1
    capfd.readouterr()
    assert RunDirectory.open(run).arrays("maps")["images"].shape == (1, 3, 224, 224)
    assert main([*call, "--fit", "whole"]) == 1
    assert "timm/mixer_s16_224 takes squares only; choose --fit square" in " ".join(capfd.readouterr().err.split())


def test_an_unknown_map_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no map 'attention'; choose one of cosine"):
        maps(["vit_tiny"], map="attention", run=tmp_path / "out")
    assert not (tmp_path / "out").exists()
