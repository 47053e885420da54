"""Ranks of whole backbones against a plain SVD of their matrices, and the numbers made of them."""

import json

import numpy as np
import pytest
import scipy.stats
import torch

import mixlab
from mixlab.analysis.blocks import MEASURES, energy_left, in_float64
from mixlab.analysis.layer_ranks import BLOCK_COLUMNS, RankSettings, choose_heads, layer_ranks
from mixlab.analysis.rank import block_grid, measure_ranks, summarise_ranks
from mixlab.analysis.viewed_images import ViewedImages
from mixlab.evaluation.target import Target
from mixlab.run import Measurement
from mixlab.run.protocols import LowRankProtocol, RankProtocol


def tiny(name: str, **fields: object) -> mixlab.Backbone:
    torch.manual_seed(0)
    size = {"kernel": 3} if name.startswith("gatedconv") else {"head_dim": 16}
    return mixlab.create_model(name, dim=64, depth=2, image=64, patch=8, **size, **fields).eval()


def blocks_of(measured: list, name: str) -> np.ndarray:
    return np.concatenate([layer.blocks[:, BLOCK_COLUMNS.index(name)] for layer in measured])


@pytest.mark.parametrize("name", ["vit_tiny", "linearvit_tiny", "dinovim_tiny", "dinomambareg_tiny", "gatedconv_tiny"])
def test_measured_ranks_are_those_of_a_plain_svd_of_the_matrix(name: str) -> None:
    model = tiny(name)
    images = torch.randn(2, 3, 64, 64)
    measured = list(layer_ranks(model, images, settings=RankSettings(chunk=20, max_heads=3, whole=True)))
    assert [(ranks.image, ranks.layer) for ranks in measured] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    with torch.no_grad():
        for index, image in enumerate(images):
            for layer, mixing in model.mixings(image[None]):
                ranks = measured[2 * index + layer]
                for place, head in enumerate(ranks.heads):
                    matrix = in_float64(mixing).matrix(slice(head, head + 1))[0, 0].numpy()
                    assert ranks.whole["numerical"][place] == np.linalg.matrix_rank(matrix)
                    for row in ranks.blocks[ranks.blocks[:, BLOCK_COLUMNS.index("head")] == head]:
                        block = dict(zip(BLOCK_COLUMNS, row, strict=True))
                        i, j = int(block["row"]) * 20, int(block["column"]) * 20
                        singular = np.linalg.svd(matrix[i : i + 20, j : j + 20], compute_uv=False)
                        assert (block["height"], block["width"]) == matrix[i : i + 20, j : j + 20].shape
                        tolerance = singular[0] * 20 * np.finfo(np.float64).eps
                        fewest, most = ((singular > share * tolerance).sum() for share in (1.5, 0.5))
                        assert fewest <= block["numerical"] <= most
                        assert block["practical"] == (singular > 1e-3 * singular[0]).sum()
                        assert block["stable"] == pytest.approx((singular**2).sum() / max(singular[0] ** 2, 1e-300))
                        assert block["numerical"] <= block["bound"]


def test_the_two_methods_agree_on_every_figure() -> None:
    model, image = tiny("dinovim_tiny", state=8), torch.randn(1, 3, 64, 64)
    tables = [
        np.concatenate([layer.blocks for layer in layer_ranks(model, image, settings=chosen)])
        for chosen in (
            RankSettings(chunk=16, method="factors", tolerance=1e-12),
            RankSettings(chunk=16, method="svd", tolerance=1e-12),
        )
    ]
    np.testing.assert_allclose(tables[0], tables[1], rtol=1e-6, atol=1e-9)


def test_trained_scans_keep_within_the_bound_and_their_masks_at_rank_one() -> None:
    model = tiny("dinovim_tiny", state=8).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    images, targets = torch.randn(8, 3, 64, 64), torch.randn(8, 64)
    before = model.layers[0].mixer.A_log.detach().clone()
    losses = []
    for _ in range(5):
        loss = (model(images) - targets).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert not torch.equal(before, model.layers[0].mixer.A_log)
    measured = list(layer_ranks(model.eval(), images[:1], settings=RankSettings(chunk=22, method="svd")))
    off = blocks_of(measured, "on_diagonal") == 0
    assert (blocks_of(measured, "numerical")[off] <= 8).all()
    assert (blocks_of(measured, "mask")[off] == 1).all()
    assert (blocks_of(measured, "product")[off] <= 8).all()


