"""A small COCO folder drawn for tests."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

SIZES = [(40, 60), (60, 40), (32, 96), (50, 50), (44, 44)]  # height, width
CATEGORIES = [{"id": 3, "name": "cat"}, {"id": 17, "name": "kite"}, {"id": 90, "name": "brush"}]


def draw_coco(folder: Path, *, name: str = "instances.json", images: str = "images") -> dict:
    """Five images of several shapes: polygons, run lengths in both spellings, a crowd, and one without objects."""
    (folder / images).mkdir(parents=True)
    random = np.random.default_rng(0)
    entries = [
        {"id": 100 + number, "file_name": f"{number}.png", "height": height, "width": width}
        for number, (height, width) in enumerate(SIZES)
    ]
    for entry in entries:
        pixels = random.integers(0, 255, (entry["height"], entry["width"], 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / images / entry["file_name"])
    annotations = [
        _entry(0, 17, [10, 5, 20, 30], [[10, 5, 30, 5, 30, 35, 10, 35]]),
        _entry(0, 3, [0, 0, 8, 8], {"size": [40, 60], "counts": _runs(40, 60, 0, 0, 8, 8)}),
        _entry(1, 90, [4, 6, 12, 20], {"size": [60, 40], "counts": _runs(60, 40, 4, 6, 12, 20)}),
        _entry(1, 3, [0, 0, 40, 60], {"size": [60, 40], "counts": [0, 2400]}, crowd=1),
        _entry(2, 17, [50, 10, 40, 20], [[50, 10, 90, 10, 90, 30, 50, 30]]),
        _entry(3, 3, [20, 20, 0.2, 10], [[20, 20, 20.2, 20, 20.2, 30]]),  # thinner than a pixel
        _entry(3, 3, [30, 30, 40, 40], [[30, 30, 70, 30, 70, 70, 30, 70]]),  # reaches beyond the image
    ]
    content = {"images": entries, "annotations": annotations, "categories": [dict(each) for each in CATEGORIES]}
    (folder / name).parent.mkdir(exist_ok=True, parents=True)
    (folder / name).write_text(json.dumps(content))
    return content


def _entry(image: int, category: int, box: list, segmentation, crowd: int = 0) -> dict:
    """Without id and area, which files may leave out."""
    return {"image_id": 100 + image, "category_id": category, "bbox": box, "segmentation": segmentation,
            "iscrowd": crowd}  # fmt: skip


def _runs(height: int, width: int, left: int, top: int, across: int, down: int) -> list[int]:
    mask = np.zeros((height, width), dtype=bool)
    mask[top : top + down, left : left + across] = True
    return run_lengths(mask)


def run_lengths(mask: np.ndarray) -> list[int]:
    """The definition, pixel by pixel down the columns."""
    runs, current = [0], False
    for value in mask.T.ravel():
        if value != current:
            runs.append(0)
            current = value
        runs[-1] += 1
    return runs
