"""The data sets of both papers, by the names that items give them."""

from pathlib import Path

from mixlab.data.imagenet_labels import imagenet_classes
from mixlab.data.images import child
from mixlab.studies.reproduce.dense_sets import ADE20K, COCO, IMAGENET_S
from mixlab.studies.reproduce.folders import DataSet
from mixlab.studies.reproduce.imagenet_sets import (
    IMAGENET,
    IMAGENET_A,
    IMAGENET_R,
    IMAGENET_VAL,
    REAL,
    SKETCH,
    of_v2,
)

DATA_SETS: dict[str, DataSet] = {
    "imagenet": IMAGENET,
    "imagenet-val": IMAGENET_VAL,
    "real": REAL,
    "v2-mf": of_v2("v2-mf"),
    "v2-t07": of_v2("v2-t07"),
    "v2-ti": of_v2("v2-ti"),
    "sketch": SKETCH,
    "a": IMAGENET_A,
    "r": IMAGENET_R,
    "imagenet-s": IMAGENET_S,
    "ade20k": ADE20K,
    "coco": COCO,
}
SHIFTED = ("v2-mf", "v2-t07", "v2-ti", "sketch", "a", "r", "real")  # Table 4, in its order


def check_root(root: Path) -> None:
    """Refuse a root that cannot be one."""
    if not root.is_dir():
        raise FileNotFoundError(f"--root {root} is not a folder; give the one that holds imagenet, coco, ...")
    if root.name in ("train", "val") and child(root, *imagenet_classes()[:20]):
        raise FileNotFoundError(
            f"--root {root} is a part of ImageNet-1k itself; give the folder that holds the data sets, and have this "
            f"one in it as imagenet/{root.name}"
        )
