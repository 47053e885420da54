"""Features, kNN and linear probes in one's own loop are those of the evaluators."""

from functools import partial

import pytest
import timm
import torch

import mixlab
from mixlab import ProbeSettings

DATA = "shapes:n=40,size=32"


@pytest.fixture(scope="module")
def model() -> mixlab.Backbone:
    torch.manual_seed(0)
    return mixlab.create_model("vit_tiny", dim=64, depth=2, patch=8, image=32).train()


@pytest.fixture(scope="module")
def features(model: mixlab.Backbone) -> list[mixlab.LabelledFeatures]:
    splits = mixlab.labelled_splits(DATA)
    return [mixlab.labelled_features(model, part) for part in (splits.train, splits.val)]


def test_features_are_what_the_model_returns_for_centre_crops(
    model: mixlab.Backbone, features: list[mixlab.LabelledFeatures]
) -> None:
    assert model.training  # as it came
    splits = mixlab.labelled_splits(DATA)
    images = mixlab.preprocess(model, [splits.train.load(index) for index in range(3)], size=37)[..., 2:34, 2:34]
    with torch.no_grad():
        torch.testing.assert_close(features[0].features[:3], model.eval()(images), rtol=1e-4, atol=1e-5)
    model.train()
    assert torch.equal(features[0].labels, splits.train.labels())
    both = mixlab.labelled_features(model, splits.train, strategy="cls+mean", blocks=2)
    assert both.features.shape == (40, 2 * 2 * 64)


def test_knn_in_memory_is_that_of_the_evaluator(
    model: mixlab.Backbone, features: list[mixlab.LabelledFeatures]
) -> None:
    found = mixlab.evaluate_knn(model, DATA, mixlab.KnnSettings(k=(7, 20)))
    model.train()
    for k, score in found.scores.items():
        assert mixlab.knn_accuracy(*features, k=k) == score.correct / score.n
    assert mixlab.knn_accuracy(*features) == found.scores[20].correct / found.scores[20].n  # DINO's k


def test_a_linear_probe_in_memory_is_the_best_head_of_the_evaluator(
    model: mixlab.Backbone, features: list[mixlab.LabelledFeatures]
) -> None:
    settings = ProbeSettings(
        mode="cached",
        epochs=4,
        batch=16,
        lrs=(0.01, 0.5),
        weight_decays=(0.0, 0.1),
        blocks=(1,),
        strategies=("output",),
    )
    scores = mixlab.evaluate_linear_probe(model, DATA, settings).scores["cached"]
    model.train()
    stored = [
        mixlab.LabelledFeatures(part.features.half().float(), part.labels) for part in features
    ]  # as they are kept
    probe = mixlab.linear_probe(*stored, epochs=4, batch=16, lrs=(0.01, 0.5), weight_decays=(0.0, 0.1))
    best = scores.accuracy(scores.best)
    assert probe.accuracy == pytest.approx(best.correct / best.n)
    answers = (stored[1].features @ probe.weight.mT + probe.bias).argmax(-1)
    assert float((answers == stored[1].labels).double().mean()) == probe.accuracy
    assert (probe.lr, probe.weight_decay) == (scores.heads[scores.best].lr, scores.heads[scores.best].weight_decay)


def test_wrong_features_are_refused_with_their_shapes() -> None:
    some, none = mixlab.LabelledFeatures(torch.ones(3, 2), torch.tensor([0, 1, 1])), torch.zeros(0)
    for features, labels, message in (
        (torch.ones(3), torch.zeros(3, dtype=torch.int64), r"are \(3,\) and \(3,\); give \(n, D\) and \(n,\)"),
        (torch.ones(3, 2), torch.zeros(2, dtype=torch.int64), r"are \(3, 2\) and \(2,\)"),
        (torch.ones(3, 2), torch.zeros(3), "labels are torch.float32; give whole numbers"),
        (torch.full((3, 2), torch.nan), torch.zeros(3, dtype=torch.int64), "features hold NaN or infinity"),
    ):
        with pytest.raises(ValueError, match=message):
            mixlab.LabelledFeatures(features, labels)
    empty = mixlab.LabelledFeatures(torch.zeros(0, 2), none.long())
    with pytest.raises(ValueError, match="0 queries in a bank of 3"):
        mixlab.knn_accuracy(some, empty)
    with pytest.raises(ValueError, match="100 epochs of 3 features, scored on 0"):
        mixlab.linear_probe(some, empty)
    with pytest.raises(ValueError, match="give some lr above 0"):
        mixlab.linear_probe(some, some, lrs=())
    unlabelled = mixlab.LabelledFeatures(torch.ones(3, 2), torch.tensor([0, 1, -1]))
    for score in (partial(mixlab.knn_accuracy, k=1), mixlab.linear_probe):
        for pair in ((unlabelled, some), (some, unlabelled)):
            with pytest.raises(ValueError, match=r"1 of the 3 features of the .* have no label \(-1\); leave them out"):
                score(*pair)
    with pytest.raises(ValueError, match="the bank holds class 1; num_classes=1 are 0 to 0"):
        mixlab.knn_accuracy(some, some, k=1, num_classes=1)


def test_a_head_that_diverged_is_never_the_best() -> None:
    few = mixlab.LabelledFeatures(torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 2)
    of_one_class = mixlab.LabelledFeatures(few.features, torch.zeros(8, dtype=torch.int64))  # NaN answers class 0
    assert mixlab.linear_probe(few, of_one_class, epochs=4, lrs=(1e30, 0.01), weight_decays=(0.1,)).lr == 0.01
    with pytest.raises(ValueError, match="every head diverged; lower the learning rates"):
        mixlab.linear_probe(few, few, epochs=4, lrs=(1e30,), weight_decays=(0.1,))


def test_a_classifier_of_timms_is_taken_for_its_backbone_and_other_networks_are_refused() -> None:
    network = timm.create_model("dinovim_tiny", dim=64, depth=2, patch=8, image=32)
    images = mixlab.preprocess(network, torch.zeros(3, 32, 32, dtype=torch.uint8))
    assert mixlab.activation_map(network, images).shape == (1, 4, 4)
    assert mixlab.evaluate_knn(network, DATA).measurements
    assert len(mixlab.labelled_features(network, DATA).labels) == 40
    for call in (mixlab.evaluate_knn, mixlab.labelled_features):
        with pytest.raises(ValueError, match="a Conv2d is no backbone; .*mixlab.wrap"):
            call(torch.nn.Conv2d(3, 4, 1), DATA)
    with pytest.raises(ValueError, match="give its .backbone"):
        mixlab.save_weights(network, "never.safetensors")
