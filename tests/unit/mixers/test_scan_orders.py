"""Scan orders, against tables written by hand, and the mixing that owns them: always in image order."""

import pytest
import torch

from mixlab.mixers import Mamba1Config
from mixlab.mixers.scan_orders import CROSS, SERPENTINE, SKIPPING, grid_order, scan_orders, sequence_order

CPU = torch.device("cpu")

# Of a grid of 3 rows and 4 columns, whose cells are
#   0  1  2  3
#   4  5  6  7
#   8  9 10 11   and, in windows of 2 x 2, a row of padding 12 13 14 15 below.
BY_HAND = {
    "h": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11],
    "h_flip": [11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0],
    "v": [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11],
    "v_flip": [11, 7, 3, 10, 6, 2, 9, 5, 1, 8, 4, 0],
    "snake": [0, 1, 2, 3, 7, 6, 5, 4, 8, 9, 10, 11],
    "snake_v": [0, 4, 8, 9, 5, 1, 2, 6, 10, 11, 7, 3],
    "w2": [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15],
    "w2_flip": [15, 14, 11, 10, 13, 12, 9, 8, 7, 6, 3, 2, 5, 4, 1, 0],
    "skip0": [0, 2, 8, 10],
    "skip1": [4, 12, 6, 14],
    "skip2": [1, 3, 9, 11],
    "skip3": [5, 13, 7, 15],
}


@pytest.mark.parametrize("kind", BY_HAND)
def test_orders_of_a_grid_are_those_drawn_by_hand(kind: str) -> None:
    assert grid_order(kind, (3, 4), CPU).tolist() == BY_HAND[kind]


def test_padding_right_and_below_is_numbered_behind_all_cells() -> None:
    # 0 1 | 2 (6)        row 0: cells 0 1 2 and padding 6
    # 3 4 | 5 (7)        row 1: cells 3 4 5 and padding 7
    assert grid_order("w2", (2, 3), CPU).tolist() == [0, 1, 3, 4, 2, 6, 5, 7]
    # one row: the cells below are 4 (right), then 5, 6, 7, 8
    assert grid_order("w2", (1, 3), CPU).tolist() == [0, 1, 4, 5, 2, 3, 6, 7]


def test_a_class_token_stays_in_the_middle_of_every_scan() -> None:
    # 2 x 2 patches around a class token: the sequence is 0 1 [2] 3 4
    assert sequence_order("v", (2, 2), 5, CPU).tolist() == [0, 3, 2, 1, 4]
    assert sequence_order("h_flip", (2, 2), 5, CPU).tolist() == [4, 3, 2, 1, 0]
    assert sequence_order("backward", (1, 3), 4, CPU).tolist() == [3, 2, 1, 0]  # whole: the class token moves
    assert sequence_order("h_flip", (1, 3), 4, CPU).tolist() == [3, 1, 2, 0]  # patches 0 2 3 turned round it
    with pytest.raises(ValueError, match="one class token, got 7 tokens"):
        sequence_order("h", (2, 2), 7, CPU)


@pytest.mark.parametrize(
    "kinds", [CROSS, SERPENTINE, SKIPPING, ("w2", "h", "w7_flip"), ("backward", "forward")], ids="-".join
)
def test_what_is_arranged_is_restored(kinds: tuple[str, ...]) -> None:
    tokens = torch.randn(2, 15, 3)
    orders = scan_orders(kinds, (3, 5), 15, CPU)
    places = orders.arrange(tokens, len(kinds))
    restored = orders.restore(places)[:, :, :15]
    expected = tokens.unsqueeze(1).expand(-1, len(kinds), -1, -1)
    if kinds == SKIPPING:  # each token in one scan only
        torch.testing.assert_close(restored.sum(1), tokens)
    else:
        torch.testing.assert_close(restored, expected)


@pytest.mark.parametrize("kinds", [CROSS, ("w2", "h", "w2_flip"), ("h_flip", "w7", "v"), SKIPPING], ids="-".join)
def test_matrices_are_in_image_order_and_lower_triangular_along_their_scan(kinds: tuple[str, ...]) -> None:
    torch.manual_seed(0)
    mixer = Mamba1Config(expand=1, state=2, scans=kinds).build(4, 2).double()
    mixing, _ = mixer.prepare(torch.randn(1, 15, 4, dtype=torch.float64), (3, 5))
    matrix = mixing.matrix()
    torch.testing.assert_close(mixing.apply(), matrix @ mixing.values)
    torch.testing.assert_close(mixing.rows([7, 0, 14]), matrix[:, :, [7, 0, 14]])
    assert mixing.num_padding == matrix.shape[-1] - 15
    for head in range(mixing.num_heads):
        assert mixing.scan_of(head) == kinds[head // 4]
        walk = grid_order(mixing.scan_of(head), (3, 5), CPU)
        along = matrix[0, head][walk][:, walk]
        seen = matrix[0, head, :15, :15] != 0
        assert mixing.sides(head) == (bool(seen.tril(-1).any()), bool(seen.triu(1).any()))
        assert along.triu(1).abs().max() == 0 and along.diagonal(-1).abs().min() > 0


def test_every_block_off_the_diagonal_has_rank_n_at_most_and_one_state_alone_rank_one() -> None:
    torch.manual_seed(0)
    mixer = Mamba1Config(expand=1, state=3).build(8, 2).double()
    x = torch.randn(1, 64, 8, dtype=torch.float64)
    mixing, _ = mixer.prepare(x, (8, 8))
    matrix = mixing.matrix(slice(0, 8))
    assert set(torch.linalg.matrix_rank(matrix[0, :, 32:, :32], rtol=1e-12).tolist()) == {3}
    for state in range(3):
        mask = mixing.mask(state, slice(0, 8))
        assert set(torch.linalg.matrix_rank(mask[0, :, 32:, :32], rtol=1e-12).tolist()) == {1}


def test_unknown_scans_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown scan 'diagonal'"):
        Mamba1Config(scans=("h", "diagonal"))
    with pytest.raises(ValueError, match="divide the cells and go together"):
        Mamba1Config(scans=("skip0", "skip1"))
