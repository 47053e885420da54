"""How far the crop kernels, run by Triton's interpreter, are from plain torch: part of interpreted_kernels.py."""

import torch

from mixlab.data import crops, triton_crops
from mixlab.data.crops import CropKind, draw_parameters
from mixlab.data.packed import PackedImages, pack_images
from mixlab.data.transforms import _resize_batched, whole_boxes

SIZES = ((6, 2), (3, 4))  # of the largest image, and of crops


def crop_errors() -> list[float]:
    triton_crops.ROW_BLOCK = 8  # a row is more than one block
    return [largest_difference(side, size) for side, size in SIZES]


def largest_difference(side: int, size: int) -> float:
    """Of crops of images of different sizes, up to `side`."""
    generator = torch.Generator().manual_seed(side)
    kind = CropKind(
        size=size, scale=(0.1, 1.0), jitter=0.7, grey=0.3, solarise=0.4, blur=0.6, sigma=(0.1, 1.5), bilinear=0.5
    )
    shapes = [(side, side), (side - 1, side // 2), (2, side), (side // 2 + 1, side)]
    images = [torch.randint(0, 256, (3, *shape), dtype=torch.uint8, generator=generator) for shape in shapes]
    images[0] = images[0][:1].repeat(3, 1, 1)  # a grey picture has no hue
    images[1][:] = 0
    packed = pack_images(images)
    drawn = draw_parameters(kind, packed.shapes, generator)
    box = whole_boxes(drawn.box, packed.shapes[drawn.image])
    box[0] = torch.tensor([0, 0, side, side])
    return float((crops._make_on_gpu(packed, drawn, box, size) - plain_crops(packed, drawn, box, size)).abs().max())


def plain_crops(images: PackedImages, drawn: crops.CropParameters, box: torch.Tensor, size: int) -> torch.Tensor:
    x = crops._colour(_resize_batched(images, drawn, box, size), drawn)
    return crops._normalise(x, out=torch.empty_like(x))
