"""Crops on the GPU: the kernels against plain torch on the same device."""

import pytest
import torch

from mixlab.data import crops
from mixlab.data.crops import MultiCrop, dino_crops
from mixlab.data.transforms import resize_boxes, whole_boxes


@pytest.mark.parametrize(("side", "sizes"), [(112, (64, 32)), (256, (224, 96)), (70, (33, 100))])
def test_the_kernels_make_the_crops_that_plain_torch_makes(side: int, sizes: tuple[int, int], poisoned: None) -> None:
    generator = torch.Generator().manual_seed(side)
    multi = MultiCrop(dino_crops(global_size=sizes[0], local_size=sizes[1], num_local=3))
    images = torch.randint(0, 256, (5, 3, side, side), dtype=torch.uint8, generator=generator).cuda()
    drawn = multi.draw(torch.tensor([[side, 2 * side]] * 5), generator)
    for size, view in zip(multi.sizes, multi(images, drawn), strict=True):
        choices = drawn[size]
        box = whole_boxes(choices.box, side)
        plain = crops._colour(resize_boxes(images, choices.image, box, choices.flip, size), choices)
        plain = crops._normalise(plain, out=torch.empty_like(plain))
        off = (view.flatten(0, 1) - plain).abs()
        # A pixel at solarise's threshold may fall on either side of it.
        assert off.quantile(0.999) < 2e-3 if off.numel() < 2**24 else off.flatten()[: 2**23].quantile(0.999) < 2e-3
        assert off.mean() < 2e-4
