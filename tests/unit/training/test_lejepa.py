"""LeJEPA: its loss against float64 integrals written out, and a run that learns."""

import json
import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from scipy import integrate
from torch import Tensor

import mixlab
from mixlab.recipes import RECIPES
from mixlab.training.lejepa import LeJepaConfig, prediction_loss, sigreg
from mixlab.training.loop import train
from mixlab.training.settings import override


def epps_pulley(values: Tensor) -> float:
    """The statistic of one direction, by the trapezoidal rule over both halves, in complex numbers."""
    points = [-5 + 10 * i / 16 for i in range(17)]
    heights = []
    for t in points:
        seen = sum(complex(math.cos(t * x), math.sin(t * x)) for x in values.tolist()) / len(values)
        heights.append(abs(seen - math.exp(-t * t / 2)) ** 2 * math.exp(-t * t / 2))
    return len(values) * sum((a + b) / 2 * 10 / 16 for a, b in pairwise(heights))


def test_the_regulariser_is_the_mean_statistic_over_views_and_directions() -> None:
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(3, 6, 4, dtype=torch.float64, generator=generator) * 1.7 + 0.3
    directions = torch.randn(4, 5, dtype=torch.float64, generator=generator)
    directions /= directions.norm(dim=0)
    seen = embeddings @ directions
    expected = sum(epps_pulley(seen[v, :, m]) for v in range(3) for m in range(5)) / 15
    assert sigreg(embeddings, directions).item() == pytest.approx(expected, rel=1e-12)
    single = sigreg(embeddings.float(), directions.float())
    assert single.item() == pytest.approx(expected, rel=1e-5)
    given = embeddings.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda z: sigreg(z, directions), (given,))


def test_seventeen_points_are_close_to_the_integral() -> None:
    """For one observation x, |exp(itx) - φ|² = 1 - 2 cos(tx) φ + φ²."""
    x = torch.tensor(0.8, dtype=torch.float64)

    def height(t: float) -> float:
        normal = math.exp(-t * t / 2)
        return (1 - 2 * math.cos(t * 0.8) * normal + normal**2) * normal

    exact, _ = integrate.quad(height, -math.inf, math.inf)
    assert sigreg(x.view(1, 1, 1), torch.ones(1, 1, dtype=torch.float64)).item() == pytest.approx(exact, rel=1e-5)


def test_normal_embeddings_score_lowest() -> None:
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(1, 512, 8, generator=generator)
    directions = torch.nn.functional.normalize(torch.randn(8, 64, generator=generator), dim=0)
    best = sigreg(normal, directions)
    for other in (0.5 * normal, 2 * normal, normal.sign(), normal + 1, torch.zeros_like(normal)):
        assert sigreg(other, directions) > 2 * best


def test_views_predict_the_mean_of_the_global_views() -> None:
    embeddings = torch.randn(5, 3, 4, dtype=torch.float64)
    expected = sum(
        (embeddings[v, b] - (embeddings[0, b] + embeddings[1, b]) / 2).square().sum().item()
        for v in range(5)
        for b in range(3)
    )
    assert prediction_loss(embeddings, 2).item() == pytest.approx(expected / (5 * 3 * 4))


def test_the_loss_of_a_step_and_its_gradient_are_those_of_the_written_out_formula() -> None:
    """In float64; the gradient against central differences of the formula, by a bias that moves every embedding."""
    torch.manual_seed(0)
    backbone = mixlab.create_model("vit_tiny", dim=16, depth=1, patch=8, image=16, head_dim=8)
    config = LeJepaConfig(num_directions=3, hidden=8, embedding=2, global_size=16, local_size=8, num_local=2)
    recipe = config.build(backbone, num_classes=0, total_steps=1, steps_per_epoch=1)
    recipe.network.double()
    views = [torch.randn(2, 4, 3, 16, 16).double(), torch.randn(2, 4, 3, 8, 8).double()]
    directions = torch.nn.functional.normalize(torch.randn(2, 3).double(), dim=0)
    bias = recipe.network.head[-1].bias
    scale = torch.tensor([1.0, -2.0], dtype=torch.float64)

    def written_out(shift: float) -> float:
        z = recipe.network(views)[0].detach() + shift * scale  # (V, B, K)
        centre = (z[0] + z[1]) / 2
        distances = [(z[v, b] - centre[b]).square().mean().item() for v in range(4) for b in range(4)]
        seen = z @ directions
        gaussian = [epps_pulley(seen[v, :, m]) for v in range(4) for m in range(3)]
        return 0.95 * sum(distances) / 16 + 0.05 * sum(gaussian) / 12

    loss, _ = recipe.loss((directions, *views))
    assert loss.item() == pytest.approx(written_out(0.0), rel=1e-12)
    loss.backward()
    slope = (written_out(1e-5) - written_out(-1e-5)) / 2e-5
    assert (bias.grad * scale).sum().item() == pytest.approx(slope, rel=1e-6)


def test_a_run_learns_logs_and_says_what_it_was(tmp_path: Path) -> None:
    few = [
        "steps=10",
        "batch=16",
        "model.depth=1",
        "method.num_directions=64",
        "log.every_steps=1",
        "knn.every_epochs=0",
        "optim.warmup_steps=2",
    ]
    config = override(RECIPES["lejepa_vit_tiny64"](), few)
    train(config, data="shapes:n=64,size=64", run=tmp_path / "run", device="cpu", name="lejepa_vit_tiny64")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert sum(losses[-3:]) < 0.8 * sum(losses[:3])
    assert {"prediction", "sigreg", "feature_spread"} <= set(lines[-1])
    stored = json.loads((tmp_path / "run" / "config.json").read_text())
    assert stored["settings"]["method"]["kind"] == "lejepa" and stored["settings"]["method"]["weight"] == 0.05


def test_a_collapse_is_named_and_wrong_settings_are_refused() -> None:
    watch = LeJepaConfig().watch()
    told = [text for step in range(6) for text in watch.look(step, {"feature_spread": 0.001})]
    assert len(told) == 1 and "equal features" in told[0] and "method.weight" in told[0]
    with pytest.raises(ValueError, match="method.weight is 1.5"):
        LeJepaConfig(weight=1.5)
