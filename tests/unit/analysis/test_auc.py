"""Studies of Binary-AUC: scores against scikit-learn, baselines beside them, comparisons, and measurements."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

import mixlab
from mixlab.analysis.auc import STUDIES, run_studies, run_study, score_maps
from mixlab.analysis.binary_auc import centre_prior
from mixlab.analysis.foreground import split_mask
from mixlab.analysis.map_scores import FALSE_POSITIVE_RATES, AucResult, MapScorer, either_sign, true_positive_rates
from mixlab.analysis.maps import MAPS
from mixlab.analysis.score_differences import ScoreDifference
from mixlab.analysis.viewed_images import ViewedImages
from mixlab.data.decode import UnreadableImage
from mixlab.data.masks import MaskedImage, MaskSource
from mixlab.evaluation.target import Target
from mixlab.run import Measurement
from mixlab.statistics import Estimate, bootstrap_difference, bootstrap_mean
from tests.unit.analysis.test_views import SEEN, SHAPES, Photographs, whole


def tiny(name: str, seed: int = 0, **fields: object) -> mixlab.Backbone:
    torch.manual_seed(seed)
    size = {} if name.startswith("gatedconv") else {"head_dim": 16}
    return mixlab.create_model(name, **({"dim": 64, "depth": 2, "image": 64, "patch": 8} | size | fields)).eval()


def shapes(num: int = 12, batch: int = 5) -> ViewedImages:
    return ViewedImages(f"shapes:n={num}", size=64, fit="squash", batch=batch)


def target(label: str, name: str = "vit_tiny", training: str = "dino", seed: int = 0, **fields: object) -> Target:
    return Target(label=label, backbone=tiny(name, seed, **fields), training=training, seed=seed)


def pairs(result: AucResult) -> list[tuple[str, str]]:
    return [(found.first, found.second) for found in result.comparisons]


@pytest.mark.parametrize("name", ["isolation", "mixing_mean"])
def test_images_in_their_own_shape_are_scored_as_each_of_them_alone(name: str) -> None:
    images, one = whole(), target("vit", dim=32)
    expected: list[list[float]] = []
    for number, (width, height) in enumerate(SHAPES):
        item = Photographs().load(number)
        high, wide = SEEN[number]
        pixels = item.image.permute(1, 2, 0).numpy()
        pixels = np.array(Image.fromarray(pixels).resize((wide, high), Image.Resampling.BICUBIC))
        assert item.mask.shape == (height, width)
        mask = np.asarray(Image.fromarray(item.mask.numpy()).resize((wide, high), Image.Resampling.NEAREST))
        grid = (high // 8, wide // 8)
        inside = mask.reshape(grid[0], 8, grid[1], 8).mean((1, 3)) >= 0.5  # without a pixel that is ignored
        prepared = one.backbone.preprocess(torch.from_numpy(pixels).permute(2, 0, 1))
        found = MAPS[name](one.backbone, prepared)[0]
        down, across = (np.linspace(-1 + 1 / n, 1 - 1 / n, n) for n in grid)
        blob = np.exp(-2 * (down[:, None] ** 2 + across**2)).round(12)  # whose equal distances are equal
        expected.append([roc_auc_score(inside.ravel(), values.ravel()) for values in (found.detach().numpy(), blob)])
    scores = MapScorer(images).scores(one, name)
    np.testing.assert_allclose(scores.raw[:, 0, 0], [auc for auc, _ in expected], atol=1e-6)
    np.testing.assert_allclose(scores.prior[:, 0], [auc for _, auc in expected], atol=1e-6)
    result = score_maps([one], images, map_name=name, twins=False)
    best = np.maximum(expected, 1 - np.array(expected))[:, 0]
    [measured] = [found for found in result.measurements if found.metric == "binary_auc" and found["map"] == name]
    assert (measured.value, measured.n) == (pytest.approx(best.mean(), abs=1e-6), len(SHAPES))
    assert (measured["fit"], measured["multiple"], measured["image"]) == ("whole", 8, 64)
    assert measured.low == pytest.approx(bootstrap_mean(best).low, abs=1e-6)


def test_scores_are_those_of_scikit_learn_on_the_same_maps() -> None:
    images, one = shapes(), target("vit")
    scores = MapScorer(images).scores(one)
    expected, priors = [], []
    for batch in images:
        maps = MAPS["cosine"](one.backbone, one.backbone.preprocess(batch.images))
        foreground, background = split_mask(batch.masks, (8, 8), ignore=255)
        for values, inside, outside in zip(maps, foreground, background, strict=True):
            counted = inside | outside
            defined = inside.any() and outside.any()
            for found, picture in ((expected, values), (priors, centre_prior(8, 8))):
                found.append(roc_auc_score(inside[counted], picture[counted]) if defined else np.nan)
    assert scores.raw.shape == (12, 1, 1)
    np.testing.assert_allclose(scores.raw[:, 0, 0].numpy(), expected, atol=1e-9)
    np.testing.assert_allclose(scores.prior[:, 0].numpy(), priors, atol=1e-9)


def test_differences_to_both_baselines_come_out_of_the_scores_of_images() -> None:
    found = {m.metric: m for m in score_maps([target("vit")], shapes(), map_name="isolation").measurements}
    scores = found["binary_auc"].by_image
    for baseline, gap in (("centre_prior", "above_centre_prior"), ("untrained", "above_untrained")):
        again = bootstrap_difference(scores, found[baseline].by_image)
        expected = (found[gap].value, found[gap].low, found[gap].high)
        assert (again.value, again.low, again.high) == pytest.approx(expected, abs=1e-9)


def test_roc_curves_read_at_even_rates_enclose_the_area() -> None:
    maps = torch.rand(6, 16, 16, generator=torch.Generator().manual_seed(0))
    masks = (torch.rand(6, 16, 16, generator=torch.Generator().manual_seed(1)) > 0.6).to(torch.uint8)
    rates = true_positive_rates(maps, masks)
    area = torch.trapezoid(rates, FALSE_POSITIVE_RATES)
    expected = [roc_auc_score(mask.flatten(), values.flatten()) for values, mask in zip(maps, masks, strict=True)]
    np.testing.assert_allclose(area.numpy(), expected, atol=0.02)
    assert (rates.diff(dim=1) >= 0).all()
    assert (rates[:, -1] == 1).all()


def test_rows_carry_the_centre_prior_and_the_untrained_twin() -> None:
    one, untrained = target("trained", seed=5), target("fresh", "dinovim_tiny", training="untrained")
    result = score_maps([one, untrained], shapes())
    first, second = (row.scores for row in result.rows)
    assert "untrained" not in second
    twin = MapScorer(shapes()).scores(Target(label="twin", backbone=one.backbone.twin(5)))
    assert first["untrained"].value == pytest.approx(float(either_sign(twin.raw).nanmean()))
    assert first["above_untrained"].value == pytest.approx(first["auc"].value - first["untrained"].value)
    assert first["above_centre_prior"].value == pytest.approx(first["auc"].value - first["centre_prior"].value)
    assert first["auc"].low <= first["auc"].value <= first["auc"].high
    comparison = result.comparisons[0]
    assert comparison.difference.value == pytest.approx(first["auc"].value - second["auc"].value)
    area = np.trapezoid(result.roc["trained"], FALSE_POSITIVE_RATES)
    assert area == pytest.approx(first["raw_auc"].value, abs=0.03)


def test_networks_are_compared_by_every_map_that_both_have_each_named_with_n() -> None:
    networks = [target("vit"), target("conv", "gatedconv_tiny")]
    result = score_maps(networks, ViewedImages(Broken(), size=64), twins=False)
    by = [(gap.first, gap.map, gap.second, gap.second_map) for gap in result.comparisons]
    assert by == [
        ("vit", "cosine", "conv", "pooled_cosine"), ("vit", "norm", "conv", "norm"),
        ("vit", "isolation", "conv", "isolation"),
    ]  # fmt: skip
    rows = {(row.subject.label, row.protocol.map): row.scores["auc"] for row in (*result.rows, *result.beside)}
    for gap in result.comparisons:
        scores = [rows["vit", gap.map].by_image, rows["conv", gap.second_map].by_image]
        defined = ~np.isnan(scores[0] - scores[1])
        assert gap.difference.value == pytest.approx((scores[0] - scores[1])[defined].mean())
        assert gap.to_json()["n"] == gap.difference.n == defined.sum() == 7
    [alone] = score_maps(networks, shapes(4), map_name="norm", twins=False).comparisons
    assert (alone.map, alone.second_map) == ("norm", "norm")


def test_a_difference_says_by_its_words_which_score_is_higher() -> None:
    gap = ScoreDifference("vit", "net", "cosine", "pooled_cosine", Estimate(-0.18, -0.254, -0.098, 17, 3))
    assert str(gap) == "cosine of vit minus pooled_cosine of net: -0.180 [-0.254, -0.098], n = 17"
    assert ScoreDifference.from_json(gap.to_json()) == gap
    level = replace(gap, difference=Estimate(0.01, -0.1, 0.1, 17))
    assert str(level).endswith(": +0.010 [-0.100, +0.100], n = 17, not significant")
    nothing = replace(gap, difference=Estimate(math.nan, None, None, 0, 20))
    assert str(ScoreDifference.from_json(nothing.to_json())).endswith("of net: -, n = 0")
    older = {"better": "vit", "worse": "net", "difference": gap.to_json()["difference"]}
    assert str(ScoreDifference.from_json(older)) == "vit minus net: -0.180 [-0.254, -0.098], n = 17"


def test_twins_have_the_seed_of_their_run_and_measurements_say_which() -> None:
    seeded, unknown = target("vit", seed=1), replace(target("vit"), seed=None)
    scorer = MapScorer(shapes(4), seed=5)
    alone = MapScorer(shapes(4)).scores(Target(label="twin", backbone=seeded.backbone.twin(1)))
    twin = scorer.twin_scores(seeded)
    assert twin is not None
    torch.testing.assert_close(twin.raw, alone.raw)
    assert (scorer.twin_seed(seeded), scorer.twin_seed(unknown)) == (1, 5)
    seeds = {found.metric: found["twin_seed"] for found in run_study("model", [seeded], scorer).measurements}
    assert {seeds["untrained"], seeds["above_untrained"]} == {1}
    assert {seeds["binary_auc"], seeds["above_centre_prior"]} == {None}


def test_by_layer_scores_every_layer_in_one_pass() -> None:
    one = target("vit", depth=4)
    scorer = MapScorer(shapes(), twins=False)
    result = run_study("layer", [one], scorer)
    assert [row.protocol.layer for row in result.rows] == [0, 1, 2, 3]
    means = [row.scores["raw_auc"].value for row in result.rows]
    assert means[-1] == pytest.approx(float(scorer.scores(one).raw.nanmean()))
    assert result.arrays["vit"].shape == (12, 4, 1)
    found = result.correlations["vit"]
    assert found.spearman == pytest.approx(spearmanr(means, range(4)).statistic)
    assert (found.low, found.high) == (None, None), "layers are no sample"


def test_by_head_chooses_on_other_images_than_it_compares_on() -> None:
    result = run_study("head", [target("vit", depth=4)], MapScorer(shapes(20), twins=False))
    assert [(row.protocol.layer, row.protocol.index) for row in result.rows] == [
        (layer, head) for layer in (2, 3) for head in range(4)
    ]
    assert result.rows[0].protocol.map == "mixing_rows"
    auc = either_sign(torch.from_numpy(result.arrays["vit"])[:, 1])
    best, worst = int(auc[::2].nanmean(0).argmax()), int(auc[::2].nanmean(0).argmin())
    comparison = result.comparisons[1]
    assert comparison.first == f"vit, layer 3, head {best}"
    expected = float((auc[1::2, best] - auc[1::2, worst]).nanmean())
    assert comparison.difference.value == pytest.approx(expected)


def test_by_register_compares_the_middle_with_both_ends_and_with_probes() -> None:
    accuracies = (0.1, 0.3, 0.5, 0.6, 0.4, 0.2)
    probed = replace(target("reg", "dinomambareg_tiny", num_registers=6), register_accuracies=accuracies)
    result = score_maps([probed], shapes(), study="register")
    raw = torch.from_numpy(result.arrays["reg"])[:, 0]
    for comparison, end in zip(result.comparisons, (raw[:, :2], raw[:, 4:]), strict=True):
        gap = float((raw[:, 2:4].mean(1) - end.mean(1)).nanmean())
        assert comparison.difference.value == pytest.approx(gap)
    places = [f"{what}_over_{end}" for what in ("middle_registers", "untrained_middle") for end in ("first", "last")]
    assert [finding.metric for finding in result.findings] == [*places, "register_auc_follows_probe"]
    assert result.correlations["reg"].spearman == pytest.approx(spearmanr(raw.nanmean(0), accuracies).statistic)


def test_by_size_training_and_registers_find_their_pairs() -> None:
    small = [target(f"small-s{seed}", seed=seed) for seed in (0, 1)]
    large = [target(f"large-s{seed}", seed=seed, dim=128) for seed in (0, 1)]
    taught = target("taught", training="supervised", seed=2)
    plain, with_registers = target("vim", "dinovim_tiny"), target("reg", "dinomambareg_tiny", num_registers=3)
    scorer = MapScorer(shapes(4), twins=False)
    assert pairs(run_study("size", [*large, *small, plain], scorer)) == [
        ("large-s0", "small-s0"), ("large-s1", "small-s1")
    ]  # fmt: skip
    assert pairs(run_study("training", [taught, small[0]], scorer)) == [("small-s0", "taught")]
    assert pairs(run_study("registers", [plain, with_registers, small[0]], scorer)) == [("reg", "vim")]


def test_a_study_without_its_pairs_says_what_it_needs() -> None:
    scorer = MapScorer(shapes(4), twins=False)
    with pytest.raises(ValueError, match="the study by training needs one architecture trained in two ways"):
        run_study("training", [target("a")], scorer)
    with pytest.raises(ValueError, match="there is no study 'sizes'; did you mean size"):
        run_study("sizes", [target("a")], scorer)
    with pytest.raises(ValueError, match="different labels"):
        run_study("model", [target("a"), target("a")], scorer)


def test_the_study_by_map_scores_every_kind_that_is_one_picture_as_the_kind_alone() -> None:
    networks = {"vit": target("vit"), "conv": target("conv", "gatedconv_tiny")}
    scorer = MapScorer(shapes(6))
    result = run_study("map", list(networks.values()), scorer)
    kinds = {label: [r.protocol.map for r in result.rows if r.subject.label == label] for label in networks}
    assert kinds["vit"] == ["cosine", "dot", "pooled_cosine", "norm", "pca", "cut", "isolation", "mixing_mean"]
    assert kinds["conv"] == ["dot", "pooled_cosine", "norm", "pca", "cut", "isolation"]
    for row in result.rows:
        alone = run_study("model", [networks[row.subject.label]], scorer, row.protocol.map).rows[0]
        assert row == alone
    assert result.arrays["vit.norm"].shape == (6, 1, 1)
    scored = [(m.subject.label, m["map"]) for m in result.measurements if m.metric == "binary_auc"]
    assert scored == [(label, kind) for label in networks for kind in kinds[label]], "each by its own protocol"
    with pytest.raises(ValueError, match="scores every kind; leave --map norm out"):
        run_study("map", [networks["vit"]], scorer, "norm")


@pytest.mark.parametrize("name", sorted(set(STUDIES) - {"size", "training", "registers"}))
def test_results_are_json_and_their_measurements_are_typed(name: str) -> None:
    one = target("vim", "dinovim_tiny") if name == "token" else target("reg", "dinomambareg_tiny", num_registers=3)
    result = score_maps([one], shapes(6), study=name)
    again = json.loads(json.dumps(result.to_json(), allow_nan=False))
    measured = [Measurement.from_json(record) for record in again["measurements"]]
    assert measured == result.measurements
    assert len({found.identity for found in measured}) == len(measured) > 0
    for found in measured:
        assert (found["data"], found["image"], found["fit"], found.seed) == ("shapes:n=6", 64, "squash", 0)
        assert found.subject == one.subject


def test_correlations_with_probes_are_of_a_group_of_networks() -> None:
    networks = [replace(target(f"vit-s{seed}", seed=seed), probe_accuracy=0.5 + seed / 10) for seed in range(6)]
    scorer = MapScorer(shapes(4), twins=False)
    first, second = (run_study("model", part, scorer).findings for part in (networks[:3], networks[3:]))
    assert (first[0].metric, first[0].n, first[0].subject.label) == ("auc_follows_probe", 3, "vit-s0, vit-s1, vit-s2")
    assert first[0].identity != second[0].identity, "another group is another measurement"


class Broken(MaskSource):
    """Ten images of which one cannot be read and two have no foreground."""

    unpaired = ("alone.png",)

    def __len__(self) -> int:
        return 10

    def name(self, index: int) -> str:
        return f"photo {index}"

    def load(self, index: int) -> MaskedImage:
        if index == 4:
            raise UnreadableImage("photo 4", "not an image")
        mask = torch.zeros(20, 30, dtype=torch.uint8)
        if index not in (1, 2):
            mask[5:15, 8:20] = 1
        pixels = torch.randint(0, 255, (3, 20, 30), dtype=torch.uint8, generator=torch.Generator().manual_seed(index))
        return MaskedImage(pixels, mask, f"photo {index}")


def test_all_studies_share_one_pass_of_a_network_over_the_images() -> None:
    names = ("map", "register", "layer", "head", "model")
    apart = [run_study(name, [target("reg", "dinomambareg_tiny")], MapScorer(shapes(6), twins=False)) for name in names]
    one, images = target("reg", "dinomambareg_tiny"), shapes(6, batch=4)
    seen: list[int] = []
    one.backbone.layers[0].register_forward_pre_hook(lambda layer, inputs: seen.append(len(inputs[0])))
    together = list(run_studies(names, [one], MapScorer(images, twins=False)))
    assert sorted(num for num in seen if num > 1) == [2, 4]  # single images: which maps are there?
    for found, expected in zip(together, apart, strict=True):
        assert found.to_json()["rows"] == expected.to_json()["rows"]
        assert all(
            np.array_equal(found.arrays[name], expected.arrays[name], equal_nan=True) for name in expected.arrays
        )


def test_unreadable_images_empty_masks_and_unpaired_files_are_counted_and_the_rest_is_scored() -> None:
    result = score_maps([target("vit")], ViewedImages(Broken(), size=64, batch=4), twins=False)
    assert (result.rows[0].scores["auc"].n, result.rows[0].scores["auc"].num_dropped) == (7, 2)
    assert result.to_json()["skipped"] == {"photo 4": "not an image"}
    assert result.to_json()["unpaired"] == ["alone.png"]


def test_images_without_a_score_give_no_measurement_and_no_curve() -> None:
    class Empty(Broken):
        def load(self, index: int) -> MaskedImage:
            image = super().load(index - index % 2)
            return MaskedImage(image.image, torch.zeros_like(image.mask), image.name)

    result = score_maps([target("vit")], ViewedImages(Empty(), size=64, num_images=2), twins=False)
    assert not result.measurements and not result.roc
    json.dumps(result.to_json(), allow_nan=False)


def test_no_readable_image_is_an_error() -> None:
    class Nothing(Broken):
        def load(self, index: int) -> MaskedImage:
            raise UnreadableImage(f"photo {index}", "not an image")

    for study in ("model", "map"):
        with pytest.raises(ValueError, match="dataset:Nothing-.* has no readable image.*photo 0"):
            score_maps([target("vit")], ViewedImages(Nothing(), size=64), study=study)


def test_a_bare_backbone_and_the_name_of_a_data_set_are_scored_as_the_command_does() -> None:
    model = tiny("vit_tiny")
    result = score_maps([model], "shapes:n=6", twins=False)
    expected = score_maps([target("vit_tiny")], shapes(6), twins=False)
    assert result.rows[0].scores == expected.rows[0].scores
    assert result.protocol == expected.protocol


def test_the_token_in_front_is_scored_beside_the_one_in_the_middle() -> None:
    images, one = shapes(), target("vim", "dinovim_tiny")
    result = score_maps([one], images, study="token", twins=False)
    assert [row.protocol.map for row in result.rows] == ["cosine", "front_cosine"]
    plain = score_maps([one], images, twins=False)
    assert result.rows[0].scores["auc"].value == pytest.approx(plain.rows[0].scores["auc"].value)
    alone = score_maps([one], images, map_name="front_cosine", twins=False).rows[0].scores["auc"]
    assert result.rows[1].scores["auc"].value == pytest.approx(alone.value)
    [gap] = result.comparisons
    assert (gap.first_score, gap.second_score) == (
        "cosine of vim, class token in the middle",
        "front_cosine of vim, class token in front",
    )
    assert gap.difference.value == pytest.approx(plain.rows[0].scores["auc"].value - alone.value)
    measured = [(found.metric, found["map"]) for found in result.measurements]
    assert measured[-1][0] == "middle_token_over_front" and ("binary_auc", "front_cosine") in measured
    assert set(result.roc) == {gap.first, gap.second}
    with pytest.raises(ValueError, match="leave --map norm out"):
        score_maps([one], images, study="token", map_name="norm")
    with pytest.raises(ValueError, match=r"no copy of its class token in front.*dinovim_tiny"):
        score_maps([target("vit")], images, study="token")


def test_all_images_are_scored_without_a_number() -> None:
    found = score_maps([target("vit", dim=16, depth=1, image=16)], "shapes:n=230,size=16", twins=False)
    assert found.rows[0].scores["auc"].n + found.rows[0].scores["auc"].num_dropped == 230
    assert found.protocol.num_images is None
