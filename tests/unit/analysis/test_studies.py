"""Studies of Binary-AUC: scores against scikit-learn, baselines beside them, and honest comparisons."""

import json

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

import mixlab
from mixlab.analysis.binary_auc import centre_prior
from mixlab.analysis.foreground import split_mask
from mixlab.analysis.maps import MAPS
from mixlab.analysis.scores import FALSE_POSITIVE_RATES, Scorer, either_sign, masks_on_grid, true_positive_rates
from mixlab.analysis.studies import STUDIES, run_study
from mixlab.analysis.subjects import MaskedImages
from mixlab.data.mask_formats import parse_masks
from mixlab.data.masks import MaskedImage, MaskSource
from mixlab.data.unreadable import UnreadableImage
from mixlab.evaluation.target import Target


def tiny(name: str, seed: int = 0, **fields: object) -> mixlab.Backbone:
    torch.manual_seed(seed)
    size = {} if name.startswith("gatedconv") else {"head_dim": 16}
    return mixlab.create_model(name, dim=64, depth=4, image=64, patch=8, **size, **fields).eval()


def tiny_large(seed: int) -> mixlab.Backbone:
    torch.manual_seed(seed)
    return mixlab.create_model("vit_tiny", dim=128, depth=4, image=64, patch=8, head_dim=16).eval()


def shapes(num: int = 12, batch: int = 5) -> MaskedImages:
    return MaskedImages(parse_masks(f"shapes:n={num}"), size=64, batch=batch)


def subject(label: str, name: str = "vit_tiny", training: str = "dino", seed: int = 0, **fields: object) -> Target:
    return Target(label=label, backbone=tiny(name, seed, **fields), training=training, seed=seed)


def test_scores_are_those_of_scikit_learn_on_the_same_maps() -> None:
    images, one = shapes(), subject("vit")
    scores = Scorer(images).scores(one)
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


def test_roc_curves_read_at_even_rates_enclose_the_area() -> None:
    maps = torch.rand(6, 16, 16, generator=torch.Generator().manual_seed(0))
    masks = (torch.rand(6, 16, 16, generator=torch.Generator().manual_seed(1)) > 0.6).to(torch.uint8)
    rates = true_positive_rates(maps, masks)
    area = torch.trapezoid(rates, FALSE_POSITIVE_RATES)
    expected = [roc_auc_score(mask.flatten(), values.flatten()) for values, mask in zip(maps, masks, strict=True)]
    np.testing.assert_allclose(area.numpy(), expected, atol=0.02)
    assert (rates.diff(dim=1) >= 0).all()
    assert (rates[:, -1] == 1).all()


def test_masks_on_the_grid_keep_ignored_cells_apart() -> None:
    masks = torch.tensor([[[1, 1, 0, 0], [1, 1, 0, 0], [255, 255, 0, 1], [255, 255, 0, 0]]], dtype=torch.uint8)
    assert masks_on_grid(masks, (2, 2)).tolist() == [[[1, 0], [255, 0]]]


def test_rows_carry_the_centre_prior_and_the_untrained_twin() -> None:
    one, untrained = subject("trained", seed=5), subject("fresh", "dinovim_tiny", training="untrained")
    result = run_study("model", [one, untrained], Scorer(shapes()))
    first, second = result.rows
    assert first["untrained"]["mean"] is not None
    assert "untrained" not in second
    twin = one.backbone.twin(5)
    twin_scores = Scorer(shapes()).scores(Target(label="twin", backbone=twin))
    assert first["untrained"]["mean"] == pytest.approx(float(either_sign(twin_scores.raw).nanmean()))
    gap = first["above_untrained"]["mean"]
    assert gap == pytest.approx(first["auc"]["mean"] - first["untrained"]["mean"])
    assert first["above_centre_prior"]["mean"] == pytest.approx(first["auc"]["mean"] - first["centre_prior"]["mean"])
    assert first["auc"]["low"] <= first["auc"]["mean"] <= first["auc"]["high"]
    (comparison,) = result.comparisons
    assert comparison["difference"]["mean"] == pytest.approx(first["auc"]["mean"] - second["auc"]["mean"])


def test_a_twin_is_untrained_and_leaves_the_random_state_alone() -> None:
    one = tiny("dinovim_tiny", seed=3)
    before = torch.random.get_rng_state()
    twin, again = one.twin(1), one.twin(1)
    assert torch.equal(before, torch.random.get_rng_state())
    assert twin.config == one.config
    weights = [model.layers[0].mixer.in_proj.weight for model in (one, twin, again)]
    assert torch.equal(weights[1], weights[2])
    assert not torch.equal(weights[0], weights[1])
    timm_twin = mixlab.create_model("timm/convnext_atto").twin()
    assert timm_twin.name == "timm/convnext_atto"


