"""The folders of `mixlab reproduce`: true layouts pass, each typical mistake gets a sentence that says what to do."""

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from reproduce_root import classes, draw_imagenet, draw_imagenet_s, draw_root, picture, save, val_name, val_numbers
from scipy.io import savemat

from mixlab.cli import main
from mixlab.commands.answer import Answer
from mixlab.commands.reproduce import _show
from mixlab.data import imagenet_labels
from mixlab.data.imagenet_labels import imagenet_classes
from mixlab.data.labelled import labelled_splits
from mixlab.data.mask_formats import parse_masks
from mixlab.studies.reproduce.arrange import pair_masks, read_val_labels, sort_val
from mixlab.studies.reproduce.data_sets import DATA_SETS, check_root
from mixlab.studies.reproduce.listing import ITEMS
from mixlab.studies.reproduce.run import plan_item


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_root(tmp_path_factory.mktemp("drawn"))


@pytest.fixture
def root(drawn: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(drawn, tmp_path / "DATA"))


def test_folders_as_they_unpack_have_no_problem(drawn: Path) -> None:
    for name, data in DATA_SETS.items():
        found = data.find(drawn)
        assert not found.problems, (name, found.problems)
        assert found.place is not None and found.place.is_dir()
    assert DATA_SETS["imagenet"].find(drawn).arrange[0] == "sort-val"
    assert DATA_SETS["imagenet-s"].find(drawn).arrange[0] == "pair-masks"


@pytest.mark.parametrize("name", ["ImageNetS300", "ImageNetS50"])
def test_smaller_forms_of_imagenet_s_are_found_and_named(root: Path, name: str) -> None:
    (root / "ImageNetS919").rename(root / name)
    found = DATA_SETS["imagenet-s"].find(root)
    assert not found.problems and "the paper scores ImageNetS919" in " ".join(found.notes)


@pytest.mark.parametrize("place", ["ILSVRC2012", "ILSVRC/Data/CLS-LOC"])
def test_imagenet_is_found_under_other_names(root: Path, place: str) -> None:
    (root / place).parent.mkdir(parents=True, exist_ok=True)
    (root / "imagenet").rename(root / place)
    assert DATA_SETS["imagenet"].find(root).place == root / place


def sorted_val(root: Path) -> Path:
    val = root / "imagenet" / "val"
    for index, synset in val_numbers().items():
        (val / synset).mkdir(exist_ok=True)
        (val / f"{val_name(index)}.JPEG").rename(val / synset / f"{val_name(index)}.JPEG")
    return val


def archives_instead_of_classes(root: Path) -> None:
    train = root / "imagenet" / "train"
    shutil.rmtree(train)
    train.mkdir()
    (train / "n01440764.tar").touch()


def classes_by_words(root: Path) -> None:
    for number, folder in enumerate(sorted((root / "imagenet" / "train").iterdir())):
        folder.rename(folder.with_name(f"tench {number}"))


def folder_in_folder(root: Path) -> None:
    train = root / "imagenet" / "train"
    train.rename(root / "imagenet" / "inner")
    train.mkdir()
    (root / "imagenet" / "inner").rename(train / "ILSVRC2012_img_train")


def loose_images(root: Path) -> None:
    picture(root / "imagenet" / "train" / "1.jpg", 1)


def renamed_val(root: Path) -> None:
    for index, file in enumerate(sorted(sorted_val(root).glob("*/*"))):
        file.rename(file.with_name(f"{index}.jpg"))


def masks_of_other_images(root: Path) -> None:
    for mask in (root / "ImageNetS919").glob("*/*/*.png"):
        mask.rename(mask.with_name(f"{mask.parent.name}_{int(mask.stem[-8:])}.png"))


def only_training_masks(root: Path) -> None:
    shutil.rmtree(root / "ImageNetS919")
    draw_imagenet_s(root, split="train-semi")


def masks_without_images(root: Path) -> None:
    shutil.rmtree(root / "imagenet")


def full_ade(root: Path) -> None:
    shutil.rmtree(root / "ADEChallengeData2016")
    (root / "ADE20K_2021_17_01" / "images").mkdir(parents=True)


