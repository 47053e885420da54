"""Statistics: intervals, bootstraps, differences over seeds and images, correlation.

The ledger, the report and the commands all use these, so they agree. All intervals
are 95 %, unless said otherwise.
"""

from mixlab.statistics.bootstrap import (
    bootstrap_difference,
    bootstrap_mean,
    jackknife,
    paired_accuracy_difference,
)
from mixlab.statistics.correlation import Correlation, correlate
from mixlab.statistics.differences import (
    Difference,
    Significance,
    difference,
    has_learnt,
    mean_over_images,
    mean_over_seeds,
    repeated_difference,
    significance,
)
from mixlab.statistics.intervals import (
    Estimate,
    Quantity,
    accuracy_interval,
    interval_from_std,
    mean_interval,
    median_interval,
    share_interval,
    student,
    wilson_interval,
    with_interval,
)

__all__ = [
    "Correlation",
    "Difference",
    "Estimate",
    "Quantity",
    "Significance",
    "accuracy_interval",
    "bootstrap_difference",
    "bootstrap_mean",
    "correlate",
    "difference",
    "has_learnt",
    "interval_from_std",
    "jackknife",
    "mean_interval",
    "mean_over_images",
    "mean_over_seeds",
    "median_interval",
    "paired_accuracy_difference",
    "repeated_difference",
    "share_interval",
    "significance",
    "student",
    "wilson_interval",
    "with_interval",
]
