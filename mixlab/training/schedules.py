"""Schedules: pure functions of the step, with nothing to save and nothing to restore. `SCHEDULES` is the table of those
of the learning rate; docs/add_an_optimizer.md adds one.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any

from mixlab.errors import InputError, WorkError
from mixlab.plugins import Registry, named, takes

MOST_CHECKED = 1000  # steps of a run at which a plugin's schedule is tried before it begins


@dataclass(frozen=True, kw_only=True)
class Course:
    """What a schedule knows of a run: learning rates, and lengths in steps."""

    peak: float
    end: float  # `optim.min_lr`
    warmup: int
    total: int
    start: float = 0.0  # of the warm-up
    drops: tuple[int, ...] = ()  # `optim.drop_epochs`
    steps_per_epoch: int = 1


Schedule = Callable[[int, Course], float]


def cosine(step: int, *, start: float, end: float, total: int) -> float:
    """From `start` at step 0 along half a cosine towards `end` at step `total`."""
    return end + 0.5 * (start - end) * (1 + math.cos(math.pi * min(step, total) / max(total, 1)))


def after_warmup(decay: Schedule) -> Schedule:
    """Linearly from `start` to `peak`, which the last warm-up step has (DINO), then as `decay` says. A warm-up of one
    step is that last step.
    """

    def rate(step: int, course: Course) -> float:
        if step >= course.warmup:
            return decay(step, course)
        if course.warmup == 1:
            return course.peak
        return course.start + (course.peak - course.start) * step / (course.warmup - 1)

    return rate


def _cosine(step: int, course: Course) -> float:
    """Along half a cosine towards `end`."""
    return cosine(step - course.warmup, start=course.peak, end=course.end, total=course.total - course.warmup)


def _cosine_by_epoch(step: int, course: Course) -> float:
    """Along half a cosine that begins with step 0, under the warm-up, and in stairs of an epoch: timm's, and so
    MambaOut's and DeiT's."""
    step -= step % course.steps_per_epoch
    if step < course.warmup:
        return course.start + (course.peak - course.start) * step / course.warmup
    return cosine(step, start=course.peak, end=course.end, total=course.total)


def _poly(step: int, course: Course) -> float:
    """In a straight line towards `end`."""
    length = course.total - course.warmup
    return course.end + (course.peak - course.end) * (1 - min(step - course.warmup, length) / max(length, 1))


def _drops(step: int, course: Course) -> float:
    """A tenth of it after each step of `drops`."""
    return course.peak * 0.1 ** sum(step >= drop for drop in course.drops)


SCHEDULES: Registry[Schedule] = Registry(
    "schedule",
    {
        "cosine": after_warmup(_cosine),
        "cosine_by_epoch": _cosine_by_epoch,
        "poly": after_warmup(_poly),
        "drops": after_warmup(_drops),
    },
)


def register_schedule(function: Schedule | str) -> Any:
    """Register a function as a learning rate schedule, `optim.decay=NAME`; a decorator.

    The function takes a step after the warm-up, which is always linear, and the `Course` of the run, and returns the
    learning rate. It must depend on these alone: a run that resumes asks for later steps only. The schedule has the
    name of the function, or that in `@register_schedule("another_name")`.
    """

    def add(name: str, decay: Schedule) -> None:
        if not takes(decay, "step", "course"):
            raise InputError(
                f"the schedule {name} must be called as {name}(step, course); got {name}{signature(decay)}"
            )
        SCHEDULES[name] = after_warmup(decay)

    return named("schedule", function, add)


def learning_rate(step: int, course: Course, decay: str = "cosine") -> float:
    """The rate at a step by a schedule of the table."""
    found: Any = SCHEDULES[decay](step, course)
    plugin, is_number = SCHEDULES.origin(decay), isinstance(found, int | float)
    if plugin is not None and not (is_number and 0 <= found < math.inf):
        what = found if is_number else f"a {type(found).__name__}"
        raise WorkError(
            f"the schedule {decay!r} of the plugin {plugin} gives {what} at step {step} of {course.total}; "
            "return a learning rate, a finite number that is not negative"
        )
    return float(found)


def check_schedule(course: Course, decay: str) -> None:
    """Refuse a plugin's schedule that fails later in the run, or that does not depend on the step alone."""
    if SCHEDULES.origin(decay) is None:
        return
    for step in {*range(0, course.total, -(-course.total // MOST_CHECKED)), course.total - 1}:
        first, second = learning_rate(step, course, decay), learning_rate(step, course, decay)
        if first != second:
            raise WorkError(
                f"the schedule {decay!r} of the plugin {SCHEDULES.origin(decay)} gives {first} and then {second} for "
                f"step {step}; it must depend on the step and the course alone, or no run could resume"
            )


def linear_by_epoch(epoch: int, *, start: float, end: float, epochs: int) -> float:
    """From `start` in epoch 0 in equal steps to `end` in epoch `epochs` - 1, then `end`. A single epoch has `start`."""
    if epoch >= max(epochs - 1, 1) or epochs == 0:
        return end
    return start + (end - start) * epoch / max(epochs - 1, 1)
