"""COCO's figures against pycocotools, on random cases and on those that break evaluators."""

import contextlib
import copy
import io
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools import mask as oracle_mask
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from mixlab.evaluation.detection.average_precision import (
    IOUS,
    NAMES,
    CategoryMatches,
    average_precision,
    category_precisions,
    match_detections,
    mean_precisions,
    precision_interval,
)
from mixlab.statistics import jackknife

SIDE = 128


def by_pycocotools(truth: dict, results: list[dict], kind: str) -> list[float]:
    """The six figures as the reference computes them, -1 where there is nothing to find."""
    key = {"boxes": "bbox", "masks": "segmentation"}[kind]
    with contextlib.redirect_stdout(io.StringIO()):
        objects, found = COCO(), COCO()
        objects.dataset = copy.deepcopy(truth)
        objects.createIndex()
        if results:
            kept = ("image_id", "category_id", "score", key)
            found = objects.loadRes([{name: copy.deepcopy(entry[name]) for name in kept} for entry in results])
        else:  # the reference cannot load an empty list
            found.dataset = {**copy.deepcopy(truth), "annotations": []}
            found.createIndex()
        scoring = COCOeval(objects, found, {"boxes": "bbox", "masks": "segm"}[kind])
        scoring.evaluate()
        scoring.accumulate()
        scoring.summarize()
    return [float(value) for value in scoring.stats[:6]]


def rectangle(random: np.random.Generator) -> list[float]:
    """Of all sizes: COCO's limits are 32 and 96 pixels."""
    width, height = np.exp(random.uniform(np.log(4), np.log(120), 2))
    return [random.uniform(0, SIDE - width), random.uniform(0, SIDE - height), width, height]


def mask_of(box: list[float]) -> np.ndarray:
    left, top, width, height = (round(value) for value in box)
    mask = np.zeros((SIDE, SIDE), dtype=np.uint8, order="F")
    mask[top : top + height, left : left + width] = 1
    return mask


def packed(mask: np.ndarray) -> dict:
    code = oracle_mask.encode(np.asfortranarray(mask))
    return {"size": code["size"], "counts": code["counts"].decode()}


def random_case(seed: int, *, crowds: float, found: float, images: int = 6) -> tuple[dict, list[dict]]:
    """Objects, and detections that are noisy copies of some of them, doubled, in other classes, or of nothing."""
    random = np.random.default_rng(seed)
    categories = [3, 7, 90]  # ids with gaps; the last never occurs
    annotations, results = [], []
    for image in range(1, images + 1):
        for _ in range(random.integers(0, 6)):
            box = rectangle(random)
            mask = mask_of(box)
            crowd = int(random.random() < crowds)
            runs = packed(mask)
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image,
                    "category_id": int(random.choice(categories[:2])),
                    "bbox": box,
                    "area": float(mask.sum()),
                    "iscrowd": crowd,
                    "segmentation": runs,
                }
            )
            for _ in range(random.integers(0, 4) if random.random() < found else 0):
                shaken = (np.array(box) * random.uniform(0.85, 1.15, 4)).clip(1, SIDE).tolist()
                right = random.random() < 0.8
                results.append(
                    {
                        "image_id": image,
                        "category_id": annotations[-1]["category_id"] if right else int(random.choice(categories)),
                        "bbox": shaken,
                        "score": round(float(random.random()), 1),  # coarse, so that there are ties
                        "segmentation": packed(mask_of(shaken)),
                    }
                )
    truth = {
        "images": [{"id": image, "file_name": f"{image}.png", "height": SIDE, "width": SIDE} for image in
                   range(1, images + 1)],
        "annotations": annotations,
        "categories": [{"id": number, "name": f"kind {number}"} for number in categories],
    }  # fmt: skip
    return truth, results


def assert_equal_to_oracle(truth: dict, results: list[dict]) -> None:
    for kind in ("boxes", "masks"):
        ours = average_precision(truth, results, kind)[0]
        theirs = dict(zip(NAMES, by_pycocotools(truth, results, kind), strict=True))
        assert {name: -1 if value is None else value for name, value in ours.items()} == pytest.approx(theirs, abs=1e-9)


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.3, 1.0]), st.floats(0, 1))
@settings(max_examples=25, deadline=None)
def test_figures_equal_the_reference_on_random_cases(seed, crowds, found):
    assert_equal_to_oracle(*random_case(seed, crowds=crowds, found=found))


