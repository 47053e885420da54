"""Names of folders with images, and of those with their masks beside them."""

from __future__ import annotations

from pathlib import Path

IMAGE_FOLDERS = ("images", "image", "imgs", "JPEGImages")
MASK_FOLDERS = ("masks", "mask", "gt", "GT", "ground_truth")
LABEL_FOLDERS = ("annotations", "labels", "SegmentationClass")  # ADE20K, COCO and Pets; VOC, by its two names


def child(place: Path, *names: str) -> Path | None:
    """The first of these folders that is there."""
    return next((place / name for name in names if (place / name).is_dir()), None)


def images_beside_masks(place: Path) -> Path | None:
    """The images of a folder that also has their masks; None where it lacks either."""
    images = child(place, *IMAGE_FOLDERS)
    return images if child(place, *MASK_FOLDERS, *LABEL_FOLDERS) else None