def test_blocks_that_decay_to_nothing_are_counted_and_have_rank_zero() -> None:
    model, image = tiny("dinovim_tiny", state=8), torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        for layer in model.layers:
            layer.mixer.dt_bias.fill_(40.0)  # softplus: dt = 40, A at least 1: exp(-40) a step
    measured = list(layer_ranks(model, image, settings=RankSettings(chunk=11)))
    result, _ = summarise_ranks(measured, model.layout)
    assert result["overall"]["scan"]["num_underflowed"] > 0
    assert result["overall"]["off_diagonal"]["num_zero"] > 0
    assert result["overall"]["off_diagonal"]["numerical"]["min"] >= 1, "what is unknown is left out of means"
    assert result["overall"]["scan"]["mask"]["min"] == result["overall"]["scan"]["mask"]["max"] == 1
    assert result["overall"]["bound_holds"]


def test_a_summary_leaves_ragged_blocks_out_of_averages_and_counts_them() -> None:
    model = tiny("dinovim_tiny", state=8)
    measured = list(layer_ranks(model, torch.randn(3, 3, 64, 64), settings=RankSettings(chunk=32)))
    result, arrays = summarise_ranks(measured, model.layout)
    assert (result["num_tokens"], result["chunk"], result["ragged_chunk"], result["num_images"]) == (66, 32, 2, 3)
    assert result["overall"]["diagonal"]["numerical"]["mean"] == 32
    assert result["overall"]["off_diagonal"]["num_blocks"] == 3 * 2 * 16  # images, layers, heads of both directions
    assert result["overall"]["num_ragged"] == 3 * 2 * 16 * 3
    table = arrays["blocks"]
    assert table.shape[1] == len(BLOCK_COLUMNS)
    rows = table[(table[:, BLOCK_COLUMNS.index("ragged")] == 0) & (table[:, BLOCK_COLUMNS.index("on_diagonal")] == 0)]
    effective = rows[:, BLOCK_COLUMNS.index("effective")]
    per_image = [effective[rows[:, 0] == image].mean() for image in range(3)]
    figure = result["overall"]["off_diagonal"]["effective"]
    assert figure["mean"] == pytest.approx(effective.mean())
    assert figure["std_over_images"] == pytest.approx(np.std(per_image, ddof=1))
    assert arrays["off_diagonal_spectrum"].shape == (2, 16, 32)
    assert (arrays["off_diagonal_spectrum"][..., 8:] < 1e-12).all()


def test_a_result_has_every_number_as_a_measurement_with_its_protocol() -> None:
    target = Target(label="vim", backbone=tiny("dinovim_tiny", state=8), training="dino", seed=3)
    images = ViewedImages("shapes:n=9", size=64, num_images=3)
    result = measure_ranks(target, images, layers=[1], heads=[0, -1], settings=RankSettings(chunk=20, skip=False))
    records = json.loads(json.dumps(result.to_json(), allow_nan=False))["measurements"]
    every = [Measurement.from_json(record) for record in records]
    found = {(m.metric, m["definition"]): m for m in every}
    assert len({m.identity for m in every}) == len(records) == 2 + 2 * 3 * 5 + 2 * 2, "ranks, and what 1 and N leave"
    overall = result.summary["overall"]
    for name in MEASURES:
        mean, part = found["off_diagonal_rank", name], overall["off_diagonal"][name]
        assert mean.value == part["mean"]
        half = scipy.stats.t.ppf(0.975, 2) * part["std_over_images"] / 3**0.5  # three images
        assert (mean.low, mean.high) == pytest.approx((mean.value - half, mean.value + half))
        assert found["smallest_off_diagonal_rank", name].value == part["min"] <= mean.value
        assert found["off_diagonal_rank_bound", name].value == 8
    assert found["mask_rank", None].value == found["rank_bound_holds", None].value == 1
    for m in (m for m in every if isinstance(m.protocol, RankProtocol)):
        assert (m.n, m.seed, m.subject) == (3, 3, target.subject)
        choices = ("data", "num_images", "image", "fit", "crop_share", "chunk", "layers", "heads", "skip", "method")
        expected = ["shapes:n=9", 3, 64, "crop", 0.875, 20, (1,), (0, 15), False, "factors"]
        assert [m[name] for name in choices] == expected


