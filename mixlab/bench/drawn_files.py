"""Drawn JPEG files of 500 x 375 px with classes, label maps and objects, in the layouts that the commands read.

Each `write_` function gives `num_files` names to the scenes that `draw_scenes` left in a folder: files are linked, not
copied, as a decoder does not care. It returns what the commands take as --data.
"""

import json
import tarfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from io import BytesIO
from pathlib import Path

import torch
from PIL import Image

from mixlab.data import Shapes
from mixlab.data.coco import encode_mask
from mixlab.data.cores import num_cores
from mixlab.data.decode import to_pil
from mixlab.data.shapes import SHAPE_CLASSES

FILE_WIDTH, FILE_HEIGHT = 500, 375  # the median of ImageNet
NUM_DRAWN = 512  # scenes that differ
FEW = 32  # are drawn before processes for it would have started
PER_SHARD = 1000


def draw_scenes(folder: Path, num_scenes: int = NUM_DRAWN) -> Path:
    """images/NUMBER.jpg, labels/NUMBER.png (0 is the ground) and objects/NUMBER.json, COCO's annotations."""
    for part in ("images", "labels", "objects"):
        (folder / part).mkdir(parents=True)
    draw = partial(_draw, folder)
    if num_scenes <= FEW:
        list(map(draw, range(num_scenes)))
    else:
        with ProcessPoolExecutor(num_cores(), initializer=torch.set_num_threads, initargs=(1,)) as pool:
            list(pool.map(draw, range(num_scenes), chunksize=8))
    return folder


def _draw(folder: Path, number: int) -> None:
    scene = Shapes(size=FILE_WIDTH, num_images=NUM_DRAWN).scene(number)
    to_pil(scene.image[:, :FILE_HEIGHT]).save(folder / "images" / f"{number:06d}.jpg", quality=92)
    Image.fromarray(scene.semantic[:FILE_HEIGHT].numpy()).save(folder / "labels" / f"{number:06d}.png")
    objects = []
    for mask, kind in zip(scene.instances[:, :FILE_HEIGHT], scene.classes.tolist(), strict=True):
        if mask.any():
            rows, columns = mask.any(dim=1).nonzero().flatten().tolist(), mask.any(dim=0).nonzero().flatten().tolist()
            box = [columns[0], rows[0], columns[-1] - columns[0] + 1, rows[-1] - rows[0] + 1]
            objects.append({"category_id": kind + 1, "bbox": box, "segmentation": encode_mask(mask)})
    (folder / "objects" / f"{number:06d}.json").write_text(json.dumps(objects))


def write_classes(scenes: Path, folder: Path, num_files: int) -> str:
    """A folder of images for each class."""
    for number, image, label in _images(scenes, num_files):
        _link(image, folder / SHAPE_CLASSES[label] / f"{number:06d}.jpg")
    return str(folder)


def write_shards(scenes: Path, folder: Path, num_files: int) -> str:
    """Tar files of `PER_SHARD` images with their classes."""
    folder.mkdir()
    for number, image, label in _images(scenes, num_files):
        if number % PER_SHARD == 0:
            shard = tarfile.open(folder / f"{number // PER_SHARD:03d}.tar", "w", dereference=True)  # noqa: SIM115
        shard.add(image, f"{number:06d}.jpg")
        text = str(label).encode()
        entry = tarfile.TarInfo(f"{number:06d}.cls")
        entry.size = len(text)
        shard.addfile(entry, BytesIO(text))
        if (number + 1) % PER_SHARD == 0 or number + 1 == num_files:
            shard.close()
    return f"wds:{folder}/*.tar"


def write_label_maps(scenes: Path, folder: Path, num_files: int) -> str:
    """images/ beside labels/."""
    for number, image, _ in _images(scenes, num_files):
        _link(image, folder / "images" / f"{number:06d}.jpg")
        _link(scenes / "labels" / f"{image.stem}.png", folder / "labels" / f"{number:06d}.png")
    (folder / "classes.txt").write_text("\n".join(("ground", *SHAPE_CLASSES)))
    return str(folder)


def write_objects(scenes: Path, folder: Path, num_files: int) -> str:
    """images/ beside COCO's instances.json."""
    entries, annotations = [], []
    for number, image, _ in _images(scenes, num_files):
        entry = {"id": number, "file_name": f"{number:06d}.jpg", "height": FILE_HEIGHT, "width": FILE_WIDTH}
        _link(image, folder / "images" / f"{number:06d}.jpg")
        entries.append(entry)
        objects = json.loads((scenes / "objects" / f"{image.stem}.json").read_text())
        annotations += [{**item, "image_id": number} for item in objects]
    categories = [{"id": kind + 1, "name": name} for kind, name in enumerate(SHAPE_CLASSES)]
    content = {"images": entries, "annotations": annotations, "categories": categories}
    (folder / "instances.json").write_text(json.dumps(content))
    return str(folder)


def _images(scenes: Path, num_files: int) -> Iterator[tuple[int, Path, int]]:
    """The number of each file, and the image and the class of its scene."""
    drawn = sorted((scenes / "images").iterdir())
    labels = Shapes(size=FILE_WIDTH, num_images=NUM_DRAWN).labels().tolist()
    for number in range(num_files):
        yield number, drawn[number % len(drawn)], labels[number % len(drawn)]


def _link(file: Path, name: Path) -> None:
    name.parent.mkdir(parents=True, exist_ok=True)
    name.hardlink_to(file)
