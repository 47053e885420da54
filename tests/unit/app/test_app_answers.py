"""The answers, each against something computed another way."""

import base64
from typing import Any, get_args

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from mixlab.analysis.isolation import isolation_maps
from mixlab.analysis.maps import MAPS
from mixlab.analysis.viewed_images import ViewedImages
from mixlab.app.jobs import Progress
from mixlab.app.laboratory import Laboratory
from mixlab.app.pictures import read_samples, seen_mask, seen_picture
from mixlab.app.questions import MapQuestion, MatrixQuestion, RowQuestion, RowsQuestion, encode_runs
from mixlab.backbones.backbone import Backbone
from mixlab.backbones.zoo import create_model
from mixlab.choices import SHOWN_FIT, Fit
from mixlab.errors import InputError
from mixlab.evaluation.target import Target
from mixlab.mixers import Mixing
from tests.unit.app.live_page import MODELS, ask, staged_laboratory, tiny_subjects

SUBJECTS: dict[str, Target] = {subject.label: subject for subject in tiny_subjects()}


def array(encoded: dict[str, Any]) -> NDArray[Any]:
    kind = {"uint8": np.uint8, "float32": "<f4"}[encoded["type"]]
    return np.frombuffer(base64.b64decode(encoded["data"]), dtype=kind).reshape(encoded["shape"])


def answer(address: str, kind: str, model: str, layer: int, more: dict[str, Any] | None = None) -> dict[str, Any]:
    reply = ask(address, {"kind": kind, "picture": "sample-2", "model": model, "layer": layer, **(more or {})})
    assert reply.status == 200, reply.body
    return reply.body["answer"]


def images(laboratory: Laboratory, backbone: Backbone) -> torch.Tensor:
    square = seen_picture(laboratory.samples[1].pixels, 64, SHOWN_FIT)
    return backbone.preprocess(torch.from_numpy(square).permute(2, 0, 1))


@torch.no_grad()
def mixing_of(laboratory: Laboratory, model: str, layer: int) -> Mixing:
    backbone = SUBJECTS[model].backbone
    return next(backbone.mixings(images(laboratory, backbone), layers=[layer]))[1]


def test_the_page_shows_models_what_rank_and_maps_show_them(laboratory: Laboratory) -> None:
    for fit in get_args(Fit):
        how = {"fit": fit, "multiple": 8 if fit == "whole" else None}
        seen = ViewedImages("shapes:size=128,n=4", size=64, with_masks=True, **how).together()
        for sample, image, mask in zip(laboratory.samples, seen.images, seen.masks, strict=True):
            np.testing.assert_array_equal(seen_picture(sample.pixels, 64, fit), image.permute(1, 2, 0))
            np.testing.assert_array_equal(seen_mask(sample.mask, 64, fit), mask)


def test_a_network_that_takes_squares_only_says_so_and_refuses_other_shapes() -> None:
    mixer = Target(label="mixer", backbone=create_model("timm/mixer_s16_224", img_size=64).eval())
    samples = read_samples(["shapes:size=128,n=1"], 1)
    own = Laboratory([mixer, SUBJECTS["dinovim_tiny"]], samples, cache_bytes=2**24)
    assert [card.multiple for card in own.models] == [None, 8]
    question = MapQuestion(kind="map", picture="sample-1", model="mixer", layer=0, map="norm", fit="square")
    assert own.answer(question, samples[0], Progress())["values"].shape == (1, 4, 4)
    with pytest.raises(ValueError, match="mixer is shown squares only; choose another fit"):
        own.answer(question.model_copy(update={"fit": "whole"}), samples[0], Progress())