def v2_by_synset(root: Path) -> None:
    place = root / "imagenetv2-matched-frequency-format-val"
    for folder in list(place.iterdir()):
        folder.rename(place / f"n{int(folder.name):08d}")


def coco_2014(root: Path) -> None:
    for file in (root / "coco" / "annotations").iterdir():
        file.rename(file.with_name(file.name.replace("2017", "2014")))


def remove(*parts: str) -> Callable[[Path], None]:
    def spoil(root: Path) -> None:
        place = root.joinpath(*parts)
        shutil.rmtree(place) if place.is_dir() else place.unlink()

    return spoil


def packed(place: str, archive: str) -> Callable[[Path], None]:
    def spoil(root: Path) -> None:
        shutil.rmtree(root / place)
        (root / archive).touch()

    return spoil


MISTAKES: list[tuple[Callable[[Path], None], str, str]] = [
    (remove("imagenet", "LOC_val_solution.csv"), "imagenet", r"val is not sorted into classes.*LOC_val_solution\.csv"),
    (archives_instead_of_classes, "imagenet", r"1 archives such as n01440764\.tar.*tar xf"),
    (classes_by_words, "imagenet", r"folders named by synset, such as n01440764; .* holds tench 0"),
    (folder_in_folder, "imagenet", r"move what is in .*ILSVRC2012_img_train up into"),
    (remove("imagenet", "train"), "imagenet", r"no train/. Unpack ILSVRC2012_img_train\.tar"),
    (
        packed("imagenet", "ILSVRC2012_img_train.tar"),
        "imagenet",
        r"is not in .*imagenet\. .*Unpack ILSVRC2012_img_train",
    ),
    (renamed_val, "real", r"under their own names, such as ILSVRC2012_val_00000001\.JPEG; .* has 0\.jpg"),
    (v2_by_synset, "v2-mf", r"need folders 0 to 999, such as 0; .* holds n0"),
    (packed("sketch", "ImageNet-Sketch.zip"), "sketch", r"ImageNet-Sketch\.zip is in .*, but not unpacked"),
    (remove("imagenet-a"), "a", r"ImageNet-A is not in .*imagenet-a\. Unpack imagenet-a\.tar"),
    (only_training_masks, "imagenet-s", r"not validation-segmentation: .*masks of another split"),
    (masks_of_other_images, "imagenet-s", r"belong to no image of .*another split"),
    (masks_without_images, "imagenet-s", r"the archive of ImageNet-S holds masks alone\. Have ImageNet-1k in"),
    (full_ade, "ade20k", r"is the full ADE20K; .*ADEChallengeData2016\.zip"),
    (
        remove("ADEChallengeData2016", "annotations"),
        "ade20k",
        r"images/ but no annotations/.*ADEChallengeData2016\.zip",
    ),
    (remove("ADEChallengeData2016", "objectInfo150.txt"), "ade20k", r"no objectInfo150\.txt, which names the classes"),
    (remove("coco", "annotations"), "coco", r"no annotations/. Unpack annotations_trainval2017\.zip there"),
    (remove("coco", "val2017"), "coco", r"val2017 is missing; unpack val2017\.zip into"),
    (coco_2014, "coco", r"no instances_train2017\.json, only instances_train2014\.json"),
]


@pytest.mark.parametrize(("spoil", "name", "sentence"), MISTAKES, ids=lambda value: getattr(value, "__name__", None))
def test_a_typical_mistake_gets_a_sentence_that_says_what_to_do(
    root: Path, spoil: Callable[[Path], None], name: str, sentence: str
) -> None:
    spoil(root)
    found = DATA_SETS[name].find(root)
    assert found.place is None
    with pytest.raises(AssertionError, match=sentence):
        raise AssertionError(" ".join(found.problems))


def test_a_root_that_is_a_part_of_imagenet_is_refused(root: Path) -> None:
    (root / "imagenet" / "train" / "n01440764").mkdir()
    with pytest.raises(FileNotFoundError, match="is a part of ImageNet-1k itself; give the folder that holds"):
        check_root(root / "imagenet" / "train")
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        check_root(root / "nowhere")


