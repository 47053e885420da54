"""The map of isolation from the border: heat that flows between like patches, the same by hand."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mixlab.analysis.isolation import ALIKE, LEAVING, WEAKEST, isolation_maps
from mixlab.errors import InputError


def scene(height: int, width: int, *places: tuple[int, int], dim: int = 8) -> Tensor:
    """Patches (1, h, w, D) of a ground, with a subject in some places, and a little noise."""
    generator = torch.Generator().manual_seed(0)
    ground, subject = torch.randn(2, dim, generator=generator)
    patches = ground.repeat(1, height, width, 1)
    for row, column in places:
        patches[0, row, column] = subject
    return patches + 0.05 * torch.randn(patches.shape, generator=generator)


def test_it_is_the_heat_that_remains_step_by_step() -> None:
    patches = torch.randn(2, 4, 5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for image, found in zip(patches, isolation_maps(patches), strict=True):
        features = F.normalize(image.flatten(0, 1) - image.mean((0, 1)), dim=-1)
        flow = torch.tensor([[max(float(a @ b), 0.0) ** 2 + WEAKEST for b in features] for a in features])
        out = [LEAVING if row in (0, 3) or column in (0, 4) else 0.0 for row in range(4) for column in range(5)]
        heat = torch.zeros(len(features))
        for _ in range(20_000):  # until what comes in is what goes out
            heat = (1 + flow @ heat) / (flow.sum(1) * (1 + torch.tensor(out)))
        mean = flow @ heat.log() / flow.sum(1)
        torch.testing.assert_close(found.flatten(), mean.double(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "places", [((2, 2), (2, 3), (3, 2)), ((0, 3), (1, 3), (2, 3), (3, 3)), ((5, 5), (4, 5), (4, 4))]
)
def test_a_subject_is_brighter_than_the_ground_wherever_it_lies(places: tuple[tuple[int, int], ...]) -> None:
    maps = isolation_maps(scene(6, 6, *places))[0]
    inside = torch.zeros(6, 6, dtype=torch.bool)
    for place in places:
        inside[place] = True
    assert maps[inside].min() > maps[~inside].max()


def test_the_border_itself_is_as_bright_as_its_like() -> None:
    maps = isolation_maps(scene(8, 8, (3, 3), (3, 4), (4, 3)))[0]
    on_border, inside = maps[0].median(), maps[6, 1:-1].median()
    assert abs(float(on_border - inside)) < 0.02 * float(maps.max() - maps.min())


def test_only_directions_from_the_mean_count() -> None:
    patches = scene(5, 7, (2, 2), (2, 3)).double()
    rotation = torch.linalg.qr(torch.randn(8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2)))[0]
    torch.testing.assert_close(isolation_maps(3 * patches @ rotation + 2.0), isolation_maps(patches))


def test_patches_that_are_alike_have_no_inside() -> None:
    same = torch.randn(8).expand(2, 4, 4, 8)
    assert not isolation_maps(same).any()
    assert not isolation_maps(same + ALIKE / 100 * torch.randn(2, 4, 4, 8)).any()


def test_grids_that_are_all_border_and_wrong_input() -> None:
    assert isolation_maps(scene(2, 2, (0, 0))).isfinite().all()
    assert isolation_maps(scene(1, 5, (0, 0))).isfinite().all()
    with pytest.raises(InputError, match="NaN"):
        isolation_maps(torch.full((1, 2, 2, 3), torch.nan))
    with pytest.raises(InputError, match="shape"):
        isolation_maps(torch.zeros(2, 2, 3))
