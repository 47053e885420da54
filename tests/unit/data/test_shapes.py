"""The embedded set: deterministic, labelled consistently, and neither trivial nor hopeless."""

import hashlib
import multiprocessing
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from mixlab.data import SHAPE_CLASSES, Shapes
from mixlab.data.drawing import _REACH, draw_plan, paint
from mixlab.data.patterns import OUTLINES


def digest(source: Shapes, indexes: list[int]) -> str:
    return hashlib.sha256(b"".join(source.load(index).numpy().tobytes() for index in indexes)).hexdigest()


@cache
def drawn(split: str, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (n, 3, 32, 32) from 0 to 255 and their labels."""
    source = Shapes(size=32, num_images=number, split=split)
    return torch.stack([source.load(index) for index in range(number)]).float(), source.labels()


def test_a_scene_depends_only_on_seed_split_and_index():
    forward = [Shapes(size=32, num_images=20).load(index) for index in range(20)]
    backward = [Shapes(size=32, num_images=500).load(index) for index in reversed(range(20))]
    assert all(torch.equal(a, b) for a, b in zip(forward, reversed(backward), strict=True))


def three_scenes() -> str:
    return digest(Shapes(size=48, seed=3, split="val"), [5, 1, 9])


def test_another_process_draws_the_same_scenes() -> None:
    with multiprocessing.get_context("forkserver").Pool(1) as other:  # which hashes text in its own way
        assert other.apply(three_scenes) == three_scenes()


def test_seeds_and_splits_share_no_scene():
    digests = {
        digest(Shapes(size=16, seed=seed, split=split), [index])
        for seed in (0, 1, 256)
        for split in ("train", "val")
        for index in range(40)
    }
    assert len(digests) == 3 * 2 * 40


def test_images_labels_and_scenes_agree():
    source = Shapes(size=40, num_images=30)
    for index in range(30):
        scene = source.scene(index)
        assert torch.equal(scene.image, source.load(index))
        assert scene.label == source.label(index)
    assert source.labels().tolist() == [source.label(index) for index in range(30)]


@pytest.mark.parametrize("size", [8, 33, 64, 200])
def test_masks_boxes_and_classes_describe_the_same_objects(size):
    source = Shapes(size=size, num_images=25)
    for index in range(25):
        scene = source.scene(index)
        assert scene.image.shape == (3, size, size) and scene.image.dtype == torch.uint8
        assert len(scene.instances) == len(scene.classes) == len(scene.boxes) <= 4
        assert int(scene.instances.sum(0).max()) <= 1, "visible parts overlap"
        assert torch.equal(scene.instances.any(0), scene.foreground.bool())
        assert torch.equal(scene.semantic > 0, scene.foreground.bool())
        for mask, kind, box in zip(scene.instances, scene.classes, scene.boxes, strict=True):
            assert (scene.semantic[mask] == kind + 1).all()
            rows, columns = mask.nonzero().unbind(1)
            expected = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
            assert box.tolist() == [float(value) for value in expected]


def test_a_scene_is_the_same_at_any_size():
    small, large = Shapes(size=64), Shapes(size=128)
    for index in range(10):
        a, b = small.scene(index), large.scene(index)
        assert torch.equal(a.classes, b.classes)
        shrunk = torch.nn.functional.avg_pool2d(b.foreground[None].float(), 2)[0]
        assert ((shrunk - a.foreground).abs() > 0.6).float().mean() < 0.01
        assert (a.boxes * 2 - b.boxes).abs().max() <= 3


def test_light_changes_pixels_but_no_mask_and_differs_within_and_between_scenes():
    lit, unlit = [], []
    for index in range(60):
        plan = draw_plan(Shapes()._stream(index))
        (image, covers), (plain, plain_covers) = paint(plan, 32), paint(replace(plan, light=np.ones((3, 2, 2))), 32)
        for (window, cover), (plain_window, plain_cover) in zip(covers, plain_covers, strict=True):
            assert window == plain_window and np.array_equal(cover, plain_cover)
        for found, part in ((lit, image), (unlit, plain)):
            found.append(np.log2(part.reshape(3, 4, 8, 4, 8).mean(axis=(2, 4)) + 1))  # brightness of parts, in stops
    for axis in (0, (2, 3)):  # from scene to scene, from part to part
        assert np.std(lit, axis=axis).mean() > 1.5 * np.std(unlit, axis=axis).mean()


def test_patches_of_light_brighten_and_colour_a_scene_as_their_numbers_say():
    plan = replace(draw_plan(Shapes()._stream(0)), grain=(0, 0, 0.0), metered=np.full(3, 0.15))
    light = np.array([[[1.0, 0.2]] * 2, [[0.5, 0.5]] * 2, [[0.3, 1.0]] * 2], dtype=np.float32)  # along x alone
    plain, image = (paint(replace(plan, light=cells), 64)[0] / 255 for cells in (np.ones((3, 2, 2)), light))
    assert max(plain.max(), image.max()) < 1  # nothing is clipped
    assert image.mean(axis=(1, 2)) == pytest.approx(plan.metered, abs=0.002)
    along = (np.arange(64) + 0.5) / 64
    gain = np.stack([1 - 0.8 * along, 0.5 + 0 * along, 0.3 + 0.7 * along])
    expected = plain * gain[:, None, :]
    expected *= 0.15 / expected.mean(axis=(1, 2), keepdims=True)
    assert np.abs(image - expected).max() < 2.5 / 255  # both were rounded


def test_the_mean_colour_of_a_scene_says_nothing_of_its_class():
    images, labels = (part.numpy() for part in drawn("train", 1200))
    means = images.mean(axis=(2, 3))
    of_classes = np.stack([means[labels == kind].mean(axis=0) for kind in range(10)])
    assert means.std(axis=0).min() > 4  # of 255
    assert of_classes.std(axis=0).max() < 0.25 * means.std(axis=0).min()


def test_the_main_object_is_the_largest_planned_one_and_all_classes_occur():
    source = Shapes(size=64, num_images=400)
    labels = source.labels()
    counts = torch.bincount(labels, minlength=len(SHAPE_CLASSES))
    assert len(SHAPE_CLASSES) == 10
    assert counts.min() > 15, counts
    scenes = [source.scene(index) for index in range(60)]
    assert all(int(scene.classes[0]) == scene.label for scene in scenes)
    sides = [(scene.boxes[:, 2:] - scene.boxes[:, :2]).amax(1) for scene in scenes if len(scene.boxes) > 1]
    assert len(sides) > 15 and np.mean([float(side[0] > side[1:].max()) for side in sides]) > 0.95


def test_no_outline_reaches_out_of_the_window_it_is_painted_in():
    grid = np.linspace(-2, 2, 201, dtype=np.float32)
    x, y = grid[None, :], grid[:, None]
    for name, outline in OUTLINES.items():
        inside = outline(x * np.ones_like(y), y * np.ones_like(x)) < 0
        reach = max(np.abs(grid[inside.any(axis=0)]).max(), np.abs(grid[inside.any(axis=1)]).max())
        corner = np.sqrt((np.stack(np.meshgrid(grid, grid)) ** 2).sum(0))[inside].max()
        assert 0.7 < reach <= _REACH, name
        assert corner <= _REACH, f"{name} turned by 45 degrees leaves its window"


def test_the_centre_of_the_image_does_not_tell_the_foreground():
    from sklearn.metrics import roc_auc_score

    source = Shapes(size=32, num_images=150, split="val")
    at = np.linspace(-1, 1, 32)
    blob = -(at[:, None] ** 2 + at**2)
    scores = [roc_auc_score(source.scene(i).foreground.ravel(), blob.ravel()) for i in range(150)]
    assert np.mean(scores) < 0.68, "real photographs score 0.82 to 0.88"


def test_a_linear_model_on_pixels_is_poor():
    from sklearn.linear_model import RidgeClassifier

    (bank, labels), (queries, truth) = drawn("train", 1200), drawn("val", 400)
    model = RidgeClassifier(alpha=100.0).fit(bank[:1000].flatten(1).numpy() / 255, labels[:1000].numpy())
    assert model.score(queries.flatten(1).numpy() / 255, truth.numpy()) < 0.35


def test_nearest_neighbours_in_pixels_are_poor():
    """Light dominates distances between pixels: features have to look past it."""

    (bank, labels), (queries, truth) = drawn("train", 1200), drawn("val", 400)
    for pool in (1, 4, 32):  # pixels, means of them, the mean colour
        a, b = (torch.nn.functional.avg_pool2d(x, pool).flatten(1) for x in (bank, queries))
        centred = [torch.nn.functional.normalize(x - a.mean(0), dim=1) for x in (a, b)]
        for distance in (torch.cdist(b, a), -centred[1] @ centred[0].T):
            votes = torch.nn.functional.one_hot(labels[distance.topk(20, largest=False).indices], 10).sum(1)
            assert float((votes.argmax(1) == truth).float().mean()) < 0.25, f"means of {pool} x {pool} px"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"size": 4}, "at least 8"),
        ({"num_images": 0}, "at least 1"),
        ({"split": "test"}, "choose train or val"),
        ({"seed": -1}, "2"),
    ],
)
def test_wrong_settings_are_refused_with_a_way_out(wrong, message):
    with pytest.raises(ValueError, match=message):
        Shapes(**wrong)


def test_an_index_outside_the_set_is_refused():
    with pytest.raises(IndexError, match="0 to 9"):
        Shapes(num_images=10).load(10)
