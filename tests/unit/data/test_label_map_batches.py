"""What images and masks go through: together, drawn anew in every epoch, the same in every run."""

import numpy as np
import pytest
import torch

from mixlab.data.dense_batches import MEAN_COLOUR, CropReader, CropRule, fitted_size, random_crop
from mixlab.data.mask_formats import parse_label_maps
from mixlab.data.masks import MaskedImage
from mixlab.data.transforms import change_colours, draw_colours


def rule(**changes) -> CropRule:
    return CropRule(
        **{"crop": 48, "short_side": 64, "long_side": 256, "scale": (0.5, 2.0), "most_of_one_class": 0.75, **changes}
    )


def painted(height: int, width: int, seed: int = 0) -> MaskedImage:
    """Blocks of classes whose colour says the class, so that a crop shows whether its mask is still true."""
    blocks = np.random.default_rng(seed).integers(0, 5, (height // 16 + 1, width // 16 + 1))
    mask = np.kron(blocks, np.ones((16, 16)))[:height, :width].astype(np.uint8)
    image = np.stack([mask * 50, 255 - mask * 50, mask * 0 + 90])
    return MaskedImage(torch.from_numpy(image.astype(np.uint8)), torch.from_numpy(mask), "painted")


@pytest.mark.parametrize("size", [(64, 64), (100, 70), (40, 160)])
def test_every_crop_shows_the_pixels_of_its_mask(size: tuple[int, int]) -> None:
    for seed in range(12):
        image, mask = random_crop(painted(*size), rule(), np.random.default_rng(seed))
        assert image.shape == (3, 48, 48) and mask.shape == (48, 48)
        shown = (image[0].float() / 50).round()
        agree = (shown == mask)[mask != 255].float().mean()
        assert agree > 0.85, seed  # borders of blocks are blended


def test_what_lies_beyond_the_image_is_the_mean_colour_and_not_counted() -> None:
    image, mask = random_crop(painted(64, 64), rule(scale=(0.5, 0.5)), np.random.default_rng(0))
    assert (mask[:32, :32] != 255).all() and (mask[32:] == 255).all() and (mask[:, 32:] == 255).all()
    assert image[:, 40, 40].tolist() == list(MEAN_COLOUR)


def crops_of(mask: np.ndarray) -> list[torch.Tensor]:
    pair = MaskedImage(torch.zeros(3, *mask.shape, dtype=torch.uint8), torch.from_numpy(mask), "")
    plain = rule(short_side=256, scale=(1.0, 1.0))
    return [random_crop(pair, plain, np.random.default_rng(seed))[1] for seed in range(80)]


def test_a_crop_of_one_class_is_drawn_anew() -> None:
    mask = np.zeros((256, 256), dtype=np.uint8)
    mask[:40, :40] = 1  # one of 27 crops touches this corner, about three of ten after ten tries
    assert sum(bool((crop == 1).any()) for crop in crops_of(mask)) > 12


def test_a_crop_mostly_of_one_class_is_drawn_anew() -> None:
    mask = np.zeros((256, 256), dtype=np.uint8)
    mask[:, 128:] = 1  # one of nine crops holds a quarter of both sides, about two thirds after ten tries
    fair = [0.25 <= float((crop == 1).float().mean()) <= 0.75 for crop in crops_of(mask)]
    assert sum(fair) > 40


def test_half_of_the_crops_are_mirrored() -> None:
    gradient = torch.arange(64, dtype=torch.uint8).expand(3, 64, 64).contiguous()
    pair = MaskedImage(gradient, torch.zeros(64, 64, dtype=torch.uint8), "")
    crops = [random_crop(pair, rule(crop=64, scale=(1.0, 1.0)), np.random.default_rng(s))[0] for s in range(100)]
    mirrored = sum(int(crop[0, 0, 0]) > int(crop[0, 0, -1]) for crop in crops)
    assert 30 < mirrored < 70


@pytest.mark.parametrize(
    ("size", "expected"),
    [((480, 640), (512, 683)), ((683, 512), (683, 512)), ((100, 1000), (205, 2048)), ((1, 9000), (1, 2048))],
)
def test_images_are_as_large_as_both_sides_allow(size: tuple[int, int], expected: tuple[int, int]) -> None:
    assert fitted_size(size, short_side=512, long_side=2048) == expected


def test_a_crop_depends_on_seed_epoch_and_image_alone() -> None:
    source = parse_label_maps("shapes:n=6,size=48")
    reader = CropReader(source, rule(), seed=3)
    first = reader.read(2, 1)
    again = CropReader(source, rule(), seed=3).read(2, 1)
    assert all(torch.equal(a, b) for a, b in zip(first[:2], again[:2], strict=True))
    others = [reader.read(2, 2), CropReader(source, rule(), seed=4).read(2, 1)]
    assert not any(torch.equal(first[0], other[0]) for other in others)
    assert reader.collate([]).images.shape == (0, 3, 48, 48) and len(reader.collate([first]).indexes) == 1


def test_neutral_strengths_change_no_colour_and_the_drawn_ones_change_half() -> None:
    images = torch.rand(4, 3, 8, 8)
    neutral = torch.tensor([0.0, 1.0, 1.0, 0.0]).expand(4, 4)
    torch.testing.assert_close(change_colours(images.clone(), neutral), images, atol=1e-5, rtol=1e-5)
    drawn = draw_colours(2000, torch.Generator().manual_seed(0))
    assert ((drawn != neutral[0]).float().mean(0) - 0.5).abs().max() < 0.05
    assert drawn[:, 0].abs().max() <= 32 / 255 and drawn[:, 3].abs().max() <= 0.1
    assert drawn[:, 1:3].min() >= 0.5 and drawn[:, 1:3].max() <= 1.5


def test_brightness_is_added_and_contrast_multiplied() -> None:
    images = torch.full((1, 3, 2, 2), 0.4)
    changed = change_colours(images.clone(), torch.tensor([[0.1, 1.5, 1.0, 0.0]]))
    torch.testing.assert_close(changed, torch.full((1, 3, 2, 2), 0.75))
