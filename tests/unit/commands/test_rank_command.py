"""`mixlab rank` from targets to tables, results and figures."""

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import command
from look_runs import make_run

from mixlab.cli import main
from mixlab.run import RunDirectory

rank = command("rank")


def test_several_targets_go_side_by_side_into_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vit, vim = make_run(tmp_path / "vit", "vit_tiny"), make_run(tmp_path / "vim", "dinovim_tiny", state=8)
    arguments = [str(vit), f"{vim}=scan", "--data", "shapes:n=9", "--num-images", "2", "--chunk", "20"]
    main(["rank", *arguments, "--run", str(tmp_path / "out"), "--json", "-"])
    printed = json.loads(capsys.readouterr().out)
    assert set(printed["results"]) == {"vit", "scan"}
    run = RunDirectory.open(tmp_path / "out")
    stored = run.results()
    assert stored["rank_scan"]["num_images"] == 2
    assert stored["rank_scan"]["subject"]["training"] == "dino"
    assert stored["rank_scan"]["overall"]["scan"]["mask"]["max"] == 1
    assert stored["rank_scan"]["overall"]["off_diagonal"]["numerical"]["max"] <= 8
    assert stored["rank_vit"]["overall"]["off_diagonal"]["bound"]["max"] == 20
    assert stored["rank_vit"]["provenance"]["versions"]["torch"]
    assert run.arrays("rank_scan")["off_diagonal_spectrum"].shape == (2, 16, 20)
    figures = {path.name for path in (tmp_path / "out" / "figures").iterdir()}
    charts = [f"rank_vit+scan_{kind}.svg" for kind in ("by_layer", "spectra", "distance")]
    assert figures == {*charts, "rank_vit_blocks.svg", "rank_scan_blocks.svg"}


def test_a_rank_that_no_block_can_exceed_is_named_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vit = make_run(tmp_path / "vit", "vit_tiny")  # queries 16 wide, 65 tokens
    on = ["rank", str(vit), "--data", "shapes:n=1", "--layers", "0", "--chunk"]
    for chunk, said in (
        (["8"], "rank 16 cannot miss any of blocks of 8 tokens a side: give a lower --rank, or larger images"),
        (["8", "--rank", "8"], "rank 8 cannot miss any of blocks of 8 tokens a side"),
        (["20"], "the best approximation of rank 16 misses"),
        (["8", "--rank", "2"], "the best approximation of rank 2 misses"),
    ):
        assert main([*on, *chunk]) == 0
        printed = " ".join(capsys.readouterr().out.split())
        assert said in printed and "of rank 1 " in printed


def test_one_run_keeps_its_own_results(tmp_path: Path) -> None:
    vit = make_run(tmp_path / "vit", "vit_tiny")
    rank([str(vit)], data="shapes:n=3", num_images=1, layers=(-1,), heads=(0, 2), whole=True)
    result = RunDirectory.open(vit).results()["rank_vit"]
    assert result["heads"] == [0, 2]
    assert [entry["layer"] for entry in result["layers"]] == [1]
    assert result["overall"]["whole"]["numerical"] <= 65
    assert result["chunk"] == 32


def test_ranks_of_another_protocol_or_data_set_replace_neither_results_nor_figures(tmp_path: Path) -> None:
    vim = make_run(tmp_path / "vim", "dinovim_tiny", state=8)
    first = {"data": "shapes:n=3", "num_images": 1, "layers": (0,), "chunk": 32}
    for call in (first, first | {"skip": False}, first | {"data": "shapes:n=3,seed=7"}):
        rank([str(vim)], **call)
    run = RunDirectory.open(vim)
    results = run.results()
    assert sorted(results) == ["rank_vim", "rank_vim_2", "rank_vim_3"]
    assert [results[name]["data"] for name in sorted(results)] == ["shapes:n=3", "shapes:n=3", "shapes:n=3,seed=7"]
    kinds = ("blocks", "by_layer", "distance", "spectra")
    expected = {f"{name}_{kind}.svg" for name in results for kind in kinds}
    assert {path.name for path in (vim / "figures").iterdir()} == expected
    effective = [results[name]["overall"]["diagonal"]["effective"]["mean"] for name in ("rank_vim", "rank_vim_2")]
    assert effective[1] < effective[0] <= 32, "without its skip, the diagonal is nearer to rank one"
    means = [m for m in run.measurements() if m.metric == "off_diagonal_rank" and m["definition"] == "effective"]
    assert len(means) == 3 and max(m.value for m in means) < 8.001


def test_grid_only_models_and_bad_calls_get_a_sentence(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(ValueError, match="convnext_atto has no mixing matrices"):
        rank(["timm/convnext_atto"], data="shapes:n=2", image=64, num_images=1, run=out)
    with pytest.raises(ValueError, match="no target given"):
        rank([], run=out)
    with pytest.raises(ValueError, match="share a label"):
        rank(["vit_tiny=a", "vit_small=a"], run=out)
    with pytest.raises(ValueError, match="must be LABEL=KIND"):
        rank(["vit_tiny"], training=("dino",), run=out)
    with pytest.raises(ValueError, match="--training names b, the labels are vit_tiny"):
        rank(["vit_tiny"], training=("b=dino",), run=out)
    with pytest.raises(FileNotFoundError, match="not a data source"):
        rank(["vit_tiny"], data=str(tmp_path / "nowhere"), run=out)


def test_plain_folders_of_images_are_read_and_broken_files_skipped(tmp_path: Path) -> None:
    from PIL import Image

    folder = tmp_path / "photos"
    folder.mkdir()
    for index in range(2):
        pixels = np.random.default_rng(index).integers(0, 255, (40, 50, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{index}.png")
    (folder / "0a.png").write_bytes(b"no image")
    vit = make_run(tmp_path / "vit", "vit_tiny")
    result = rank([str(vit)], data=str(folder), num_images=5, layers=(0,))
    assert result["results"]["vit"]["num_images"] == 2