def test_by_layer_scores_every_layer_in_one_pass() -> None:
    one = subject("vit")
    scorer = Scorer(shapes(), twins=False)
    result = run_study("layer", [one], scorer)
    assert [row["layer"] for row in result.rows] == [0, 1, 2, 3]
    assert result.rows[-1]["raw_auc"]["mean"] == pytest.approx(float(scorer.scores(one).raw.nanmean()))
    assert result.arrays["vit"].shape == (12, 4, 1)
    means = [row["raw_auc"]["mean"] for row in result.rows]
    assert result.correlations["vit"]["spearman"] == pytest.approx(spearmanr(means, range(4)).statistic)


def test_by_head_chooses_on_other_images_than_it_compares_on() -> None:
    one = subject("vit")
    result = run_study("head", [one], Scorer(shapes(20), twins=False))
    assert sorted({row["layer"] for row in result.rows}) == [2, 3]
    assert [row["index"] for row in result.rows if row["layer"] == 3] == [0, 1, 2, 3]
    assert result.rows[0]["map"] == "mixing_rows"
    raw = torch.from_numpy(result.arrays["vit"])[:, 1]
    auc = either_sign(raw)
    best, worst = int(auc[::2].nanmean(0).argmax()), int(auc[::2].nanmean(0).argmin())
    comparison = result.comparisons[1]
    assert comparison["better"] == f"vit, layer 3, head {best}"
    expected = float((auc[1::2, best] - auc[1::2, worst]).nanmean())
    assert comparison["difference"]["mean"] == pytest.approx(expected)


def test_by_register_compares_the_middle_with_both_ends_and_with_probes() -> None:
    base = subject("reg", "dinomambareg_tiny", num_registers=6)
    accuracies = (0.1, 0.3, 0.5, 0.6, 0.4, 0.2)
    probed = Target(label="reg", backbone=base.backbone, training="dino", register_accuracies=accuracies)
    result = run_study("register", [probed], Scorer(shapes()))
    raw = torch.from_numpy(result.arrays["reg"])[:, 0]
    for comparison, end in zip(result.comparisons, (raw[:, :2], raw[:, 4:]), strict=True):
        gap = float((raw[:, 2:4].mean(1) - end.mean(1)).nanmean())
        assert comparison["difference"]["mean"] == pytest.approx(gap)
    places = [f"{what}_over_{end}" for what in ("middle_registers", "untrained_middle") for end in ("first", "last")]
    assert [finding["metric"] for finding in result.findings] == [*places, "register_auc_follows_probe"]
    expected = spearmanr(raw.nanmean(0), accuracies).statistic
    assert result.correlations["reg"]["spearman"] == pytest.approx(expected)


def test_by_size_training_and_registers_find_their_pairs() -> None:
    small, large = subject("small"), subject("large", seed=1)
    large = Target(
        label="large", backbone=mixlab.create_model("vit_tiny", dim=128, depth=4, image=64, patch=8), training="dino"
    )
    supervised = Target(label="taught", backbone=tiny("vit_tiny", 2), training="supervised")
    plain, with_registers = subject("vim", "dinovim_tiny"), subject("reg", "dinomambareg_tiny", num_registers=3)
    scorer = Scorer(shapes(6), twins=False)
    pairs = {
        name: [(c["better"], c["worse"]) for c in run_study(name, subjects, scorer).comparisons]
        for name, subjects in {
            "size": [large, small, plain],
            "training": [supervised, small],
            "registers": [plain, with_registers, small],
        }.items()
    }
    assert pairs == {"size": [("large", "small")], "training": [("small", "taught")], "registers": [("reg", "vim")]}


def test_sizes_of_several_seeds_are_compared_seed_by_seed() -> None:
    small = [subject(f"small-s{seed}", seed=seed) for seed in (0, 1)]
    large = [Target(label=f"large-s{seed}", backbone=tiny_large(seed), training="dino", seed=seed) for seed in (0, 1)]
    found = run_study("size", [*small, *large], Scorer(shapes(4), twins=False)).comparisons
    assert [(one["better"], one["worse"]) for one in found] == [("large-s0", "small-s0"), ("large-s1", "small-s1")]


def test_twins_have_the_seed_of_their_run() -> None:
    one, other = (
        Target(label=f"vit-s{seed}", backbone=tiny("vit_tiny"), training="dino", seed=seed) for seed in (0, 1)
    )
    scorer = Scorer(shapes(4), seed=5)
    first, second = (scorer.twin_scores(each) for each in (one, other))
    assert first is not None and second is not None and not torch.equal(first.raw, second.raw)
    alone = Scorer(shapes(4)).scores(Target(label="twin", backbone=one.backbone.twin(1)))
    torch.testing.assert_close(second.raw, alone.raw)


def test_a_study_without_its_pairs_says_what_it_needs() -> None:
    with pytest.raises(ValueError, match="the study by training needs one architecture trained in two ways"):
        run_study("training", [subject("a")], Scorer(shapes(4), twins=False))
    with pytest.raises(ValueError, match="there is no study 'sizes'; choose one of model, size"):
        run_study("sizes", [subject("a")], Scorer(shapes(4)))
    with pytest.raises(ValueError, match="labels of their own"):
        run_study("model", [subject("a"), subject("a")], Scorer(shapes(4)))


