"""What the page reads from a result file, and the form that it must have: the error names the file and the field.

A path leads through objects; `*` stands for every entry of a list, `%` for every value of an object. A field with `~`
may be null, one with `?` may also be missing; `a|b` is a field that older results call b.
"""

from collections.abc import Callable, Iterator
from typing import Any

from mixlab.analysis.blocks import MEASURES
from mixlab.analysis.score_differences import OLDER_NAMES
from mixlab.errors import InputError, short
from mixlab.run.directory import AGAIN

Rule = tuple[str, Callable[[Any], bool]]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18  # NaN is not


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


TEXT: Rule = ("text", lambda value: isinstance(value, str))
WHOLE: Rule = ("a whole number", _is_whole)
COUNT: Rule = ("a whole number from 0 on", lambda value: _is_whole(value) and value >= 0)
DIGITS: Rule = ("a whole number from 0 to 20", lambda value: _is_whole(value) and 0 <= value <= 20)
NUMBER: Rule = ("a finite number", _is_number)
POSITIVE: Rule = ("a number above 0", lambda value: _is_number(value) and value > 0)
FLAG: Rule = ("true or false", lambda value: isinstance(value, bool))
ITEMS: Rule = ("a list", lambda value: isinstance(value, list))
OBJECT: Rule = ("an object", lambda value: isinstance(value, dict))
PLAIN: Rule = ("text or a number", lambda value: isinstance(value, str) or _is_number(value))
CELL: Rule = ("text, a number or null", lambda value: value is None or isinstance(value, str) or _is_number(value))


def _interval(place: str) -> dict[str, Rule]:
    return {f"{place}.mean~": NUMBER, f"{place}.low~": NUMBER, f"{place}.high~": NUMBER}


def _spread(place: str) -> dict[str, Rule]:
    rules = {f"{place}.{name}.mean~": NUMBER for name in (*MEASURES, "bound")}
    return rules | {f"{place}.{name}.std_over_heads~": NUMBER for name in MEASURES}


