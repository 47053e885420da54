"""Changed images: each change does what it says, and a classifier is scored under all of them at once."""

import json
from pathlib import Path

import pytest
import torch
from command_line import command
from look_runs import make_run
from PIL import Image
from torch import nn

from mixlab.cli import main
from mixlab.data.images import parse_source
from mixlab.data.shapes import SHAPE_CLASSES
from mixlab.data.transforms import LUMA
from mixlab.evaluation.classifier import NamedClassifier
from mixlab.evaluation.machine import CentreView, Machine
from mixlab.evaluation.own_classifier import load_classifier
from mixlab.evaluation.shifts import SHIFTS, ShiftScores, evaluate_shifts, score_shifts, shifted
from mixlab.run import RunDirectory, Subject, measurements_of
from mixlab.training.distributed import World
from tests.bars import CountingBar

probe = command("probe")
robust = command("robust")

IMAGES = torch.randint(0, 256, (3, 3, 40, 40), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
DATA = "shapes:n=60,size=32"
QUICK = ["--image", "32", "--workers", "0", "--device", "cpu"]


def change(name: str, images: torch.Tensor = IMAGES, first: int = 0) -> torch.Tensor:
    return shifted(images, name, range(first, first + len(images))).float()


def colour_classifier() -> NamedClassifier:
    """Any network: what it says depends on every pixel."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 10))
    return NamedClassifier(network, SHAPE_CLASSES, CentreView(16, 1.0), Subject(label="any"), kind="its own")


def score(num_ranks: int, num_images: int = 23, batch: int = 5) -> list[ShiftScores]:
    images, machine = parse_source(f"shapes:n={num_images},size=16"), Machine(World(torch.device("cpu")), batch=batch)
    ranks = [(rank, num_ranks) for rank in range(num_ranks)]
    return [score_shifts(images, colour_classifier(), machine=machine, shard=shard) for shard in ranks]


def test_a_bar_ends_with_the_last_image_that_this_rank_scores() -> None:
    bar = CountingBar()
    machine = Machine(World(torch.device("cpu"), rank=1, size=2), batch=5, bar=bar)
    evaluate_shifts(colour_classifier(), "shapes:n=23,size=16", limit=9, machine=machine)
    assert bar.totals == bar.done == [4]


def test_grey_is_lightness_and_pale_keeps_the_order_of_pixels() -> None:
    grey = change("grey")
    assert torch.equal(grey[:, 0], grey[:, 1]) and torch.equal(grey[:, 0], grey[:, 2])
    light = sum(share * IMAGES[:, channel].float() for channel, share in enumerate(LUMA))
    torch.testing.assert_close(grey[:, 0], light, atol=0.51, rtol=0)
    pale = change("pale")
    assert (pale.min(), pale.max()) == (89, 166)  # 255 (0.5 - 0.15) and 255 (0.5 + 0.15), rounded
    torch.testing.assert_close(pale, 127.5 + 0.3 * (IMAGES.float() - 127.5), atol=0.51, rtol=0)


def test_blur_is_a_gaussian_of_a_fortieth_of_the_side() -> None:
    point = torch.zeros(1, 3, 40, 40, dtype=torch.uint8)
    point[..., 20, 20] = 255
    blurred = change("blur", point)[0, 0] / 255
    away = torch.arange(40.0) - 20
    expected = torch.exp(-0.5 * (away[:, None] ** 2 + away[None] ** 2))
    torch.testing.assert_close(blurred, expected / expected.sum(), atol=4e-3, rtol=0)
    flat = torch.full((1, 3, 40, 40), 77, dtype=torch.uint8)
    assert torch.equal(change("blur", flat), flat.float())


def test_noise_has_its_size_and_follows_the_number_of_the_image() -> None:
    middle = torch.full((8, 3, 40, 40), 128, dtype=torch.uint8)
    noise = (change("noise", middle) - 128) / 255
    assert noise.std() == pytest.approx(0.1, rel=0.03) and abs(noise.mean()) < 2e-3
    assert torch.equal(change("noise"), change("noise"))
    same = IMAGES[:1].expand(3, -1, -1, -1)
    several = change("noise", same, first=4)
    assert all(torch.equal(several[i], change("noise", same[:1], first=4 + i)[0]) for i in range(3))
    assert len({tuple(image.flatten().tolist()) for image in several}) == 3


@pytest.mark.parametrize(("num_ranks", "num_images"), [(3, 23), (7, 4)])
def test_scores_do_not_depend_on_the_number_of_ranks_or_the_batch(num_ranks: int, num_images: int) -> None:
    """With 7 ranks for 4 images, three have none."""
    (alone,) = score(1, num_images)
    together = ShiftScores.together(score(num_ranks, num_images, batch=2))
    assert together.numbers.tolist() == alone.numbers.tolist() == list(range(num_images))
    for name in ("plain", *SHIFTS):
        assert torch.equal(together.right[name], alone.right[name])


def test_images_that_cannot_be_read_are_named_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vit = make_run(tmp_path / "vit", "vit_tiny")
    for split in ("train", "val"):
        for name, colour in (("ant", (250, 10, 10)), ("bee", (10, 250, 10))):
            (tmp_path / "photos" / split / name).mkdir(parents=True)
            for index in range(4):
                Image.new("RGB", (64, 64), colour).save(tmp_path / "photos" / split / name / f"{index}.png")
    data = str(tmp_path / "photos")
    probe(str(vit), data=data, epochs=1, batch=8, mode="cached", blocks=(1,), strategies=("mean",), workers=0)
    broken = sorted((tmp_path / "photos" / "val").rglob("*.png"))
    broken[2].write_bytes(b"not an image")
    with pytest.warns(UserWarning, match="skipped"):
        result = robust(str(vit), shifts=data, workers=0)
    assert result["shifts"]["noise"]["n"] == 7
    assert [Path(path).name for path in result["unreadable"]] == [broken[2].name]
    assert "1 of the 8 images cannot be read" in " ".join(capsys.readouterr().err.split())
    for file in broken:
        file.write_bytes(b"not an image")
    with pytest.warns(UserWarning, match="skipped"), pytest.raises(ValueError, match="none of the 8 images"):
        robust(str(vit), shifts=data, workers=0)


def test_edges_are_dark_where_lightness_changes_and_white_elsewhere() -> None:
    halves = torch.zeros(1, 3, 40, 40, dtype=torch.uint8)
    halves[..., 20:] = 100
    edges = change("edges", halves)[0, 0]
    assert (edges[:, :19] == 255).all() and (edges[:, 21:] == 255).all()
    assert (edges[:, 19:21] == 55).all()  # 255 (1 - 2 x 100 / 255)


def test_a_probe_is_scored_under_every_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vit = make_run(tmp_path / "vit", "vit_tiny")
    heads = ["--mode", "cached", "--blocks", "1", "--strategies", "mean", "--lrs", "0.1", "--weight-decays", "0"]
    main(["probe", f"{vit}=vit", "--data", DATA, "--epochs", "30", "--batch", "20", *heads, *QUICK])
    probed = RunDirectory.open(vit).results()["probe"]["modes"]["cached"]["best"]
    capsys.readouterr()
    main(["robust", f"{vit}=vit", "--shifts", DATA, "--batch", "25", *QUICK, "--json", "-"])
    result = json.loads(capsys.readouterr().out)
    assert result == RunDirectory.open(vit).results()["shifts_vit"]
    figures = result["shifts"]
    assert list(figures) == ["plain", *SHIFTS, "mean"]
    assert (figures["plain"]["top1"], figures["plain"]["n"]) == (probed["top1"], probed["n"])
    mean = sum(figures[name]["top1"] for name in SHIFTS) / len(SHIFTS)
    assert figures["mean"]["top1"] == pytest.approx(mean) and figures["mean"]["low"] <= mean <= figures["mean"]["high"]
    assert [(m.metric, m["data"], m["change"], m.value) for m in measurements_of(result, "here")] == [
        *(("shift_top1", DATA, name, figures[name]["top1"]) for name in SHIFTS),
        ("shifted_top1", DATA, "mean", figures["mean"]["top1"]),
    ]


def test_a_change_is_judged_by_the_classifier_itself(tmp_path: Path) -> None:
    """Against a loop over images: decode, change, look up."""
    vit = make_run(tmp_path / "vit", "vit_tiny")
    heads = {"mode": "cached", "blocks": (1,), "strategies": ("mean",), "lrs": (0.1,), "weight_decays": (0.0,)}
    probe(str(vit), data=DATA, epochs=5, batch=20, image=32, workers=0, device="cpu", **heads)
    found = robust(str(vit), shifts=DATA, workers=0, device="cpu")["shifts"]
    classifier = load_classifier(str(vit), device="cpu")
    source, right = parse_source(DATA, split="val"), 0
    for index in range(len(source)):
        pixels = source.load_fitted(index, classifier.view.load_size, "crop")[0][None]
        grey = shifted(pixels, "grey", [index])
        right += classifier.classes[int(classifier.logits(grey).argmax())] == source.classes[source.label(index)]
    assert found["grey"]["correct"] == right


def test_a_network_in_a_file_has_the_probe_that_was_made_of_it(tmp_path: Path) -> None:
    mine, other = (
        str(make_run(tmp_path / name, name) / "weights.safetensors") for name in ("vit_tiny", "gatedconv_tiny")
    )
    heads = {"mode": "cached", "blocks": (1,), "strategies": ("mean",), "lrs": (0.1,), "weight_decays": (0.0,)}
    results = tmp_path / "results"
    probe(mine, data=DATA, run=results, epochs=2, batch=20, image=32, workers=0, device="cpu", **heads)
    assert robust(mine, shifts=DATA, run=results, workers=0, device="cpu")["shifts"]
    with pytest.raises(ValueError, match="has no classifier: give --head FILE, probe it first"):
        robust(other, shifts=DATA, run=results, workers=0, device="cpu")


def test_wrong_calls_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--data for ImageNet's sets, or --shifts"):
        robust("vit_tiny")
    with pytest.raises(ValueError, match="score --shifts without --shard"):
        robust("vit_tiny", shifts=DATA, shard="0/2")