def test_without_detections_every_known_figure_is_zero():
    truth, _ = random_case(1, crowds=0.0, found=0.0)
    assert_equal_to_oracle(truth, [])
    assert average_precision(truth, [], "boxes")[0]["AP"] == 0.0


def test_without_objects_no_figure_is_known_whatever_was_found():
    truth, results = random_case(2, crowds=0.0, found=1.0)
    empty = {**truth, "annotations": []}
    assert_equal_to_oracle(empty, results)
    assert set(average_precision(empty, results, "masks")[0].values()) == {None}
    assert_equal_to_oracle(empty, [])


def test_crowds_forgive_what_is_found_inside_them():
    truth, results = random_case(3, crowds=0.0, found=1.0)
    crowd = {**truth["annotations"][0], "id": 1000, "iscrowd": 1, "bbox": [0, 0, SIDE, SIDE], "area": SIDE * SIDE,
             "segmentation": packed(np.ones((SIDE, SIDE), dtype=np.uint8))}  # fmt: skip
    image, category = crowd["image_id"], crowd["category_id"]
    stray = [{"image_id": image, "category_id": category, "bbox": [k, k, 9.0, 9.0], "score": 0.95,
              "segmentation": packed(mask_of([k, k, 9, 9]))} for k in range(0, 90, 10)]  # fmt: skip
    with_crowd = {**truth, "annotations": [*truth["annotations"], crowd]}
    assert_equal_to_oracle(with_crowd, results + stray)
    forgiven = average_precision(with_crowd, results + stray, "boxes")[0]["AP"]
    assert forgiven > average_precision(truth, results + stray, "boxes")[0]["AP"]


def test_more_than_a_hundred_detections_of_an_image_count_as_in_the_reference():
    truth, results = random_case(4, crowds=0.2, found=1.0, images=1)
    random = np.random.default_rng(0)
    flood = []
    for _ in range(150):
        box = rectangle(random)
        flood.append({"image_id": 1, "category_id": 3, "bbox": box, "score": float(random.random()),
                      "segmentation": packed(mask_of(box))})  # fmt: skip
    assert_equal_to_oracle(truth, results + flood)


def test_a_perfect_answer_scores_one_in_every_class_that_occurs():
    truth, _ = random_case(5, crowds=0.0, found=0.0)
    results = [{**entry, "score": 1.0} for entry in truth["annotations"]]
    for kind in ("boxes", "masks"):
        figures, classes = average_precision(truth, results, kind)
        assert figures["AP"] == pytest.approx(1.0)
        assert classes == {"kind 3": pytest.approx(1.0), "kind 7": pytest.approx(1.0), "kind 90": None}


def test_masks_are_small_or_large_by_their_own_area():
    thin = np.zeros((SIDE, SIDE), dtype=np.uint8)
    thin[np.arange(100), np.arange(100)] = 1  # a large box around few pixels
    entry = {"image_id": 1, "category_id": 3, "bbox": [0.0, 0.0, 100.0, 100.0], "segmentation": packed(thin)}
    truth, _ = random_case(6, crowds=0.0, found=0.0, images=1)
    truth["annotations"] = [{**entry, "id": 1, "area": 100.0, "iscrowd": 0}]
    figures, _ = average_precision(truth, [{**entry, "score": 0.9}], "masks")
    assert (figures["AP_small"], figures["AP_large"]) == (pytest.approx(1.0), None)


def drawn(truth: dict, results: list[dict], counts: np.ndarray) -> tuple[dict, list[dict]]:
    """Each image as often as `counts` says, under numbers of its own, with its objects and detections."""
    images, annotations, found = [], [], []
    for image, count in zip(truth["images"], counts, strict=True):
        for _ in range(count):
            number = len(images) + 1
            images.append({**image, "id": number})
            own = [entry for entry in truth["annotations"] if entry["image_id"] == image["id"]]
            annotations += [{**entry, "image_id": number} for entry in own]
            found += [{**entry, "image_id": number} for entry in results if entry["image_id"] == image["id"]]
    annotations = [{**entry, "id": number} for number, entry in enumerate(annotations, start=1)]
    return {**truth, "images": images, "annotations": annotations}, found


