"""Crops on the GPU: the kernels against plain torch on the same device."""

from dataclasses import replace

import pytest
import torch

from mixlab.data import crops
from mixlab.data.crops import MultiCrop, dino_crops
from mixlab.data.packed import pack_images
from mixlab.data.transforms import resize_boxes, whole_boxes


@pytest.mark.parametrize(
    ("shapes", "sizes"),
    [
        ([(112, 112)] * 5, (64, 32)),
        ([(375, 500), (500, 375), (224, 1100), (96, 97), (1400, 1900)], (224, 96)),
        ([(70, 41), (1, 1), (3, 200), (64, 64), (70, 70)], (33, 100)),
    ],
)
def test_the_kernels_make_the_crops_that_plain_torch_makes(
    shapes: list[tuple[int, int]], sizes: tuple[int, int], poisoned: None
) -> None:
    generator = torch.Generator().manual_seed(sizes[0])
    kinds = dino_crops(global_size=sizes[0], local_size=sizes[1], num_local=3)
    multi = MultiCrop([replace(kind, bilinear=0.3) for kind in kinds])
    pictures = [torch.randint(0, 256, (3, *shape), dtype=torch.uint8, generator=generator) for shape in shapes]
    images = pack_images(pictures).to("cuda")
    drawn = multi.draw(images.shapes, generator)
    for size, view in zip(multi.sizes, multi(images, drawn), strict=True):
        choices = drawn[size]
        box = whole_boxes(choices.box, images.shapes[choices.image])
        plain = crops._colour(resize_boxes(images, choices, box, size), choices)
        plain = crops._normalise(plain, out=torch.empty_like(plain))
        off = (view.flatten(0, 1) - plain).abs()
        # A pixel at solarise's threshold may fall on either side of it.
        assert off.quantile(0.999) < 2e-3 if off.numel() < 2**24 else off.flatten()[: 2**23].quantile(0.999) < 2e-3
        assert off.mean() < 2e-4
