"""Whether a run learnt from the very labels that are scored: kNN and probes of it then measure something else."""

from mixlab.data.images import HELD_OUT_OF, parse_source
from mixlab.data.labelled import LabelledSplits, is_held_out
from mixlab.evaluation.methods import METHODS
from mixlab.evaluation.target import split_target
from mixlab.run.directory import RunDirectory, method_of
from mixlab.training.stored_settings import same_data


def seen_labels(target: str, splits: LabelledSplits) -> list[str]:
    """A sentence where TARGET is a run that was trained on labels of the images or the classes that are scored."""
    config = RunDirectory(split_target(target)[0]).read_config_if_any()
    method, data = METHODS.get(method_of(config) or ""), config.get("data")
    if method is None or method.command != "train" or data is None:
        return []
    if _trained_on(data, splits.val_data or splits.data):
        return [
            f"{target} was trained on the labels of these validation images: this says nothing about new images; "
            f"`mixlab train --data {HELD_OUT_OF}{data}` holds some out"
        ]
    known = len({*splits.classes} & {*config.get("classes", [])})
    if not known:
        return []
    of_these = "these classes" if known == len(splits.classes) else f"{known} of these {len(splits.classes)} classes"
    return [f"{target} was trained on labels of {of_these} ({data}): these are not features learnt without labels"]


def _trained_on(data: str, scored: str) -> bool:
    """Whether a run on all images of `data` has seen the validation images of `scored`."""
    if scored.startswith(HELD_OUT_OF) and same_data(data, scored.removeprefix(HELD_OUT_OF)):
        return True
    return same_data(data, scored) and not is_held_out(
        scored, *(parse_source(scored, split=s) for s in ("val", "train"))
    )
