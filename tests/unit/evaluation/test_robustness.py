"""ImageNet's shifted sets as small folders in their released layouts, scored by a classifier that reads colours."""

import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
from PIL import Image
from torch import Tensor, nn

from mixlab.data.decode import decode, to_tensor
from mixlab.data.imagenet_labels import imagenet_a_classes, imagenet_classes, imagenet_r_classes, real_labels
from mixlab.evaluation.classifier import NamedClassifier, timm_classifier
from mixlab.evaluation.machine import CentreView, Machine
from mixlab.evaluation.robustness import evaluate_robustness, score_set
from mixlab.evaluation.shifted_sets import SETS, SetScore, find_sets
from mixlab.run import Subject
from mixlab.training.distributed import World
from tests.bars import CountingBar
from tests.photographs import PHOTOGRAPHS, needs_photographs

ALONE = Machine(World(torch.device("cpu")), batch=3)


class Oracle(nn.Module):
    """Reads a class number that was painted as a grey tone pair, and is sure of it; then of the class after it."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.pretrained_cfg = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}

    def forward(self, images: Tensor) -> Tensor:
        number = (images[:, :2].mean((2, 3)) * 255 / 4).round().long()  # two digits to base 32, four tones apart
        label = (number[:, 0] * 32 + number[:, 1]) % self.num_classes
        logits = torch.zeros(len(images), self.num_classes)
        logits[torch.arange(len(images)), label] = 2.0
        logits[torch.arange(len(images)), (label + 1) % self.num_classes] = 1.0
        return logits


def oracle(classes: tuple[str, ...] | None = None) -> NamedClassifier:
    classes = classes or imagenet_classes()
    return NamedClassifier(Oracle(len(classes)), classes, CentreView(8, 1.0), Subject(label="oracle"), kind="its own")


def paint(path: Path, number: int) -> None:
    """An image that makes the oracle say `number`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (12, 12), (4 * (number // 32), 4 * (number % 32), 0)).save(path)


def score(name: str, folder: Path, classifier: NamedClassifier | None = None, **options) -> SetScore:
    return score_set(name, folder, classifier or oracle(), machine=ALONE, **options)


def test_folders_of_imagenet_v2_are_numbers_and_not_words(tmp_path: Path) -> None:
    for label in (0, 2, 10, 100, 999):  # sorted as words, 10 and 100 come before 2
        paint(tmp_path / str(label) / "a.png", label)
    paint(tmp_path / "3" / "b.png", 4)
    found = score("v2-mf", tmp_path)
    assert (found.correct, found.n) == (5, 6)
    assert len(found.absent_classes) == 994


def test_a_bar_ends_with_the_last_image_that_this_rank_scores(tmp_path: Path) -> None:
    for number in range(9):
        paint(tmp_path / imagenet_classes()[number] / "a.png", number)
    bar = CountingBar()
    machine = Machine(World(torch.device("cpu"), rank=1, size=2), batch=3, bar=bar)
    evaluate_robustness(oracle(), {"sketch": tmp_path}, limit=5, machine=machine)
    assert bar.totals == bar.done == [2]  # of 50,889 in the released set: 5, of which the other rank has 3


def test_synset_folders_are_scored_by_their_place_among_the_thousand(tmp_path: Path) -> None:
    for label in (1, 207, 998):
        paint(tmp_path / imagenet_classes()[label] / "a.png", label)
    for name in ("val", "sketch"):
        found = score(name, tmp_path)
        assert (found.correct, found.n) == (3, 3)


@pytest.mark.parametrize(("name", "classes"), [("a", imagenet_a_classes()), ("r", imagenet_r_classes())])
def test_a_and_r_are_judged_among_their_200_classes_only(name: str, classes: tuple[str, ...], tmp_path: Path) -> None:
    everything = imagenet_classes()
    members = {everything.index(synset) for synset in classes}
    # The oracle is surest of a class outside the subset; its second choice is inside, and must win.
    label = next(label for label in sorted(members) if label - 1 not in members)
    paint(tmp_path / everything[label] / "a.png", label - 1)
    found = score(name, tmp_path)
    assert (found.correct, found.n, len(found.absent_classes)) == (1, 1, 199)
    assert score("val", tmp_path).correct == 0


def test_real_takes_any_of_several_labels_and_leaves_out_images_without(tmp_path: Path) -> None:
    labels = real_labels()
    several = next(number for number, part in enumerate(labels) if len(part) >= 2)
    none = next(number for number, part in enumerate(labels) if not part)
    for number, said in ((several, max(labels[several])), (none, 5)):
        paint(tmp_path / "n01440764" / f"ILSVRC2012_val_{number + 1:08d}.png", said)
    paint(tmp_path / "n01440764" / "n01440764_77.png", 0)
    found = score("real", tmp_path)
    assert (found.correct, found.n, found.unlabelled, found.unnamed) == (1, 1, 1, {"n01440764": 1})
    together = score("real", tmp_path, shard=(0, 2))
    together.add(score("real", tmp_path, shard=(1, 2)))
    assert (together.correct, together.n, together.unlabelled, together.unnamed) == (1, 1, 1, {"n01440764": 1})
    wrong = next(label for label in range(1000) if label not in labels[several])
    paint(tmp_path / "n01440764" / f"ILSVRC2012_val_{several + 1:08d}.png", wrong)
    assert score("real", tmp_path).correct == 0


def test_what_does_not_fit_is_named_and_counted_and_the_rest_scored(tmp_path: Path) -> None:
    classes = imagenet_classes()
    for label in (3, 4, 5):
        paint(tmp_path / classes[label] / "a.png", label)
    paint(tmp_path / "cats" / "a.png", 1)
    (tmp_path / classes[3] / "broken.png").write_bytes(b"no image")
    known = tuple(synset for synset in classes if synset != classes[5])
    classifier = oracle(known)
    with pytest.warns(UserWarning, match="skipped"):
        found = score("val", tmp_path, classifier)
    assert (found.correct, found.n) == (2, 2)
    assert found.strange_folders == {"cats": 1} and found.unknown_classes == {classes[5]: 1}
    assert [Path(path).name for path in found.unreadable] == ["broken.png"]
    told = " ".join(found.notes())
    for words in ("a class of val: cats", f"does not know: {classes[5]}", "997 classes have no image", "broken.png"):
        assert words in told


def test_a_wrong_layout_is_an_error_that_says_what_was_found_and_what_is_expected(tmp_path: Path) -> None:
    paint(tmp_path / "cats" / "a.png", 1)
    with pytest.raises(ValueError, match=r"no image that can be scored as V2 MF, which has folders 0 to 999.*cats"):
        score("v2-mf", tmp_path)
    with pytest.raises(FileNotFoundError, match="holds none of val, imagenetv2"):
        find_sets(tmp_path)


def test_folders_that_an_archive_wrapped_around_are_seen_through(tmp_path: Path) -> None:
    paint(tmp_path / "imagenet-r" / "imagenet-r" / imagenet_r_classes()[0] / "a.png", 1)
    (tmp_path / "imagenet-r" / "imagenet-r" / "README.txt").write_text("as released")
    assert find_sets(tmp_path) == {"r": tmp_path / "imagenet-r"}
    assert score("r", tmp_path / "imagenet-r").correct == 1


def test_sets_are_found_by_their_released_names(tmp_path: Path) -> None:
    names = {
        "v2-mf": "imagenetv2-matched-frequency-format-val",
        "v2-t07": "imagenetv2-threshold0.7-format-val",
        "v2-ti": "imagenetv2-top-images-format-val",
        "sketch": "sketch",
        "a": "imagenet-a",
        "val": "val",
    }
    for name in names.values():
        (tmp_path / name).mkdir()
    found = find_sets(tmp_path)
    assert found == {**{key: tmp_path / name for key, name in names.items()}, "real": tmp_path / "val"}


def test_limits_and_shards_cut_a_set_into_parts_that_add_up(tmp_path: Path) -> None:
    for label in range(11):
        paint(tmp_path / imagenet_classes()[label] / "a.png", label if label % 3 else 500)
    whole = score("val", tmp_path)
    assert (whole.correct, whole.n) == (7, 11)
    parts = [score("val", tmp_path, shard=(index, 4)) for index in range(4)]
    assert [part.n for part in parts] == [3, 3, 3, 2]
    together = parts[0]
    for part in parts[1:]:
        together.add(part)
    assert (together.correct, together.n) == (7, 11)
    assert score("val", tmp_path, limit=5).n == 5
    assert score("val", tmp_path, limit=2, shard=(2, 3)).n == 0


def test_released_sets_have_their_known_sizes() -> None:
    sizes = {name: (robust_set.num_images, len(robust_set.classes())) for name, robust_set in SETS.items()}
    assert sizes["a"] == (7_500, 200) and sizes["r"] == (30_000, 200) and sizes["sketch"] == (50_889, 1000)
    assert sizes["v2-mf"] == sizes["v2-t07"] == sizes["v2-ti"] == (10_000, 1000) and sizes["real"] == (46_837, 1000)


def test_plain_validation_measures_what_training_measures_and_only_of_classifiers(tmp_path: Path) -> None:
    for label in range(4):
        paint(tmp_path / "data" / "val" / imagenet_classes()[label] / "a.png", label if label else 9)
    folders = {"val": tmp_path / "data" / "val"}
    [one] = evaluate_robustness(oracle(), folders, machine=ALONE).measurements
    assert (one.metric, one.value, one.n) == ("top1", 0.75, 4) and list(one.by_image) == [0, 1, 1, 1]
    assert (one["data"], one["split"], one["image"], one["crop_share"]) == (str(tmp_path / "data"), "val", 8, 1.0)
    assert not evaluate_robustness(replace(oracle(), kind="probe"), folders, machine=ALONE).measurements
    assert not evaluate_robustness(oracle(), folders, num_parts=2, machine=ALONE).measurements


@needs_photographs
def test_a_real_classifier_on_real_photographs_scores_what_plain_code_counts(tmp_path: Path) -> None:
    weights = PHOTOGRAPHS / "weights" / "tf_efficientnet_lite0_imagenet_timm.pth"
    with tarfile.open(PHOTOGRAPHS / "imagenette_112px.tar") as tar:
        members = [member for member in tar if member.name.lstrip("./").startswith("val/") and member.isfile()]
        tar.extractall(tmp_path, members=members[::125], filter="data")
    classifier = timm_classifier("tf_efficientnet_lite0", weights=weights, image=112)
    found = score("val", tmp_path / "val", classifier)
    model = timm.create_model("tf_efficientnet_lite0", num_classes=1000).eval()
    model.load_state_dict(torch.load(weights, weights_only=True))
    paths = sorted((tmp_path / "val").rglob("*.jpg"))
    small = [to_tensor(decode(path).resize((128, 128), Image.Resampling.BICUBIC)) for path in paths]
    pixels = torch.stack(small)[..., 8:120, 8:120].float() / 255
    with torch.no_grad():
        predicted = model((pixels - 0.5) / 0.5).argmax(1).tolist()
    right = sum(imagenet_classes()[number] == path.parent.name for number, path in zip(predicted, paths, strict=True))
    assert found.n == len(paths) >= 30
    assert found.correct == right > 10


def test_sets_are_found_where_archives_put_them_and_unsorted_images_are_named(tmp_path: Path) -> None:
    paint(tmp_path / "imagenet" / "val" / "ILSVRC2012_val_00000001.JPEG", 1)
    paint(tmp_path / "imagenetv2" / "imagenetv2-top-images-format-val" / "3" / "a.jpeg", 3)
    found = find_sets(tmp_path)
    v2 = tmp_path / "imagenetv2" / "imagenetv2-top-images-format-val"
    assert found == {"val": tmp_path / "imagenet" / "val", "v2-ti": v2, "real": tmp_path / "imagenet" / "val"}
    with pytest.raises(ValueError, match=r"All images lie in one folder: sort them into class folders; `mixlab rep"):
        score("val", found["val"])