@pytest.mark.parametrize("model", MODELS)
def test_every_map_that_a_model_offers_is_the_map_of_the_model(
    address: str, laboratory: Laboratory, model: str
) -> None:
    backbone = SUBJECTS[model].backbone
    card = next(card for card in laboratory.models if card.id == model)
    for name in card.maps:
        for layer in (0, card.num_layers - 1):
            expected = MAPS[name](backbone, images(laboratory, backbone), layer)[0].numpy()
            found = array(answer(address, "map", model, layer, {"map": name})["values"])
            np.testing.assert_allclose(found, expected.reshape(found.shape), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model", ["vit_tiny", "dinovim_tiny", "gatedconv_tiny"])
def test_the_row_of_a_patch_times_the_values_is_what_the_mixing_gives_it(
    address: str, laboratory: Laboratory, model: str
) -> None:
    mixing, head = mixing_of(laboratory, model, 1), 1
    found = answer(address, "row", model, 1, {"head": head, "x": 0.3, "y": 0.8})
    assert found["cell"] == [6, 2]  # of 8 x 8
    layout = SUBJECTS[model].backbone.layout
    patches = layout.patch_columns(64)
    assert found["token"] == patches[6 * 8 + 2]
    row = torch.from_numpy(array(found["values"]).flatten())
    mixed = mixing.apply()[0, head, found["token"]]
    from_extra = mixed - row @ mixing.values[0, head, patches]  # what class tokens and registers add
    extra = layout.positions(64)
    if not extra:
        torch.testing.assert_close(from_extra, torch.zeros_like(from_extra), rtol=1e-4, atol=1e-5)
        assert found["share_of_extra"] == pytest.approx(0, abs=1e-5)
    if model == "vit_tiny":  # rows of a softmax sum to one
        assert found["share_of_extra"] == pytest.approx(1 - float(row.sum()), abs=1e-5)
        weight = 1 - row.sum()
        torch.testing.assert_close(from_extra, weight * mixing.values[0, head, 0], rtol=1e-3, atol=1e-5)


def test_the_column_of_a_patch_is_what_the_rows_of_others_read_of_it(address: str) -> None:
    corner, other = {"x": 0.05, "y": 0.05}, {"x": 0.95, "y": 0.45}
    row = array(answer(address, "row", "vit_tiny", 2, {"head": 0, **corner})["values"])
    column = array(answer(address, "row", "vit_tiny", 2, {"head": 0, "sense": "column", **other})["values"])
    assert row[3, 7] == pytest.approx(column[0, 0], rel=1e-6)


def test_a_scan_from_the_left_hears_nothing_of_later_patches(address: str) -> None:
    found = answer(address, "row", "dinovim_tiny", 3, {"head": 0, "x": 0.5, "y": 0.5})
    values = array(found["values"]).flatten()
    assert "from the left" in found["head_name"]
    assert (values[4 * 8 + 5 :] == 0).all()
    assert (values[: 4 * 8 + 5] != 0).all()


@pytest.mark.parametrize("head", [None, 1])
@pytest.mark.parametrize("model", ["linearvit_tiny", "dinomambareg_tiny", "gatedconv_tiny"])
def test_the_shades_of_a_matrix_are_its_weights_over_four_powers_of_ten(
    address: str, laboratory: Laboratory, model: str, head: int | None
) -> None:
    found = answer(address, "matrix", model, 1, {"head": head})
    matrix = mixing_of(laboratory, model, 1).matrix()[0].abs()
    expected = (matrix.mean(0) if head is None else matrix[head]).detach().numpy()
    assert found["num_tokens"] == len(expected)
    assert found["high"] == pytest.approx(expected.max(), rel=1e-4)
    assert found["low"] == pytest.approx(max(expected.min(), 1e-4 * expected.max()), rel=1e-3)
    shown = found["low"] * (found["high"] / found["low"]) ** (array(found["shades"]) / 255)
    step = np.log(found["high"] / found["low"]) / 255
    assert np.abs(np.log(shown / expected.clip(min=found["low"]))).max() <= 0.51 * step + 1e-3


@pytest.mark.parametrize("scale", ["linear", "log"])
@pytest.mark.parametrize("sense", ["row", "column"])
@pytest.mark.parametrize("model", ["dinovim_tiny", "gatedconv_tiny"])
def test_the_rows_of_an_exported_view_are_those_of_single_patches(
    address: str, model: str, sense: str, scale: str
) -> None:
    rows = answer(address, "rows", model, 2, {"head": None, "sense": sense, "scale": scale})
    row = answer(address, "row", model, 2, {"head": None, "sense": sense, "x": 0.3, "y": 0.8})
    values, own = np.abs(array(row["values"])).flatten(), 6 * 8 + 2
    assert rows["grid"] == [8, 8]
    assert array(rows["own"])[own] == pytest.approx(row["share_of_self"], rel=1e-5)
    others = np.delete(values, own)
    low, high = (others.min(), others.max())
    if scale == "log":
        high = values.max()
        low = max(low, 1e-4 * high)
        values, ends = np.log(values.clip(min=low)), np.log([low, high])
    else:
        ends = np.array([low, high])
    expected = 255 * ((values - ends[0]) / (ends[1] - ends[0])).clip(0, 1)
    assert np.abs(array(rows["shades"])[own] - expected).max() <= 0.52
    assert (array(rows["low"])[own], array(rows["high"])[own]) == pytest.approx((low, high), rel=1e-4)


def test_a_model_without_a_mixing_matrix_shows_how_alike_its_features_are() -> None:
    backbone = create_model("timm/resnet10t").eval()
    laboratory = Laboratory(
        [Target(label="resnet", backbone=backbone)], read_samples(["shapes:size=128,n=1"], 1), cache_bytes=2**24
    )
    asked = {"picture": "sample-1", "model": "resnet", "layer": 3}
    picture = laboratory.samples[0]
    row = laboratory.answer(RowQuestion(kind="row", x=0.3, y=0.8, **asked), picture, lambda *_: None)
    matrix = laboratory.answer(MatrixQuestion(kind="matrix", **asked), picture, lambda *_: None)
    rows = laboratory.answer(RowsQuestion(kind="rows", **asked), picture, lambda *_: None)
    height, width = row["values"].shape
    down, right = row["cell"]
    assert row["values"][down, right] == pytest.approx(1, abs=1e-5)
    assert 0 <= row["values"].min() < row["values"].max() <= 1 + 1e-5
    assert matrix["num_tokens"] == height * width == len(rows["shades"])
    assert row["head_name"].startswith("cosine of features")


def test_a_card_counts_the_heads_of_each_layer_and_a_head_that_a_layer_lacks_is_refused() -> None:
    laboratory = staged_laboratory()
    [card, _] = laboratory.models
    assert card.num_heads == (2, 4)
    question = MatrixQuestion(kind="matrix", picture="sample-1", model=card.id, layer=1, head=3)
    last = laboratory.answer(question, laboratory.samples[0], lambda *_: None)
    assert last["head_name"].startswith("head 3 (0 to 3)")
    with pytest.raises(InputError, match="layer 0 of staged has no head 3; choose 0 to 1"):
        laboratory.answer(question.model_copy(update={"layer": 0}), laboratory.samples[0], lambda *_: None)


def test_the_first_component_is_the_one_of_a_plain_decomposition(address: str, laboratory: Laboratory) -> None:
    backbone = SUBJECTS["vit_tiny"].backbone
    with torch.no_grad():
        _, features = next(backbone.features(images(laboratory, backbone), layers=[2]))
    patches = features.patches[0].flatten(0, 1).double().numpy()
    centred = patches - patches.mean(0)
    left, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    found = answer(address, "pca", "vit_tiny", 2)
    first = array(found["first"]).flatten()
    assert abs(np.corrcoef(first, left[:, 0])[0, 1]) == pytest.approx(1, abs=1e-5)
    assert found["explained"][0] == pytest.approx(sizes[0] ** 2 / (sizes**2).sum(), rel=1e-4)
    inside = isolation_maps(features.patches)[0]
    np.testing.assert_array_equal(array(found["foreground"]), inside > inside.mean())


def test_scores_are_those_of_scikit_learn_at_every_layer(address: str, laboratory: Laboratory) -> None:
    mask = seen_mask(laboratory.samples[1].mask, 256, SHOWN_FIT)
    labels = mask.reshape(8, 32, 8, 32).mean((1, 3)) >= 0.5
    runs = encode_runs(mask)
    sweep = answer(address, "sweep", "dinovim_tiny", 0, {"mask": runs})["auc"]
    assert len(sweep) == 5
    for layer in range(5):
        values = array(answer(address, "map", "dinovim_tiny", layer)["values"])[0]
        raw = roc_auc_score(labels.flatten(), values.flatten())
        found = answer(address, "score", "dinovim_tiny", layer, {"mask": runs})
        assert found["raw_auc"] == pytest.approx(raw, abs=1e-9)
        assert found["auc"] == sweep[layer] == pytest.approx(max(raw, 1 - raw), abs=1e-9)
        across, up = array(found["roc"])
        assert np.trapezoid(up, across) == pytest.approx(raw, abs=1e-6)


def test_a_head_of_the_other_direction_is_scored_by_the_map_that_both_share(
    address: str, laboratory: Laboratory
) -> None:
    runs = encode_runs(seen_mask(laboratory.samples[1].mask, 256, SHOWN_FIT))
    shape = answer(address, "map", "dinovim_tiny", 2, {"map": "mixing_rows"})["values"]["shape"]
    both = mixing_of(laboratory, "dinovim_tiny", 2).num_heads
    assert both == 2 * shape[0]
    asked = {"mask": runs, "map": "mixing_rows"}
    one, other = (
        answer(address, "score", "dinovim_tiny", 2, asked | {"part": part})["auc"] for part in (1, 1 + shape[0])
    )
    last = answer(address, "score", "dinovim_tiny", 2, asked | {"part": shape[0] - 1})["auc"]
    assert one == other and (shape[0] == 2 or one != last)


def test_a_mask_without_background_has_no_score(address: str) -> None:
    found = answer(address, "score", "vit_tiny", 0, {"mask": [[1, 256 * 256]]})
    assert found == {"auc": None, "raw_auc": None, "centre_prior": None, "roc": None}


def test_ignored_pixels_do_not_count(address: str, laboratory: Laboratory) -> None:
    half = np.zeros((256, 256), dtype=np.uint8)
    half[:128] = 255
    half[128:, :128] = 1
    values = array(answer(address, "map", "vit_tiny", 1)["values"])[0]
    labels = np.zeros((4, 8))
    labels[:, :4] = 1
    found = answer(address, "score", "vit_tiny", 1, {"mask": encode_runs(half)})
    assert found["raw_auc"] == pytest.approx(roc_auc_score(labels.flatten(), values[4:].flatten()), abs=1e-9)
