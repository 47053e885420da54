"""How far a matrix reaches, against a double loop."""

import math

import numpy as np
import pytest
import torch

from mixlab.analysis.distance import distance_profile, uniform_reach


def test_a_distance_profile_is_what_a_double_loop_counts() -> None:
    torch.manual_seed(0)
    matrix, grid, patches = torch.randn(13, 13, dtype=torch.float64), (3, 4), [i for i in range(13) if i != 6]
    profile = distance_profile(matrix, grid, patches)
    sequence, far, mean = [0.0] * 13, 0.0, 0.0
    for i in range(13):
        for j in range(13):
            sequence[abs(i - j)] += abs(matrix[i, j].item()) / matrix[i].abs().sum().item() / 13
    for i, p in enumerate(patches):
        total = matrix[p, patches].abs().sum().item()
        for j, q in enumerate(patches):
            distance = math.dist(divmod(i, 4), divmod(j, 4))
            share = abs(matrix[p, q].item()) / total / 12
            mean += share * distance
            far += share * (distance > 2)
    np.testing.assert_allclose(profile.sequence.numpy(), sequence)
    assert profile.mean_grid_distance == pytest.approx(mean)
    assert profile.far_share == pytest.approx(far)
    assert profile.grid.sum().item() == pytest.approx(1)
    kept = [abs(matrix[p, p].item()) / matrix[p, patches].abs().sum().item() for p in patches]
    assert profile.self_share == pytest.approx(sum(kept) / 12)
    others = [
        sum(abs(matrix[p, q].item()) * math.dist(divmod(i, 4), divmod(j, 4)) for j, q in enumerate(patches))
        / sum(abs(matrix[p, q].item()) for q in patches if q != p)
        for i, p in enumerate(patches)
    ]
    assert profile.distance_to_others == pytest.approx(sum(others) / 12)
    assert profile.mean_sequence_distance == pytest.approx(sum(d * share for d, share in enumerate(sequence)))


def test_a_causal_uniform_matrix_sees_half_as_many_tokens_and_itself() -> None:
    profile = distance_profile(torch.ones(4, 4).tril(), (2, 2), [0, 1, 2, 3])
    np.testing.assert_allclose(profile.sequence[0], (1 + 1 / 2 + 1 / 3 + 1 / 4) / 4)


def test_uniform_mixing_reaches_the_mean_distance_of_the_grid() -> None:
    assert uniform_reach(4, (2, 2), (0, 1, 2, 3)) == pytest.approx(((1 + 1 + math.sqrt(2)) / 3, 1 / 4))


def test_a_profile_of_the_wrong_grid_is_refused() -> None:
    with pytest.raises(ValueError, match="4 patches cannot fill a grid of 3 x 3"):
        distance_profile(torch.ones(4, 4), (3, 3), [0, 1, 2, 3])