def test_the_grid_of_blocks_is_the_mean_over_images_and_heads() -> None:
    row = dict.fromkeys(BLOCK_COLUMNS, 0.0)
    places = [(image, head, r, c) for image in (0, 1) for head in (0, 4) for r in range(2) for c in range(r + 1)]
    rows = [
        row | {"image": image, "layer": 2, "head": head, "row": r, "column": c, "stable": image + 10 * head + 100 * r}
        for image, head, r, c in places
    ]
    table = np.array([list(row.values()) for row in rows])
    np.testing.assert_array_equal(block_grid(table, 2, 4, "stable"), [[40.5, np.nan], [140.5, 140.5]])
    np.testing.assert_array_equal(block_grid(table, 2, None, "stable"), [[20.5, np.nan], [120.5, 120.5]])
    np.testing.assert_array_equal(block_grid(table, 2, 7, "stable"), block_grid(table, 2, None, "stable"))
    assert block_grid(table, 3) is None


def test_timm_vits_with_and_without_registers_are_measured() -> None:
    for name in ("timm/vit_tiny_patch16_224", "timm/vit_small_patch14_reg4_dinov2"):
        model = mixlab.create_model(name).eval()
        size = 16 * 4 if "patch16" in name else 14 * 4
        layer = next(layer_ranks(model, torch.randn(1, 3, size, size), layers=[0], heads=[1]))
        assert (layer.mixer, layer.heads, layer.grid) == ("SoftmaxMixing", [1], (4, 4))
        assert layer.length == 16 + (1 if "patch16" in name else 5)


def test_stages_of_mambaout_are_measured_each_on_its_own_grid() -> None:
    model = mixlab.create_model("mambaout_femto").eval()
    measured = list(layer_ranks(model, torch.randn(1, 3, 64, 64), settings=RankSettings(max_heads=3)))
    assert [(layer.grid, layer.length, layer.mixer) for layer in measured] == [
        ((16, 16), 256, "ConvMixing"),
        ((8, 8), 64, "ConvMixing"),
        ((4, 4), 16, "ConvMixing"),
        ((2, 2), 4, "ConvMixing"),
    ]
    result, arrays = summarise_ranks(measured, model.layout)
    assert [entry["num_tokens"] for entry in result["layers"]] == [256, 64, 16, 4]
    assert result["overall"]["bound_holds"]
    assert arrays["off_diagonal_spectrum"].shape == (4, 3, 128)


def test_a_backbone_without_mixing_matrices_says_so() -> None:
    model = mixlab.create_model("timm/convnext_atto").eval()
    with pytest.raises(ValueError, match="convnext_atto has no mixing matrices"):
        next(layer_ranks(model, torch.randn(1, 3, 64, 64)))


def test_threads_are_left_as_they_were_found() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        next(layer_ranks(tiny("vit_tiny"), torch.randn(1, 3, 64, 64), layers=[0]))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_wrong_chunks_and_heads_are_named() -> None:
    with pytest.raises(ValueError, match="chunk of 70 does not fit 65 tokens"):
        next(layer_ranks(tiny("vit_tiny"), torch.randn(1, 3, 64, 64), settings=RankSettings(chunk=70)))
    with pytest.raises(ValueError, match="no head 9 among 4; choose -4 to 3"):
        choose_heads(4, [9], 64)
    assert choose_heads(4, [-1, 0], 64) == [0, 3]
    assert choose_heads(1000, None, 4) == [0, 250, 500, 750]


