"""A small root with all data sets of both papers: true folders, class names, file names and formats, drawn images."""

import csv
import json
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from mixlab.data.decode import to_pil
from mixlab.data.imagenet_labels import imagenet_a_classes, imagenet_classes, imagenet_r_classes, real_labels
from mixlab.data.shapes import Shapes

NUM_CLASSES = 3
COCO_IDS = [number for number in range(1, 91) if number not in (12, 26, 29, 30, 45, 66, 68, 69, 71, 83)]


def classes() -> list[str]:
    """Synsets that ImageNet-A and R have, too."""
    both = set(imagenet_a_classes()) & set(imagenet_r_classes())
    return [synset for synset in imagenet_classes() if synset in both][:NUM_CLASSES]


@cache
def val_numbers() -> dict[int, str]:
    """Two real validation images of each class, by what ReaL says of them."""
    found: dict[int, str] = {}
    for synset in classes():
        number = imagenet_classes().index(synset)
        own = [index for index, labels in enumerate(real_labels()) if labels == frozenset({number})]
        found |= dict.fromkeys(own[:2], synset)
    return found


def draw_root(root: Path) -> Path:
    """Everything, as it unpacks; validation images in one folder, beside Kaggle's table of their classes."""
    draw_imagenet(root)
    draw_shifted(root)
    draw_imagenet_s(root)
    draw_ade(root)
    draw_coco_2017(root)
    return root


def draw_imagenet(root: Path) -> None:
    place = root / "imagenet"
    for number, synset in enumerate(classes()):
        for index in range(4):
            picture(place / "train" / synset / f"{synset}_{index}.JPEG", 10 * number + index)
    with (place / "LOC_val_solution.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["ImageId", "PredictionString"])
        for index, synset in val_numbers().items():
            picture(place / "val" / f"{val_name(index)}.JPEG", index)
            table.writerow([val_name(index), f"{synset} 1 2 30 40 "])


def draw_shifted(root: Path) -> None:
    for number, synset in enumerate(classes()):
        index = imagenet_classes().index(synset)
        for name in ("matched-frequency", "threshold0.7", "top-images"):
            picture(root / f"imagenetv2-{name}-format-val" / str(index) / f"{number}.jpeg", number)
        picture(root / "sketch" / synset / "sketch_0.JPEG", number)
        picture(root / "imagenet-a" / synset / "0.001_dog_0.5.jpg", number)
        picture(root / "imagenet-r" / synset / "art_0.jpg", number)
    for name in ("imagenet-a", "imagenet-r"):
        (root / name / "README.txt").write_text("as released")


def draw_imagenet_s(root: Path, name: str = "ImageNetS919", *, split: str = "validation") -> None:
    """Masks alone, as in the archive: class = R + 256 G, 1000 is ignored."""
    for index, synset in val_numbers().items():
        scene = Shapes(size=64, num_images=60, seed=1, split="train").scene(index % 60)
        mask = np.zeros((48, 64, 3), dtype=np.uint8)
        inside = scene.foreground.numpy()[:48] == 1
        mask[inside] = (300 % 256, 300 // 256, 0)
        mask[:2] = (1000 % 256, 1000 // 256, 0)
        save(Image.fromarray(mask), root / name / f"{split}-segmentation" / synset / f"{val_name(index)}.png")


def draw_ade(root: Path) -> None:
    place = root / "ADEChallengeData2016"
    for part, short, count in (("training", "train", 3), ("validation", "val", 2)):
        for number in range(1, count + 1):
            name = f"ADE_{short}_{number:08d}"
            picture(place / "images" / part / f"{name}.jpg", number)
            labels = np.zeros((48, 64), dtype=np.uint8)
            labels[8:, :30], labels[8:, 30:] = number, 150
            save(Image.fromarray(labels), place / "annotations" / part / f"{name}.png")
    lines = ["Idx\tRatio\tTrain\tVal\tStuff\tName", *(f"{n}\t0.1\t1\t1\t0\tthing {n}" for n in range(1, 151))]
    (place / "objectInfo150.txt").write_text("\n".join(lines) + "\n")
    (place / "sceneCategories.txt").write_text("ADE_train_00000001 street\n")


def draw_coco_2017(root: Path) -> None:
    place = root / "coco"
    for part, count in (("train2017", 3), ("val2017", 2)):
        images, annotations = [], []
        for number in range(1, count + 1):
            name, times = f"{139 * number:012d}.jpg", 3 if number == 2 else 1  # the second is larger
            picture(place / part / name, number, times)
            images.append({"id": 139 * number, "file_name": name, "height": 48 * times, "width": 64 * times})
            for side in (24, 40):  # small and medium, or medium and large
                entry = {"id": len(annotations) + 1, "image_id": 139 * number, "category_id": COCO_IDS[number]}
                annotations.append(entry | _square(2 * times, side * times) | {"iscrowd": 0})
        categories = [{"id": number, "name": f"category {number}", "supercategory": "x"} for number in COCO_IDS]
        content = {"info": {}, "licenses": [], "images": images, "annotations": annotations, "categories": categories}
        (place / "annotations").mkdir(exist_ok=True)
        (place / "annotations" / f"instances_{part}.json").write_text(json.dumps(content))


def _square(start: int, side: int) -> dict[str, object]:
    end = start + side
    outline = [[start, start, end, start, end, end, start, end]]
    return {"bbox": [start, start, side, side], "area": float(side**2), "segmentation": outline}


def val_name(index: int) -> str:
    return f"ILSVRC2012_val_{index + 1:08d}"


def picture(place: Path, number: int, times: int = 1) -> None:
    """A drawn scene of 64 x 48 pixels, or that many times larger."""
    scene = Shapes(size=64, num_images=60, seed=1, split="train").scene(number % 60)
    save(to_pil(scene.image[:, :48]).resize((64 * times, 48 * times)), place)


def save(image: Image.Image, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    image.save(place)