@pytest.mark.parametrize("kind", ["boxes", "masks"])
def test_images_that_are_drawn_several_times_count_as_copies_do_in_the_reference(kind):
    random = np.random.default_rng(0)
    for seed in range(4):
        truth, results = random_case(seed, crowds=0.2, found=0.9)
        apart = random.permutation(len(results)) * 1e-6  # the order of equal scores is nobody's
        results = [
            {**entry, "score": entry["score"] + float(extra)} for entry, extra in zip(results, apart, strict=True)
        ]
        matches = match_detections(truth, results, kind)
        draws = np.stack([np.ones(6, dtype=np.int64), *random.multinomial(6, [1 / 6] * 6, size=4)])
        expected = [by_pycocotools(*drawn(truth, results, counts), kind)[0] for counts in draws]
        mean = np.nanmean(category_precisions(matches, draws), axis=1)
        assert mean.tolist() == pytest.approx(expected, abs=1e-9)


def test_the_interval_holds_the_ap_and_shrinks_with_more_images():
    widths = []
    for images in (10, 40):
        truth, results = random_case(3, crowds=0.1, found=0.9, images=images)
        low, high = precision_interval(truth, results, "boxes")
        assert 0 <= low < average_precision(truth, results, "boxes")[0]["AP"] < high <= 1
        widths.append(high - low)
    assert widths[1] < 0.75 * widths[0]  # half, by the law of large numbers


def test_categories_of_one_image_each_are_not_taken_for_sure():
    categories = [{"id": number, "name": str(number)} for number in range(1, 9)]
    box = {"bbox": [4.0, 4.0, 20.0, 20.0], "area": 400.0, "iscrowd": 0, "segmentation": packed(mask_of([4, 4, 20, 20]))}
    truth = {"images": [{"id": n, "width": SIDE, "height": SIDE} for n in range(1, 21)], "categories": categories}
    found = [{**box, "image_id": number, "category_id": 1, "score": 0.9} for number in range(1, 21)]
    rare = [{**box, "image_id": number, "category_id": number} for number in range(2, 9)]
    truth["annotations"] = [{**each, "id": place} for place, each in enumerate([*found, *rare], start=1)]
    assert average_precision(truth, found, "boxes")[0]["AP"] == pytest.approx(1 / 8)
    low, high = precision_interval(truth, found, "boxes")
    assert 0 < low < 1 / 8 - 0.05 and 1 / 8 + 0.05 < high < 0.25


def test_intervals_hold_the_mean_ap_of_such_sets():
    """Of ten images; drawing them with replacement holds it in 72 %."""
    random = np.random.default_rng(0)
    found = []
    for _ in range(100):
        known = [each for each in (simulated_matches(random, images=10) for _ in range(8)) if each.objects.any()]
        precision = partial(mean_precisions, known)
        found.append((*precision(np.ones((1, 10), dtype=np.int64)), *jackknife(10, precision)))
    value, low, high = np.transpose(found)
    assert np.mean((low <= value.mean()) & (value.mean() <= high)) > 0.88


def simulated_matches(random, *, images):
    """Of one category: each image has a difficulty, that decides what is found, how well and with what score."""
    ease = random.beta(3, 2, images)
    objects = random.poisson(0.2, images)
    places = np.repeat(np.arange(images), objects)
    places = places[random.random(len(places)) < 0.5 + ease[places] / 2]
    overlap = 0.35 + 0.6 * random.beta(4 * ease[places] + 0.5, 2)
    false = np.repeat(np.arange(images), random.poisson(0.4 * (1.3 - ease)))
    scores = np.concatenate([0.4 * ease[places] + 0.5 * random.random(len(places)), 0.6 * random.random(len(false))])
    order = np.argsort(-scores)
    right = (np.concatenate([overlap, np.zeros(len(false))])[order] >= IOUS[:, None]).astype(np.int64)
    return CategoryMatches(np.concatenate([places, false])[order], right, 1 - right, objects)


def test_without_two_images_with_objects_there_is_no_interval():
    truth, results = random_case(0, crowds=0.0, found=1.0)
    one = truth["annotations"][0]["image_id"]
    alone = {**truth, "annotations": [entry for entry in truth["annotations"] if entry["image_id"] == one]}
    assert precision_interval(alone, results, "boxes") is None
    assert precision_interval({**truth, "annotations": []}, results, "masks") is None
    low, high = precision_interval(truth, [], "boxes")
    assert (low, high) == (0.0, 0.0)