_ORIGIN: dict[str, Rule] = {
    "kind?": TEXT,
    "provenance?": OBJECT,
    "provenance?.command?": TEXT,
    "provenance?.seed?": PLAIN,
    "provenance?.date?": TEXT,
    "provenance?.commit?": TEXT,
    "provenance?.machine?": OBJECT,
    "provenance?.versions?": OBJECT,
    "num_classes?": COUNT,
    "num_images?": COUNT,
    "exhibit?": OBJECT,
    "exhibit?.title": TEXT,
    "exhibit?.about": TEXT,
    "exhibit?.columns.*": TEXT,
    "exhibit?.rows.*": ITEMS,
    "exhibit?.rows.*.*": CELL,
    "exhibit?.figures.*.file": TEXT,
    "exhibit?.figures.*.caption": TEXT,
}
FORMS: dict[str, dict[str, Rule]] = {
    "auc": {
        "study": TEXT,
        "data?": TEXT,
        "image?": PLAIN,
        "protocol?": OBJECT,
        "protocol?.map?": TEXT,
        "rows": ITEMS,
        "rows.*.label": TEXT,
        "rows.*.map": TEXT,
        "rows.*.layer": WHOLE,
        "rows.*.index~": COUNT,
        "rows.*.seed?": WHOLE,
        "rows.*.model?": TEXT,
        "rows.*.training?": TEXT,
        "rows.*.num_parameters?": COUNT,
        "rows.*.num_registers?": COUNT,
        "rows.*.auc.n": COUNT,
        **_interval("rows.*.auc"),
        **_interval("rows.*.raw_auc"),
        **_interval("rows.*.centre_prior"),
        "rows.*.untrained?": OBJECT,
        "rows.*.untrained?.mean?": NUMBER,
        "comparisons": ITEMS,
        **{f"comparisons.*.{new}|{old}": TEXT for new, old in OLDER_NAMES.items()},
        "comparisons.*.map?": TEXT,
        "comparisons.*.second_map?": TEXT,
        "comparisons.*.difference.n": COUNT,
        **_interval("comparisons.*.difference"),
        "roc?": OBJECT,
        "roc?.false_positive_rate.*": NUMBER,
        "roc?.true_positive_rate.%.*": NUMBER,
    },
    "rank": {
        "subject.label": TEXT,
        "data?": TEXT,
        "image": COUNT,
        "chunk": POSITIVE,
        "num_tokens": COUNT,
        "layers": ITEMS,
        "layers.*.layer": WHOLE,
        **_spread("layers.*.off_diagonal"),
        **_spread("overall.off_diagonal"),
        "overall.off_diagonal.bound.max~": NUMBER,
        "overall.scan?.mask.max~": NUMBER,
        "overall.bound_holds": FLAG,
        "overall.distance.self_share": NUMBER,
        "overall.distance.distance_to_others~": NUMBER,
    },
    "maps": {
        "data": TEXT,
        "layer": WHOLE,
        "images": ITEMS,
        "subjects.*.label": TEXT,
        "maps": OBJECT,
        "pca.fit": TEXT,
        "pca.threshold?": NUMBER,
        "figures?": ITEMS,
    },
    "matrices": {
        "image": COUNT,
        "decades": NUMBER,
        "models.*.label": TEXT,
        "models.*.layer": WHOLE,
        "models.*.heads": ITEMS,
        "models.*.heads.*": COUNT,
        "models.*.num_heads": COUNT,
        "models.*.num_tokens": COUNT,
        "models.*.chunk?": POSITIVE,
        "models.*.decades?": NUMBER,
        "models.*.patch?": ITEMS,
        "models.*.patch?.*": COUNT,
        "models.*.run_and_look_differ_by": NUMBER,
    },
    "claims": {
        "claims.*.number": PLAIN,
        **{f"claims.*.{name}": TEXT for name in ("statement", "paper", "place", "kind", "status", "measured")},
        "claims.*.scale~": TEXT,
        "claims.*.note?": TEXT,
        "claims.*.alone?": OBJECT,
        "claims.*.alone?.%": TEXT,
    },
    "cost": {"subject.label": TEXT, "subject.model?": TEXT, "subject.training?": TEXT, "macs": NUMBER},
    "reproduce": {
        **dict.fromkeys(("item", "title", "paper", "place"), TEXT),
        "note~": TEXT,
        "scale~": TEXT,
        "rows": ITEMS,
        "rows.*.row": PLAIN,
        "rows.*.column": PLAIN,
        **{f"rows.*.{name}~": NUMBER for name in ("ours", "low", "high", "paper", "difference")},
        **{f"rows.*.{name}~": NUMBER for name in ("difference_low", "difference_high")},
        "rows.*.said?": PLAIN,
        "rows.*.digits": DIGITS,
        "rows.*.n~": COUNT,
    },
    "scaling": {
        "precision": TEXT,
        "rows": ITEMS,
        "rows.*.label": TEXT,
        "rows.*.tokens": POSITIVE,
        "rows.*.pass": TEXT,
        "rows.*.batch": POSITIVE,
        "rows.*.peak_gib~": NUMBER,
        "rows.*.images_per_s.value": POSITIVE,
    },
    "study": {
        "data.name": TEXT,
        "data.num_images": COUNT,
        "data.num_masks": COUNT,
        "data.num_classes?": COUNT,
        "masks": TEXT,
        "seeds": ITEMS,
        "steps": OBJECT,
        "steps.%": ITEMS,
        "steps.%.*": OBJECT,
        "steps.%.*.step?": TEXT,
        "steps.%.*.seconds?": NUMBER,
        "minutes": OBJECT,
        "minutes.%": NUMBER,
        "total_minutes": NUMBER,
        "provenance.command": TEXT,
    },
    "speedrun": {
        **dict.fromkeys(("method", "recipe", "timed_on"), TEXT),
        **dict.fromkeys(("seconds.training", "seconds.all_in"), NUMBER),
        **dict.fromkeys(("steps", "images_seen"), COUNT),
        "seed": WHOLE,
        "shares_gpu?": FLAG,
        "sessions": ITEMS,
        "sessions.*.commit~": TEXT,
    },
    "speedrun row": {  # what docs/speedrun.md shows besides
        "data": TEXT,
        "held_out": FLAG,
        "changed": OBJECT,
        "provenance": OBJECT,
        "sessions.*": OBJECT,
    },
    "tuning": {
        "chosen": OBJECT,
        "chosen.%": OBJECT,
        "chosen.%.%": NUMBER,
        "trials.*.lr": NUMBER,
        "trials.*.training": TEXT,
        "trials.*.family": TEXT,
        "trials.*.metric": TEXT,
        "trials.*.value": NUMBER,
        "trials.*.low": NUMBER,
        "trials.*.high": NUMBER,
        "trials.*.steps": COUNT,
        "trials.*.n": COUNT,
        "trials.*.k?": COUNT,
    },
}


def check_form(content: dict[str, Any], kind: str, file: str) -> None:
    """Refuse a result that the page cannot show."""
    for path, rule in {**_ORIGIN, **FORMS.get(kind, {})}.items():
        for problem in _problems(content, path.split("."), rule, ""):
            raise InputError(f"{file} {problem}, which the report shows; {AGAIN}")


def _problems(value: Any, path: list[str], rule: Rule, here: str) -> Iterator[str]:
    """What is wrong at the end of a path, or on the way to it."""
    if not path:
        if not rule[1](value):
            yield f"has {here} {short(value, 40)}, not {rule[0]}"
        return
    name, *rest = path
    if name in ("*", "%"):
        kind = list if name == "*" else dict
        if not isinstance(value, kind):
            yield f"has no field {here}[0]" if kind is list else f"has {here}, which is no object"
            return
        parts = enumerate(value) if isinstance(value, list) else value.items()
        for place, part in parts:
            yield from _problems(part, rest, rule, f"{here}[{place}]" if name == "*" else f"{here}.{place}")
        return
    name, mark = (name[:-1], name[-1]) if name[-1] in "?~" else (name, "")
    name, _, older = name.partition("|")
    name = older if older and isinstance(value, dict) and name not in value and older in value else name
    there = f"{here}.{name}" if here else name
    if not isinstance(value, dict) or name not in value:
        if not (mark == "?" and isinstance(value, dict)):
            yield f"has no field {there}"
    elif value[name] is not None or not mark:
        yield from _problems(value[name], rest, rule, there)
