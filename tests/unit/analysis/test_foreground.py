"""How a mask becomes foreground and background, against windows counted one by one."""

from fractions import Fraction
from math import ceil, floor

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from mixlab.analysis.foreground import split_mask


def split_by_counting(
    mask: list[list[int]], grid: tuple[int, int], ignore: int, threshold: Fraction
) -> list[list[int]]:
    """1 foreground, 0 background, -1 neither, by the documented rule in exact arithmetic."""
    (h, w), (H, W) = grid, (len(mask), len(mask[0]))
    cells = []
    for i in range(h):
        rows = mask[floor(Fraction(i * H, h)) : ceil(Fraction((i + 1) * H, h))]
        cells.append([])
        for j in range(w):
            columns = slice(floor(Fraction(j * W, w)), ceil(Fraction((j + 1) * W, w)))
            window = [value for row in rows for value in row[columns] if value != ignore]
            share = Fraction(sum(value != 0 for value in window), len(window)) if window else None
            cells[-1].append(-1 if share is None else int(share >= threshold))
    return cells


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    size=st.tuples(st.integers(1, 40), st.sampled_from([1, 5, 8, 16, 24, 32, 33])),
    grid=st.tuples(st.integers(1, 9), st.sampled_from([1, 2, 3, 4, 8])),
    dtype=st.sampled_from([torch.uint8, torch.int32, torch.int64, torch.uint16, torch.float32]),
    tenths=st.integers(1, 10),
)
def test_cells_follow_the_documented_rule(seed, size, grid, dtype, tenths):
    generator = torch.Generator().manual_seed(seed)
    masks = torch.randint(4, (2, *size), generator=generator)
    masks[:, : size[0] // 2] = torch.where(torch.rand(2, size[0] // 2, size[1], generator=generator) < 0.7, 3, 0)
    foreground, background = split_mask(masks.to(dtype), grid, ignore=3, threshold=tenths / 10)
    assert not (foreground & background).any()
    cells = torch.where(foreground, 1, torch.where(background, 0, -1)).tolist()
    assert cells == [split_by_counting(mask, grid, 3, Fraction(tenths, 10)) for mask in masks.tolist()]


@pytest.mark.parametrize(
    ("size", "grid"), [((224, 224), (14, 14)), ((375, 500), (14, 14)), ((60, 64), (7, 8)), ((3, 3), (6, 6))]
)
def test_windows_are_those_of_area_interpolation(size, grid):
    masks = torch.rand(5, *size, generator=torch.Generator().manual_seed(0)) < 0.5
    share = F.interpolate(masks[:, None].double(), size=grid, mode="area")[:, 0]
    foreground, background = split_mask(masks, grid)
    clear = (share - 0.5).abs() > 1e-9
    assert torch.equal(foreground[clear], share[clear] > 0.5)
    assert torch.equal(foreground, ~background)


def test_every_value_but_zero_and_ignore_is_foreground():
    masks = torch.tensor([[[0, 1, 2, -1, 255, 1000]]])
    foreground, background = split_mask(masks, (1, 6), ignore=1000)
    assert foreground.tolist() == [[[False, True, True, True, True, False]]]
    assert background.tolist() == [[[True, False, False, False, False, False]]]


def test_tall_windows_do_not_overflow_their_counts():
    masks = torch.ones(1, 1024, 8, dtype=torch.uint8)
    masks[:, 300:] = 0  # 300 of 1,024 rows: as a byte, 300 would read 44
    assert split_mask(masks, (1, 1), threshold=0.29)[0].item()
    assert not split_mask(masks, (1, 1), threshold=0.30)[0].item()
    masks[:, :255] = 0
    assert not split_mask(masks[:, :510], (2, 1), threshold=0.01)[0][0, 0].item()


def test_soft_masks_are_averaged_over_the_pixels_that_count():
    masks = torch.tensor([[[0.9, 0.2, 0.5, -1.0], [0.4, 0.4, -1.0, -1.0]]])
    assert split_mask(masks, (1, 2), ignore=-1)[0].tolist() == [[[False, True]]]  # means 0.475 and 0.5
    assert split_mask(masks, (2, 4), ignore=-1, threshold=0.4)[0].tolist() == [
        [[True, False, True, False], [True, True, False, False]]
    ]


def test_an_ignore_value_is_found_in_the_precision_of_the_mask():
    masks = torch.tensor([[[-0.1, 1.0]]])  # float32: not the double -0.1
    assert split_mask(masks, (1, 2), ignore=-0.1)[0].tolist() == [[[False, True]]]
    assert split_mask(masks, (1, 2), ignore=-0.1)[1].tolist() == [[[False, False]]]


def test_floating_labels_read_as_integer_labels():
    labels = torch.randint(4, (3, 30, 20), generator=torch.Generator().manual_seed(0))
    for soft, hard in zip(split_mask(labels.float() * 85, (4, 6)), split_mask(labels * 85, (4, 6)), strict=True):
        assert torch.equal(soft, hard)


def test_the_masks_given_are_not_changed():
    for dtype in (torch.bool, torch.uint8, torch.float64):
        masks = torch.randint(2, (2, 16, 16)).to(dtype)
        before = masks.clone()
        split_mask(masks, (4, 4), ignore=1)
        assert torch.equal(masks, before)


def test_bool_masks_hold_no_ignore_value_above_one():
    masks = torch.tensor([[[True, False]]])
    assert split_mask(masks, (1, 2), ignore=255)[0].tolist() == [[[True, False]]]


@pytest.mark.parametrize(
    ("masks", "ignore", "message"),
    [
        (torch.zeros(1, 2, 2, dtype=torch.uint8), 1000, "ignore=1000 cannot occur in torch.uint8"),
        (torch.zeros(1, 2, 2, dtype=torch.int64), 0.5, "ignore=0.5 cannot occur"),
        (torch.zeros(1, 2, 2), float("nan"), "ignore is nan"),
        (torch.zeros(1, 2, 2), 0, "ignore is 0; .* background"),
        (torch.full((1, 2, 2), 37.5), None, "holds 37.5"),
        (torch.full((1, 2, 2), float("nan")), None, "holds nan"),
        (torch.full((1, 2, 2), -0.25), None, "holds -0.25"),
        (torch.zeros(2, 2), None, r"shape \(2, 2\)"),
    ],
)
def test_masks_that_cannot_be_read_are_refused_with_a_sentence(masks, ignore, message):
    with pytest.raises(ValueError, match=message):
        split_mask(masks, (2, 2), ignore=ignore)
