"""Changed images: each change does what it says, and a classifier is scored under all of them at once."""

import json
from pathlib import Path

import pytest
import torch
import tyro
from look_runs import make_run

from mixlab.commands.probe import probe
from mixlab.commands.robust import robust
from mixlab.evaluation.shifts import LUMA, SHIFTS, shifted
from mixlab.run import RunDirectory

IMAGES = torch.randint(0, 256, (3, 3, 40, 40), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
DATA = "shapes:n=60,size=32"
QUICK = ["--image", "32", "--workers", "0", "--device", "cpu"]


def change(name: str, images: torch.Tensor = IMAGES, seed: int = 0) -> torch.Tensor:
    return shifted(images, name, torch.Generator().manual_seed(seed)).float()


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


def test_noise_has_its_size_and_follows_its_seed() -> None:
    middle = torch.full((8, 3, 40, 40), 128, dtype=torch.uint8)
    noise = (change("noise", middle) - 128) / 255
    assert noise.std() == pytest.approx(0.1, rel=0.03) and abs(noise.mean()) < 2e-3
    assert torch.equal(change("noise"), change("noise")) and not torch.equal(change("noise"), change("noise", seed=1))


def test_edges_are_dark_where_lightness_changes_and_white_elsewhere() -> None:
    halves = torch.zeros(1, 3, 40, 40, dtype=torch.uint8)
    halves[..., 20:] = 100
    edges = change("edges", halves)[0, 0]
    assert (edges[:, :19] == 255).all() and (edges[:, 21:] == 255).all()
    assert (edges[:, 19:21] == 55).all()  # 255 (1 - 2 x 100 / 255)


def test_a_probe_is_scored_under_every_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vit = make_run(tmp_path / "vit", "vit_tiny")
    heads = ["--mode", "cached", "--blocks", "1", "--strategies", "mean", "--lrs", "0.1", "--weight-decays", "0"]
    tyro.cli(probe, args=[f"{vit}=vit", "--data", DATA, "--epochs", "30", "--batch", "20", *heads, *QUICK])
    probed = RunDirectory.open(vit).results()["probe"]["modes"]["cached"]["best"]
    tyro.cli(robust, args=[f"{vit}=vit", "--shifts", DATA, "--batch", "25", *QUICK, "--json", "-"])
    result = json.loads(capsys.readouterr().out)
    assert result == RunDirectory.open(vit).results()["robust_vit"]
    figures = result["shifts"]
    assert list(figures) == ["plain", *SHIFTS, "mean"]
    assert (figures["plain"]["top1"], figures["plain"]["n"]) == (probed["top1"], probed["n"])
    mean = sum(figures[name]["top1"] for name in SHIFTS) / len(SHIFTS)
    assert figures["mean"]["top1"] == pytest.approx(mean) and figures["mean"]["low"] <= mean <= figures["mean"]["high"]
    assert [(m["metric"], m["data"]) for m in result["measurements"]] == [
        *(("shift_top1", f"{DATA}, {name}") for name in SHIFTS), ("shifted_top1", f"{DATA}, mean")
    ]  # fmt: skip


def test_a_change_is_judged_by_the_classifier_itself(tmp_path: Path) -> None:
    """Against a loop over images: decode, change, look up."""
    from mixlab.commands.robust import load_classifier
    from mixlab.data.images import parse_source

    vit = make_run(tmp_path / "vit", "vit_tiny")
    heads = {"mode": "cached", "blocks": (1,), "strategies": ("mean",), "lrs": (0.1,), "weight_decays": (0.0,)}
    probe(str(vit), data=DATA, epochs=5, batch=20, image=32, workers=0, device="cpu", **heads)
    found = robust(str(vit), shifts=DATA, workers=0, device="cpu")["shifts"]
    classifier, _ = load_classifier(str(vit), head=None, weights=None, training=None, image=None, crop_share=None)
    source, right = parse_source(DATA, split="val"), 0
    for index in range(len(source)):
        pixels = source.load_fitted(index, classifier.view.load_size, "crop")[0][None]
        grey = shifted(pixels, "grey", torch.Generator())
        view = classifier.view(grey, mean=classifier.pixel_mean, std=classifier.pixel_std)
        with torch.no_grad():
            right += classifier.classes[int(classifier(view).argmax())] == source.classes[source.label(index)]
    assert found["grey"]["correct"] == right


def test_wrong_calls_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--data for ImageNet's sets, or --shifts"):
        robust("vit_tiny")
    with pytest.raises(ValueError, match="score --shifts in one go"):
        robust("vit_tiny", shifts=DATA, shard="0/2")
