"""The scores against a plain confusion matrix, on random and on awkward label maps."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics import confusion_matrix

from mixlab.evaluation.segmentation.evaluate import ConfusionMatrix, interval, scores_of, shares_of_groups
from mixlab.statistics import Estimate, difference

IGNORE = 255


def plain_scores(pairs: list[tuple[np.ndarray, np.ndarray]], num_classes: int) -> dict[str, object]:
    """Class by class, pixel sets compared as sets."""
    predicted = np.concatenate([said.ravel() for said, _ in pairs])
    truth = np.concatenate([true.ravel() for _, true in pairs])
    predicted, truth = predicted[truth != IGNORE], truth[truth != IGNORE]
    iou, accuracy = {}, {}
    for number in range(num_classes):
        said, true = set(np.flatnonzero(predicted == number)), set(np.flatnonzero(truth == number))
        if said | true:
            iou[number] = len(said & true) / len(said | true)
        if true:
            accuracy[number] = len(said & true) / len(true)
    return {
        "iou": iou,
        "accuracy": accuracy,
        "miou": sum(iou.values()) / len(iou) if iou else float("nan"),
        "macc": sum(accuracy.values()) / len(accuracy) if accuracy else float("nan"),
        "aacc": float((predicted == truth).mean()) if len(truth) else float("nan"),
    }


def assert_equal(pairs: list[tuple[np.ndarray, np.ndarray]], num_classes: int) -> None:
    metric = ConfusionMatrix(num_classes)
    for said, true in pairs:
        metric.update(torch.from_numpy(said), torch.from_numpy(true))
    found, expected = scores_of(metric.compute()), plain_scores(pairs, num_classes)
    for name in ("miou", "macc", "aacc"):
        np.testing.assert_allclose(getattr(found, name), expected[name], rtol=1e-12)
    for name in ("iou", "accuracy"):
        values = getattr(found, name)
        assert {i: v for i, v in enumerate(values.tolist()) if not np.isnan(v)} == pytest.approx(expected[name])


@given(data=st.data(), num_classes=st.integers(2, 6))
@settings(max_examples=60, deadline=None)
def test_scores_equal_sets_of_pixels_on_random_maps(data, num_classes: int) -> None:
    pairs = []
    for _ in range(data.draw(st.integers(1, 3))):
        shape = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
        said = data.draw(arrays(np.uint8, shape, elements=st.integers(0, num_classes - 1)))
        true = data.draw(arrays(np.uint8, shape, elements=st.sampled_from([*range(num_classes), IGNORE])))
        pairs.append((said, true))
    assert_equal(pairs, num_classes)


ZEROS, ONES = np.zeros((3, 4), dtype=np.uint8), np.ones((3, 4), dtype=np.uint8)
NOTHING = np.full((3, 4), IGNORE, dtype=np.uint8)
AWKWARD = {
    "nothing is counted": [(ZEROS, NOTHING)],
    "nothing is counted in one image": [(ZEROS, NOTHING), (ZEROS, ZEROS)],
    "all wrong": [(ZEROS, ONES)],
    "a class that only the prediction has": [(np.full((3, 4), 2, dtype=np.uint8), ZEROS)],
    "a class that only one image has": [(ZEROS, ZEROS), (ONES, ONES), (ZEROS, ONES)],
    "one pixel": [(ZEROS[:1, :1], ONES[:1, :1])],
}


@pytest.mark.parametrize("case", AWKWARD)
def test_scores_equal_sets_of_pixels_on_awkward_maps(case: str) -> None:
    assert_equal(AWKWARD[case], 3)


def test_the_matrix_is_that_of_scikit_learn_with_as_many_classes_as_fit() -> None:
    random = np.random.default_rng(0)
    said, true = (random.integers(0, 255, (90, 70)).astype(np.uint8) for _ in range(2))
    metric = ConfusionMatrix(255)
    metric.update(torch.from_numpy(said), torch.from_numpy(true))
    np.testing.assert_array_equal(metric.compute()[0], confusion_matrix(true.ravel(), said.ravel(), labels=range(255)))


def test_the_scores_are_of_the_set_and_not_the_mean_over_images() -> None:
    large, small = np.zeros((1, 9), dtype=np.uint8), np.zeros((1, 1), dtype=np.uint8)
    metric = ConfusionMatrix(2)
    metric.update(torch.from_numpy(large), torch.from_numpy(large))
    metric.update(torch.from_numpy(small + 1), torch.from_numpy(small))
    assert scores_of(metric.compute()).aacc == pytest.approx(0.9)


def test_a_class_that_is_not_there_is_no_number_in_the_result() -> None:
    metric = ConfusionMatrix(3)
    metric.update(torch.zeros(2, 2), torch.zeros(2, 2))
    rows = scores_of(metric.compute()).to_json(("a", "b", "c"))["classes"]
    assert [row["iou"] for row in rows] == [1.0, None, None]


@pytest.mark.parametrize(
    ("said", "true", "says"),
    [
        (torch.tensor([3]), torch.tensor([0]), "a prediction holds classes from 3 to 3; there are 0 to 2"),
        (torch.tensor([0]), torch.tensor([7]), "truth holds classes from 7 to 7"),
        (torch.zeros(2, 2), torch.zeros(2, 3), "differ in shape"),
    ],
)
def test_classes_that_do_not_exist_are_refused(said, true, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        ConfusionMatrix(3).update(said, true)


def test_the_interval_is_that_of_drawing_images_with_replacement() -> None:
    """Against a plain loop over draws, with the same number of images and other random numbers."""
    random = np.random.default_rng(3)
    truth = random.integers(0, 3, (40, 20))
    said = np.where(random.random((40, 20)) < random.uniform(0.3, 1.0, (40, 1)), truth, random.integers(0, 3, (40, 20)))
    metric = ConfusionMatrix(3, num_groups=40)
    for image in range(40):
        metric.update(torch.from_numpy(said[image]), torch.from_numpy(truth[image]), group=image)
    counts = metric.compute()
    drawn = []
    for _ in range(1000):
        chosen = random.integers(0, 40, 40)
        drawn.append(plain_scores([(said[chosen], truth[chosen])], 3)["miou"])
    low, high = interval(counts)
    assert scores_of(counts).miou == pytest.approx(plain_scores([(said, truth)], 3)["miou"])
    np.testing.assert_allclose([low, high], np.quantile(drawn, [0.025, 0.975]), atol=0.012)
    assert interval(counts[:1]) is None


def scenes(number: int, random: np.random.Generator, *, num_classes: int = 11) -> np.ndarray:
    """Counts (n, K, K) of images with two or three classes each, the first in all of them and the last ones rare."""
    counts, often = np.zeros((number, num_classes, num_classes), dtype=np.int64), 1 / np.arange(1, num_classes + 1)
    for image in counts:
        there = np.unique([0, *random.choice(num_classes, 2, p=often / often.sum())])
        pixels = random.multinomial(1000, random.dirichlet(np.ones(len(there))))
        right = random.binomial(pixels, random.beta(1.2, 0.8, len(there)))
        np.add.at(image, (there, there), right)
        np.add.at(image, (there, np.roll(there, 1)), pixels - right)
    return counts


def iou_of(counts: np.ndarray) -> np.ndarray:
    return scores_of(counts.sum(0, keepdims=True)).iou


@pytest.mark.parametrize("number", [10, 40])
def test_the_interval_covers_the_truth_as_often_as_it_says(number: int) -> None:
    """Of the classes of each set; drawing ten images again with replacement once covered two thirds."""
    random = np.random.default_rng(0)
    population = scenes(4000, random)
    truth, covered = iou_of(population), 0
    for _ in range(300):
        chosen = population[random.integers(0, len(population), number)]
        low, high = interval(chosen)
        covered += low < truth[~np.isnan(iou_of(chosen))].mean() < high
    assert 0.92 < covered / 300 < 0.99


def test_two_networks_differ_by_as_much_as_their_interval_says() -> None:
    """The second makes other errors in the same scenes; ten images are compared in pairs."""
    random = np.random.default_rng(1)
    first = scenes(4000, random)
    kept = np.eye(11, dtype=np.int64) * random.binomial(first.diagonal(axis1=1, axis2=2), 0.8)[:, None]
    second = kept + np.roll(np.eye(11, dtype=np.int64), 1, axis=1) * (first.sum(2) - kept.sum(2))[..., None]
    truth, covered = [iou_of(counts) for counts in (first, second)], 0
    for _ in range(300):
        chosen = random.integers(0, 4000, 10)
        sides, expected = [], []
        for counts, iou in zip((first[chosen], second[chosen]), truth, strict=True):
            shares = shares_of_groups(counts)
            sides.append([Estimate(float(shares.mean()), *interval(counts), 10, by_image=shares)])
            expected.append(iou[~np.isnan(iou_of(counts))].mean())
        low, high = difference(*sides).interval()
        covered += low < expected[0] - expected[1] < high
    assert 0.9 < covered / 300 < 0.99


@pytest.mark.parametrize("right", [0, 7])
def test_an_miou_of_0_or_1_has_no_width_and_two_images_without_a_class_in_common_have_one(right: int) -> None:
    counts = np.zeros((2, 4, 4), dtype=np.int64)
    counts[0, 0, 0], counts[0, 0, 2], counts[1, 1, 1], counts[1, 1, 3] = right, 7 - right, right, 7 - right
    assert interval(counts) == (float(right > 0), float(right > 0))
    counts[0, 0, 2] = counts[1, 1, 3] = 7
    if right:
        low, high = interval(counts)
        assert 0 < low < scores_of(counts).miou < high < 1
        assert shares_of_groups(counts).mean() == pytest.approx(scores_of(counts).miou)


def test_rare_classes_that_are_never_found_do_not_raise_the_interval() -> None:
    """A class of a single image may vary as the others do: so the interval is wider than that of class 0 alone."""
    counts = np.zeros((30, 8, 8), dtype=np.int64)
    counts[:, 0, 0] = np.arange(70, 100)
    counts[:, 0, 1] = np.arange(30, 0, -1)
    for rare in range(2, 8):
        counts[rare, rare, 0] = 5
    common, whole = counts[:, 0, 0], scores_of(counts)
    low, high = interval(counts)
    assert low < whole.miou < high and (low + high) / 2 == pytest.approx(whole.miou, abs=0.01)
    assert 4 * common.std() / np.sqrt(30) / 100 / 8 < high - low < 4 * common.std() / 100 / np.sqrt(8)


def test_the_shares_of_groups_have_the_miou_as_their_mean_and_its_spread() -> None:
    """Against the jackknife, which leaves out one group after the other."""
    random = np.random.default_rng(0)
    counts = random.integers(0, 50, size=(30, 3, 3)) + 60 * np.eye(3, dtype=np.int64)
    counts[4] = 0
    shares = shares_of_groups(counts)
    assert np.isnan(shares[4]) and np.nanmean(shares) == pytest.approx(scores_of(counts).miou)
    kept = np.delete(counts, 4, axis=0)
    without = kept.sum(0) - kept  # each group left out
    hits = np.diagonal(without, axis1=1, axis2=2)
    left_out = (hits / (without.sum(1) + without.sum(2) - hits)).mean(1)
    jackknife = (len(kept) - 1) / len(kept) * ((left_out - left_out.mean()) ** 2).sum()
    assert np.nanvar(shares, ddof=1) / len(kept) == pytest.approx(jackknife, rel=0.05)
