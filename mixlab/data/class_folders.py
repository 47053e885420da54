"""What is wrong with the folders of a labelled set, said before anything is trained on it."""

from pathlib import Path

from mixlab.errors import InputError

from .images import SPLIT_FOLDERS, ImageFolder, child, parse_source
from .labelled import check_sorted
from .source import ImageSource, few


def check_class_folders(source: ImageSource, data: str) -> None:
    """Refuse folders whose images have no classes, or whose classes are something else. Other sources pass."""
    if not isinstance(source, ImageFolder):
        return
    root = source.root
    folders = [entry for entry in sorted(root.iterdir()) if entry.is_dir() and entry.name[0] != "."]
    if not source.classes:
        raise InputError(_without_classes(source, folders, data))
    sets = [folder for folder in folders if all(child(folder, *names) for names in SPLIT_FOLDERS.values())]
    if sets:
        raise InputError(
            f"{root} holds data sets, not classes: {few([folder.name for folder in sets])}, with parts for training "
            f"and validation; give one of them, such as {sets[0]}"
        )
    if len(source.classes) == 1 and folders:
        inner = [entry.name for entry in sorted(folders[0].iterdir()) if entry.is_dir()]
        advice = f"move its folders ({few(inner)}) up into {root}" if inner else "add a folder for each class"
        raise InputError(f"{root} has one folder, {folders[0].name}, which is one class; {advice}")
    check_sorted(parse_source(data, split="val"), source)


def _without_classes(source: ImageFolder, folders: list[Path], data: str) -> str:
    root = source.root
    loose = [path for path in source.paths if "/" not in path]
    if folders and loose:
        return (
            f"{root} has {len(loose):,} images beside its {len(folders):,} class folders, such as {loose[0]}: then no "
            "image has a class; move them into their folders, or elsewhere"
        )
    missing = ""
    if root.name in SPLIT_FOLDERS["val"] and root.name != Path(data).name:
        missing = f"{root.parent} has no train/, and "
    return (
        f"{missing}the {len(source):,} images of {root} have no classes, since they lie in one folder; put each into a "
        "folder of its class, or pretrain without labels (`mixlab pretrain`)"
    )
