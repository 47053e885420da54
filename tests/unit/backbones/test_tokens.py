"""Token layouts, against lists written out by hand."""

import pytest
import torch

from mixlab.backbones.positions import resize_positions
from mixlab.backbones.tokens import TokenLayout

LAYOUTS = [
    TokenLayout(place="none"),
    TokenLayout(place="front"),
    TokenLayout(place="front", num_registers=4),
    TokenLayout(place="front", class_token=False, num_registers=3),
    TokenLayout(place="back"),
    TokenLayout(place="middle"),
    TokenLayout(place="middle", front_copy=False),
    TokenLayout(place="spread", num_registers=12),
    TokenLayout(place="spread", num_registers=1),
]


def test_the_class_token_of_vim_stands_in_front_and_in_the_middle() -> None:
    layout = TokenLayout(place="middle")
    assert layout.positions(196) == [0, 98]  # of 198 tokens; Dino-Mamba's released order
    extra, patches = torch.tensor([[[-1.0], [-2.0]]]), torch.arange(6.0).view(1, 6, 1)
    assert layout.insert(extra, patches).flatten().tolist() == [-1, 0, 1, -2, 2, 3, 4, 5]


def test_registers_are_spread_between_equal_runs_and_the_last_run_takes_the_rest() -> None:
    layout = TokenLayout(place="spread", num_registers=3)
    extra, patches = -torch.arange(1.0, 4).view(1, 3, 1), torch.arange(10.0).view(1, 10, 1)
    assert layout.insert(extra, patches).flatten().tolist() == [0, 1, -1, 2, 3, -2, 4, 5, -3, 6, 7, 8, 9]
    assert TokenLayout(place="spread", num_registers=12).positions(196) == list(range(15, 16 * 12, 16))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_splitting_undoes_inserting(layout: TokenLayout) -> None:
    for grid in ((1, 1), (2, 3), (14, 14), (6, 10)):
        num_patches = grid[0] * grid[1]
        extra, patches = torch.randn(2, len(layout.positions(num_patches)), 5), torch.randn(2, num_patches, 5)
        tokens = layout.insert(extra, patches)
        features = layout.split(tokens, grid)
        torch.testing.assert_close(features.patches.flatten(1, 2), patches)
        torch.testing.assert_close(tokens[:, layout.patch_columns(num_patches)], patches)
        torch.testing.assert_close(layout.summary(tokens), features.summary)


def test_the_summary_is_the_class_token_or_the_mean() -> None:
    extra, patches = torch.randn(1, 3, 4), torch.randn(1, 8, 4)
    cases = {
        TokenLayout(place="front", num_registers=2): extra[:, 0],
        TokenLayout(place="front", class_token=False, num_registers=3): patches.mean(1),
        TokenLayout(place="spread", num_registers=3): extra.mean(1),
    }
    back = TokenLayout(place="back")
    torch.testing.assert_close(back.split(back.insert(extra[:, :1], patches), (2, 4)).summary, extra[:, 0])
    assert back.positions(8) == [8]
    for layout, expected in cases.items():
        torch.testing.assert_close(layout.split(layout.insert(extra, patches), (2, 4)).summary, expected)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"place": "rear"}, "unknown place 'rear'"),
        ({"place": "back", "num_registers": 2}, 'place="spread"'),
        ({"place": "spread"}, "needs registers"),
        ({"place": "none", "num_registers": 2}, 'place="spread"'),
    ],
)
def test_impossible_layouts_are_refused(fields: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TokenLayout(**fields)


def test_positions_are_resized_with_the_tenth_of_a_patch_that_dino_adds() -> None:
    table = torch.randn(1, 49, 3, requires_grad=True)
    expected = torch.nn.functional.interpolate(
        table.view(1, 7, 7, 3).permute(0, 3, 1, 2), scale_factor=(6.1 / 7, 10.1 / 7), mode="bicubic"
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):  # it would round matrix products
        resized = resize_positions(table, 7, (6, 10))
    resized = resized.view(1, 6, 10, 3).permute(0, 3, 1, 2)
    torch.testing.assert_close(resized, expected, rtol=1e-6, atol=1e-6)
    direction = torch.randn_like(expected)
    (gradient,), (its_gradient,) = (torch.autograd.grad(t, table, direction) for t in (resized, expected))
    torch.testing.assert_close(gradient, its_gradient, rtol=1e-6, atol=5e-6)  # sums of 60 terms
    assert resize_positions(table, 7, (7, 7)) is table
