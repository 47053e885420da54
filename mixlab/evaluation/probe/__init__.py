"""The linear probe: a grid of heads trained together on a frozen backbone; `evaluate_linear_probe` starts it."""

from mixlab.evaluation.probe.evaluate import evaluate_linear_probe
from mixlab.evaluation.probe.result import ProbeResult
from mixlab.evaluation.settings import ProbeSettings

__all__ = ["ProbeResult", "ProbeSettings", "evaluate_linear_probe"]
