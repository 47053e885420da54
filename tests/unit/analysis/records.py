"""Measurements to hold claims against."""

from mixlab.analysis.evidence import Measurement

RANKED = ("attention", "mamba2", "linear_attention")
MODELS = {
    "attention": "vit_tiny",
    "mamba2": "dinovim_tiny",
    "linear_attention": "linearvit_tiny",
    "gated_conv": "gatedconv_tiny",
}


def measured(metric: str, family: str, value: float, **other: object) -> Measurement:
    record = {
        "metric": metric,
        "value": value,
        "low": value - 0.01,
        "high": value + 0.01,
        "n": 100,
        "model": MODELS[family],
        "family": family,
        "training": "dino",
        "num_parameters": 6_000_000,
        "data": "photos",
        "study": "model",
    }
    return Measurement.from_record(record | other, "test")