def test_missing_labels_of_real_name_the_timm_that_has_them(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(package: str, name: str) -> bytes:
        raise FileNotFoundError(name)

    imagenet_labels.real_labels.cache_clear()
    monkeypatch.setattr(imagenet_labels.pkgutil, "get_data", lost)
    assert "install timm 1.0.20 or newer" in " ".join(DATA_SETS["real"].find(root).problems)


def test_the_command_names_every_problem_of_an_item_and_runs_nothing(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    remove("coco", "annotations")(root)
    remove("imagenet", "LOC_val_solution.csv")(root)
    call = ["reproduce", "dino-mamba-table3", "--root", str(root), "--scale", "tiny", "--run", str(tmp_path / "run")]
    assert main(call) == 1
    told = " ".join(capsys.readouterr().err.split())
    assert "1. " in told and "is not sorted into classes" in told and "2. " in told and "no annotations/" in told
    assert not list((tmp_path / "run").glob("*/weights.safetensors"))


def test_validation_images_are_sorted_by_either_file_and_the_data_stays_as_it_is(root: Path, tmp_path: Path) -> None:
    place = root / "imagenet"
    before = sorted(place.rglob("*"))
    sort_val(str(place), str(place / "LOC_val_solution.csv"), str(tmp_path / "out"))
    assert sorted(place.rglob("*")) == before
    found = {(file.name, file.parent.name) for file in (tmp_path / "out" / "val").glob("*/*")}
    assert found == {(f"{val_name(index)}.JPEG", synset) for index, synset in val_numbers().items()}
    splits = labelled_splits(str(tmp_path / "out"))
    assert (len(splits.train), len(splits.val), list(splits.classes)) == (12, 6, classes())

    kit = root / "ILSVRC2012_devkit_t12" / "data"  # ids of the kit are in an order of their own
    kit.mkdir(parents=True)
    ids = {synset: 1 + number for number, synset in enumerate(sorted(imagenet_classes(), reverse=True))}
    kinds = [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("num_children", "O")]
    rows = [(number, synset, 0) for synset, number in ids.items()]
    savemat(kit / "meta.mat", {"synsets": np.array(rows, dtype=kinds)})
    truth = [ids[val_numbers().get(index, "n01440764")] for index in range(50_000)]
    (kit / "ILSVRC2012_validation_ground_truth.txt").write_text("\n".join(map(str, truth)) + "\n")
    labels = read_val_labels(kit.parent)
    assert len(labels) == 50_000 and {index: labels[index] for index in val_numbers()} == val_numbers()


def test_masks_are_brought_beside_their_images(root: Path, tmp_path: Path) -> None:
    pair_masks(str(root / "ImageNetS919"), str(root / "imagenet" / "val"), str(tmp_path / "out"))
    source = parse_masks(f"imagenet-s:{tmp_path / 'out'}")
    assert len(source) == 6 and not source.unpaired
    one = source.load(0)
    assert one.image.shape == (3, 48, 64) and set(one.mask.unique().tolist()) == {0, 1, 255}


TRAIN = ("train", "supervised_vit_tiny64", "--data", "{root}/imagenet")
SEGMENT = ("segment", "vit_tiny", "--recipe", "segment_vit_tiny64", "--data", "{root}/ADEChallengeData2016")
DETECT = ("detect", "vit_tiny", "--recipe", "detect_vit_tiny64", "--data", "{root}/coco")
ROBUST = ("robust", "timm/test_vit", "--weights", "{root}/released.pth", "--data")
AUC = ("auc", "vit_tiny", "--data", "imagenet-s:{root}/ImageNetS919")


def other_masks(root: Path) -> None:
    masks = root / "ADEChallengeData2016" / "annotations" / "training"
    for mask in list(masks.iterdir()):
        mask.rename(masks / mask.name.replace("train", "val"))


def as_drawn(root: Path) -> None:
    """Validation images in one folder, and masks without images: as the archives unpack."""


AT_THE_COMMAND_LINE: list[tuple[Callable[[Path], None], tuple[str, ...], str]] = [
    (as_drawn, TRAIN, r"val is not sorted into classes: its 6 images .* `mixlab reproduce"),
    (archives_instead_of_classes, TRAIN, r"no images; it has 1 archives such as n01440764\.tar: unpack each"),
    (folder_in_folder, TRAIN, r"one folder, ILSVRC2012_img_train, which is one class; move its folders .* up into"),
    (remove("imagenet", "train"), TRAIN, r"imagenet has no train/, and the 6 images of .* lie in one folder; put each"),
    (loose_images, TRAIN, r"has images beside its 3 class folders, such as 1\.jpg: .*; move them"),
    (
        as_drawn,
        (*TRAIN[:3], "{root}"),
        r"holds data sets, not classes: imagenet, .*give one of them, such as .*/imagenet",
    ),
    (as_drawn, (*ROBUST, "val={root}/imagenet/val"), r"All images lie in one folder: sort them into class folders"),
    (renamed_val, (*ROBUST, "real={root}/imagenet/val"), r"unpack ILSVRC2012_img_val\.tar again and keep the names"),
    (v2_by_synset, (*ROBUST, "v2-mf={root}/imagenetv2-matched-frequency-format-val"), r"folders 0 to 999\. Give the"),
    (remove("ADEChallengeData2016", "annotations"), SEGMENT, r"unpack all of ADEChallengeData2016\.zip"),
    (
        remove("ADEChallengeData2016", "annotations", "validation"),
        SEGMENT,
        r"images/validation has no label maps in .*un",
    ),
    (remove("ADEChallengeData2016", "images", "validation"), SEGMENT, r"images/validation"),
    (remove("ADEChallengeData2016", "objectInfo150.txt"), SEGMENT, r"does not name its classes; write classes\.txt"),
    (other_masks, SEGMENT, r"has a partner with the same name in .*annotations/training \(3 masks\); name them alike"),
    (remove("coco", "annotations"), DETECT, r"unpack annotations_trainval2017\.zip there"),
    (
        remove("coco", "annotations", "instances_val2017.json"),
        DETECT,
        r"val2017 has no instances_val2017\.json: unpack",
    ),
    (remove("coco", "val2017"), DETECT, r"instances_val2017\.json names images .*; unpack val2017\.zip there"),
    (as_drawn, AUC, r"no validation/: the archive of ImageNet-S holds masks alone\. Copy or link .* `mixlab reproduce"),
]


@pytest.mark.parametrize(("spoil", "call", "sentence"), AT_THE_COMMAND_LINE)
def test_plain_commands_say_what_to_do_about_the_same_folders_before_they_train(
    root: Path, spoil: Callable[[Path], None], call: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(root)
    if call[0] == "robust":
        torch.save(timm.create_model("test_vit").state_dict(), root / "released.pth")
    run = root / "run"
    assert main([text.format(root=root) for text in (*call, "--run", str(run), "--device", "cpu")]) == 1
    told = "".join(capsys.readouterr().err.split())  # lines break anywhere in a long path
    assert re.search(sentence.replace(" ", ""), told), told
    assert not [*run.glob("checkpoints/*"), *run.glob("*.safetensors")], "nothing was trained"


def test_data_with_gaps_is_not_said_to_be_there(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(Image.new("L", (8, 8)), root / "ADEChallengeData2016" / "annotations" / "training" / "alone.png")
    assert main(["reproduce", "mambaout-table3", "--root", str(root)]) == 0
    told = " ".join(capsys.readouterr().err.split())
    assert "1 file of training has no counterpart" in told and "the data is there" not in told
    assert "the data can be used, with the warnings above: " in told
    plan = plan_item(ITEMS["mambaout-table3"], root=root, run=root / "run")
    _show(Answer(), replace(plan, doubts=()), root)
    assert capsys.readouterr().err.splitlines()[-1].startswith("the data is there: ")


def test_a_class_folder_too_many_is_a_problem_and_a_class_too_few_a_note(root: Path) -> None:
    sorted_val(root)
    draw_imagenet(root / "other")
    assert any("997 of 1,000 classes" in note for note in DATA_SETS["imagenet"].find(root).notes)
    picture(root / "imagenet" / "train" / "thumbnails" / "1.jpg", 1)
    [problem] = DATA_SETS["imagenet"].find(root).problems
    assert "has folders that are no class" in problem and "thumbnails" in problem
    save(Image.new("L", (8, 8)), root / "ADEChallengeData2016" / "annotations" / "training" / "alone.png")
    assert any("1 file of training has no counterpart" in note for note in DATA_SETS["ade20k"].find(root).notes)
