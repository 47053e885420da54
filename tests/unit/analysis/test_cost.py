"""Counted, not typed in: parameters and multiply-accumulates against the figures that the papers publish."""

import pytest

from mixlab.analysis.cost import count_macs, count_parameters, count_with_classifier, on_meta

PUBLISHED_PARAMETERS = {  # millions; Dino-Mamba's released backbones without their unused head, DeiT's ViT
    "dinovim_base": 88.97,
    "vit_base": 85.80,
    "vit_small": 21.67,
    "vit_tiny": 5.52,
}
MAMBAOUT = {  # parameters with the classifier in millions, MACs in billions: MambaOut, table 4
    "mambaout_femto": (7.3, 1.2),
    "mambaout_tiny": (26.5, 4.5),
    "mambaout_base": (84.8, 15.8),
}


@pytest.mark.parametrize(("name", "millions"), PUBLISHED_PARAMETERS.items())
def test_parameters_are_the_published_ones(name: str, millions: float) -> None:
    assert count_parameters(on_meta(name)) / 1e6 == pytest.approx(millions, rel=1e-3)


@pytest.mark.parametrize(("name", "published"), MAMBAOUT.items())
def test_mambaout_has_its_published_size_and_cost(name: str, published: tuple[float, float]) -> None:
    model = on_meta(name)
    assert count_with_classifier(model) / 1e6 == pytest.approx(published[0], abs=0.06)
    assert count_macs(model, 224) / 1e9 == pytest.approx(published[1], abs=0.08)


def test_kobe_is_the_deeper_femto() -> None:
    assert count_with_classifier(on_meta("mambaout_kobe")) / 1e6 == pytest.approx(9.1, abs=0.06)


def test_macs_of_a_scan_are_linear_in_tokens_and_those_of_attention_are_not() -> None:
    def growth(name: str) -> float:
        small, large = (count_macs(on_meta(name, image=side, depth=2, dim=64), side) for side in (256, 512))
        return large / small

    assert growth("dinovim_tiny") < 4.1
    assert growth("vit_tiny") > 6
