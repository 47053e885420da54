"""Whole images as networks see them in an evaluation."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from mixlab.data.loader import Loader
from mixlab.data.source import ImageSource
from mixlab.errors import InputError

CROP_SHARE = 0.875  # 224 of 256: resize the shorter side to 256, cut the middle 224 (DINO's evaluation, and timm's)


@dataclass(frozen=True)
class CentreView:
    """The middle square of an image, of which `crop_share` of each side is kept, at `size` pixels."""

    size: int
    crop_share: float = CROP_SHARE
    fit: str = "crop"  # or squash: the whole image, out of shape

    def __post_init__(self) -> None:
        if self.size < 1 or not 0 < self.crop_share <= 1:
            raise InputError(
                f"a view of {self.size} px that keeps {self.crop_share} of each side: give at least 1 px and a share "
                f"above 0 and up to 1, such as {CROP_SHARE}"
            )

    @property
    def load_size(self) -> int:
        """The side at which images are read, before the middle is cut out."""
        return max(self.size, round(self.size / self.crop_share))

    def crop(self, images: Tensor) -> Tensor:
        """The middle (B, 3, size, size) of images (B, 3, S, S) at the load size."""
        first = (images.shape[-1] - self.size) // 2
        return images[..., first : first + self.size, first : first + self.size]

    def loader(self, source: ImageSource, *, batch: int, workers: int = 0, pin_memory: bool = False) -> Loader:
        """Every image once, in order; those that cannot be read are left out, counted and named."""
        return Loader(
            source,
            batch_size=min(batch, len(source)),
            size=self.load_size,
            fit=self.fit,
            shuffle=False,
            drop_last=False,
            num_workers=workers,
            unreadable="drop",
            skip_limit=1.0,
            pin_memory=pin_memory,
        )
