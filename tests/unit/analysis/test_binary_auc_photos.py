"""Real photographs with masks: the centre prior and luminance score what was measured apart from this code."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mixlab.analysis.binary_auc import binary_auc, centre_matched_auc, centre_prior
from tests.photographs import PHOTOGRAPHS, needs_photographs

IGNORE = 128

pytestmark = needs_photographs


def read(path: Path) -> torch.Tensor:
    return torch.from_numpy(np.array(Image.open(path).convert("L")))[None]  # (1, H, W)


def test_centre_prior_and_luminance_score_the_figures_measured_before() -> None:
    scores = []
    for path in sorted((PHOTOGRAPHS / "masks" / "masks").glob("pet_*.png")):
        mask, image = (
            read(file)[:, ::2, ::2]  # as good as all pixels for a mean of three digits
            for file in (path, PHOTOGRAPHS / "masks" / "images" / f"{path.stem}.jpg")
        )
        maps = torch.cat([centre_prior(*mask.shape[1:])[None], image])
        scores.append(binary_auc(maps, mask.expand(2, -1, -1), ignore=IGNORE, normalize=False))
    means = torch.stack(scores).nanmean(dim=0)
    assert means.tolist() == pytest.approx([0.876, 0.520], abs=6e-4)  # printed to three digits beside the data


def test_the_normalised_score_rewards_luminance_and_noise_where_the_matched_score_does_not():
    grid = (14, 14)
    paths = sorted((PHOTOGRAPHS / "masks" / "masks").glob("pet_*.png"))
    masks = torch.cat([torch.from_numpy(np.array(Image.open(path).resize((224, 224), 0)))[None] for path in paths])
    images = [
        Image.open(PHOTOGRAPHS / "masks" / "images" / f"{path.stem}.jpg").convert("L").resize(grid) for path in paths
    ]
    luminance = torch.stack([torch.from_numpy(np.array(image)) for image in images])
    noise = torch.rand(len(paths), *grid, generator=torch.Generator().manual_seed(0))
    prior = centre_prior(*grid).expand(len(paths), -1, -1)
    for maps, normalised in ((luminance, 0.75), (noise, 0.53), (prior, 0.8)):
        assert binary_auc(maps, masks, ignore=IGNORE).nanmean() > normalised
        assert centre_matched_auc(maps, masks, ignore=IGNORE).nanmean().item() == pytest.approx(0.5, abs=0.06)
