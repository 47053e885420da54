"""The crop kernels on a CPU, by Triton's interpreter: chosen when Triton is imported, hence in a process of its own."""

import os
import subprocess
import sys

import pytest
import torch

from mixlab.data import crops
from mixlab.data.crops import CropKind, draw_parameters
from mixlab.data.packed import PackedImages, pack_images
from mixlab.data.transforms import _resize_batched, whole_boxes


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


def test_the_kernels_make_the_crops_that_plain_torch_makes() -> None:
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    smaller, larger = (float(line) for line in done.stdout.split())
    assert max(smaller, larger) < 1e-4  # of normalised pixels, which go from -2 to 2.6


if __name__ == "__main__":
    from mixlab.data import triton_crops

    triton_crops.ROW_BLOCK = 16  # a row is more than one block
    for side, size in ((9, 5), (4, 7)):
        print(largest_difference(side, size))
