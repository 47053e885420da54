"""From files, PIL images and arrays to the input of a model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mixlab.backbones.backbone import Backbone
from mixlab.backbones.wrapped import as_backbone
from mixlab.data.decode import (
    cut_middle,
    decode,
    fit_image,
    load_size,
    to_pil,
    to_tensor,
    to_three_channels,
    upright_rgb,
)
from mixlab.errors import InputError

Picture = str | Path | Image.Image | Tensor | Any  # Any: a NumPy array, uint8 (H, W, 3) or (H, W)


def preprocess(
    model: Backbone,
    images: Picture | Sequence[Picture],
    *,
    size: int | None = None,
    fit: str = "crop",
    crop_share: float = 1.0,
) -> Tensor:
    """Normalised images (B, 3, S, S) on the model's device, in its dtype.

    `images` are a file, a PIL image (turned upright by its EXIF orientation, as a file is), a NumPy array (H, W, 3),
    grey (H, W), or a list of these, brought to `size` pixels (the model's own by default): `crop` is the largest square
    in the centre, of which `crop_share` of each side is kept; `squash` resizes the whole image to a square. kNN, probes
    and classifiers see `crop_share=model.crop_share`: with it pixels are those of torchvision's Resize (bicubic) and
    CenterCrop (whose crop may begin a pixel later if the margin is odd). Tensors uint8 (3, H, W) or (B, 3, H, W) keep
    their size unless `size` or `crop_share` is given.
    """
    model = as_backbone(model)
    if isinstance(images, Tensor) and size is None and crop_share == 1:
        return model.preprocess(images)
    if isinstance(images, Tensor):
        images = list(images) if images.ndim == 4 else [images]
    elif not isinstance(images, list | tuple):
        images = [images]
    if not images:
        raise InputError("there are no images; give at least one")
    side = model.image if size is None else size
    larger = load_size(side, crop_share)
    fitted = torch.stack([to_tensor(fit_image(_to_pil(each), size=larger, fit=fit)) for each in images])
    return model.preprocess(cut_middle(fitted, side))


def _to_pil(picture: Picture) -> Image.Image:
    match picture:
        case str() | Path():
            return decode(picture)
        case Image.Image():
            return upright_rgb(picture)
        case Tensor() | np.ndarray() if picture.dtype in (np.uint8, torch.uint8):
            if (pixels := to_three_channels(picture)) is not None:
                return to_pil(pixels.cpu())
    about = f"{picture.dtype} {tuple(picture.shape)}" if hasattr(picture, "shape") else type(picture).__name__
    raise InputError(
        f"cannot read a picture from {about}; give a file, a PIL image, a uint8 tensor (3, H, W), an array (H, W, 3), "
        "or grey pixels (H, W)"
    )