def test_the_study_by_map_scores_every_kind_that_is_one_picture_as_the_kind_alone() -> None:
    vit, conv = subject("vit"), subject("conv", "gatedconv_tiny")
    scorer = Scorer(shapes(6))
    result = run_study("map", [vit, conv], scorer)
    kinds = {label: [row["map"] for row in result.rows if row["label"] == label] for label in ("vit", "conv")}
    assert kinds["vit"] == ["cosine", "dot", "pooled_cosine", "norm", "pca", "mixing_mean"]
    assert kinds["conv"] == ["dot", "pooled_cosine", "norm", "pca"]
    for row in result.rows:
        alone = run_study("model", [{"vit": vit, "conv": conv}[row["label"]]], scorer, row["map"])
        assert (row["auc"], row["untrained"]) == (alone.rows[0]["auc"], alone.rows[0]["untrained"])
    assert result.arrays["vit.norm"].shape == (6, 1, 1)
    assert not result.as_json("shapes")["measurements"], "claims are about one kind of map"
    with pytest.raises(ValueError, match="scores every kind; leave --map norm out"):
        run_study("map", [vit], scorer, "norm")


@pytest.mark.parametrize("name", sorted(set(STUDIES) - {"size", "training", "registers", "map"}))
def test_results_are_json_with_measurements_for_the_ledger(name: str) -> None:
    one = subject("reg", "dinomambareg_tiny", num_registers=3)
    result = run_study(name, [one], Scorer(shapes(6))).as_json("shapes")
    again = json.loads(json.dumps(result, allow_nan=False))
    assert again["measurements"]
    for record in again["measurements"]:
        assert {"metric", "value", "n", "model", "family", "training", "data", "study"} <= set(record)


def test_families_and_causality_are_read_off_the_backbone() -> None:
    names = ("vit_tiny", "linearvit_tiny", "dinovim_tiny", "gatedconv_tiny")
    assert [tiny(name).family for name in names] == ["attention", "linear_attention", "mamba2", "gated_conv"]
    assert mixlab.create_model("mambaout_femto").family == "gated_conv"
    assert mixlab.create_model("timm/vit_tiny_patch16_224").family == "attention"
    assert mixlab.create_model("timm/convnext_atto").family == "other"
    assert tiny("vit_tiny", causal=True).is_causal and tiny("dinovim_tiny", two_way=False).is_causal
    assert not tiny("vit_tiny").is_causal and not tiny("dinovim_tiny").is_causal


class Broken(MaskSource):
    """Ten images of which one cannot be read and two have no foreground."""

    def __len__(self) -> int:
        return 10

    def load(self, index: int) -> MaskedImage:
        if index == 4:
            raise UnreadableImage("photo 4", "not an image")
        mask = torch.zeros(20, 30, dtype=torch.uint8)
        if index not in (1, 2):
            mask[5:15, 8:20] = 1
        pixels = torch.randint(0, 255, (3, 20, 30), dtype=torch.uint8, generator=torch.Generator().manual_seed(index))
        return MaskedImage(pixels, mask, f"photo {index}")


def test_unreadable_images_and_empty_masks_are_counted_and_the_rest_is_scored() -> None:
    images = MaskedImages(Broken(), size=64, batch=4)
    result = run_study("model", [subject("vit")], Scorer(images, twins=False))
    assert result.rows[0]["auc"]["n"] == 7
    assert result.rows[0]["auc"]["undefined"] == 2
    assert images.skipped.reasons == {"photo 4": "not an image"}


def test_images_are_limited_and_read_once_when_they_fit_in_memory() -> None:
    images = MaskedImages(parse_masks("shapes:n=30"), size=64, batch=4, limit=10)
    first, second = list(images), list(images)
    assert sum(len(batch.names) for batch in first) == 10
    assert [len(batch.names) for batch in first] == [4, 4, 2]
    assert first[0].images is second[0].images
    with pytest.raises(ValueError, match="must be at least 1"):
        MaskedImages(parse_masks("shapes:n=30"), size=64, limit=0)


def test_no_readable_image_is_an_error() -> None:
    class Nothing(Broken):
        def load(self, index: int) -> MaskedImage:
            raise UnreadableImage(f"photo {index}", "not an image")

    with pytest.raises(ValueError, match="no image with a mask could be read"):
        Scorer(MaskedImages(Nothing(), size=64)).scores(subject("vit"))


def test_pixels_are_normalised_with_the_backbones_own_statistics() -> None:
    model = mixlab.create_model("timm/vit_tiny_patch16_224")
    pixels = torch.full((1, 3, 2, 2), 255, dtype=torch.uint8)
    expected = (1 - torch.tensor(model.pixel_mean)) / torch.tensor(model.pixel_std)
    torch.testing.assert_close(model.preprocess(pixels)[0, :, 0, 0], expected)
