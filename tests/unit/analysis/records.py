"""Measurements to hold claims against."""

from dataclasses import fields
from typing import Any

from mixlab.analysis.claims import CLAIMS, Evidence, Verdict
from mixlab.run import METRICS, Measurement, Subject

RANKED = ("attention", "mamba2", "linear_attention")
MODELS = {
    "attention": "vit_tiny",
    "mamba2": "dinovim_tiny",
    "linear_attention": "linearvit_tiny",
    "gated_conv": "gatedconv_tiny",
    "mamba1": "vim_tiny",
}
FACTS = {item.name for item in fields(Subject)}
ORDERED = {"attention": 0.9, "mamba2": 0.8, "linear_attention": 0.7}  # as the first paper ranks them
SPREAD = (-0.001, 0.0, 0.001)  # of three seeds about a value


def measured(metric: str, family: str, value: float, **other: Any) -> Measurement:
    """`other`: facts of the subject, choices of the protocol, or an interval other than +- 0.01."""
    about = {"model": MODELS[family], "family": family, "training": "dino", "num_parameters": 6_000_000}
    about |= {name: other.pop(name) for name in FACTS & other.keys()}
    own = {"low": value - 0.01, "high": value + 0.01, "n": 100, "seed": None, "by_image": None}
    own |= {name: other.pop(name) for name in own.keys() & other.keys()}
    protocol = METRICS[metric].protocol(**{"data": "photos"} | other)
    return Measurement(metric=metric, value=value, subject=Subject(**about), protocol=protocol, **own)


def seeds(metric: str, family: str, value: float, **other: Any) -> list[Measurement]:
    """The same network trained three times, with values about this one."""
    return [measured(metric, family, value + gap, seed=seed, **other) for seed, gap in enumerate(SPREAD)]


Given = Measurement | list[Measurement]


def verdict(number: int | str, *measurements: Given) -> Verdict:
    claim = next(claim for claim in CLAIMS if claim.number == number)
    return claim.check(Evidence(m for each in measurements for m in (each if isinstance(each, list) else [each])))


def status(number: int | str, *measurements: Given) -> str:
    return verdict(number, *measurements).status