def test_what_a_low_rank_leaves_of_softmax_is_what_a_plain_decomposition_says() -> None:
    """By NumPy, block by block; and no linear attention of that width comes closer to the matrix."""
    target = Target(label="vit", backbone=tiny("vit_tiny"), training="dino", seed=0)
    images = ViewedImages("shapes:n=4", size=64, num_images=2)
    result = measure_ranks(target, images, layers=[1], settings=RankSettings(chunk=20, whole=True, rank=4))
    pixels = target.backbone.preprocess(images.together().images)
    left: dict[str, list[float]] = {"off_diagonal": [], "whole": []}
    for image in pixels:
        ((_, mixing),) = target.backbone.mixings(image[None], layers=[1])
        for matrix in in_float64(mixing).matrix()[0].numpy():
            blocks = [matrix[r : r + 20, c : c + 20] for r in (0, 20, 40) for c in (0, 20, 40) if r != c]
            for part, parts in (("off_diagonal", blocks), ("whole", [matrix])):
                for block in parts:
                    u, s, v = np.linalg.svd(block)
                    best = (u[:, :4] * s[:4]) @ v[:4]
                    left[part].append(float(((block - best) ** 2).sum() / (block**2).sum()))
    residuals = [m for m in result.measurements if isinstance(m.protocol, LowRankProtocol)]
    found = {(m.metric, m["part"], m["rank"]): m for m in residuals}
    assert len(found) == 2 * 2 * 2
    for part, values in left.items():
        assert found["low_rank_residual", part, 4].value == pytest.approx(np.mean(values), rel=1e-6)
        assert found["largest_low_rank_residual", part, 4].value == pytest.approx(max(values), rel=1e-6)
        assert found["low_rank_residual", part, 1].value > found["low_rank_residual", part, 4].value > 0
        assert found["low_rank_residual", part, 4].low is not None, "an interval over images"
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.rand(len(matrix), 4, generator=generator).double().numpy() for _ in range(2))
    linear = q @ k.T / (q @ k.sum(0))[:, None]
    assert ((matrix - linear) ** 2).sum() / (matrix**2).sum() > left["whole"][-1]


def test_the_rank_of_the_approximation_is_the_width_of_queries_unless_asked_for() -> None:
    assert energy_left(torch.tensor([3.0, 1.0, 0.0]), 1) == pytest.approx(0.1)
    assert energy_left(torch.zeros(3), 1) == 0
    for name, fields, width in (("vit_tiny", {}, 16), ("dinovim_tiny", {"state": 8}, 8)):
        result = measure_ranks(tiny(name, **fields), "shapes:n=1", layers=[0], settings=RankSettings(chunk=20))
        assert result.summary["rank"] == width
    assert result.summary["overall"]["off_diagonal"]["left_by_rank"]["max"] < 1e-12, "a scan's blocks have rank N"


def test_what_a_rank_leaves_is_measured_of_larger_blocks_alone() -> None:
    """Of blocks of N tokens a side or fewer rank N leaves nothing, whatever they hold."""
    model, whole = tiny("vit_tiny"), {"whole": True, "rank": 16}
    for chunk, has_blocks in ((17, True), (16, False), (8, False)):
        result = measure_ranks(model, "shapes:n=2", layers=[0], settings=RankSettings(chunk=chunk, **whole))
        found = {(m["part"], m["rank"]) for m in result.measurements if isinstance(m.protocol, LowRankProtocol)}
        assert found == {("off_diagonal", 1), ("whole", 1), ("whole", 16), *([("off_diagonal", 16)] * has_blocks)}
        assert (result.summary["overall"]["off_diagonal"]["left_by_rank"]["mean"] is not None) == has_blocks
    result = measure_ranks(model, "shapes:n=1", layers=[0], settings=RankSettings(chunk=17, whole=True, rank=65))
    assert {m["rank"] for m in result.measurements if isinstance(m.protocol, LowRankProtocol)} == {1}, "of 65 tokens"


def test_weights_that_are_nan_have_no_rank() -> None:
    model = mixlab.create_model("vit_tiny", dim=32, depth=1, patch=8, image=32, head_dim=16).eval()
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    with pytest.raises(ValueError, match="the mixing holds NaN, which has no rank; check the weights"):
        measure_ranks(model, "shapes:n=1")
