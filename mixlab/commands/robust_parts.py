"""Parts of a score that were made apart, by `mixlab robust --shard`: which go together, and their sum."""

from collections.abc import Sequence
from typing import Any

from mixlab.evaluation.robustness import SetScore
from mixlab.run import RunDirectory

ALIKE = {"subject": "subject", "checksum": "classifier", "limit": "limit", "view": "view"}  # and what to call it


def parts_like(
    directory: RunDirectory, stem: str, part: int, parts: int
) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """The stored parts that go with this one, and the number of each that does not, with what is different."""
    results = directory.results()
    stored = {number: results.get(f"{stem}.{number}-of-{parts}") for number in range(parts)}
    own = stored[part]
    assert own is not None
    alike, others = [], {}
    for number, result in stored.items():
        if result is None:
            continue
        different = [name for key, name in ALIKE.items() if result.get(key) != own[key]]
        if result["counts"].keys() != own["counts"].keys():
            different.append("choice of sets")
        if different:
            others[number] = ", ".join(different)
        else:
            alike.append(result)
    return alike, others


def join_parts(results: Sequence[dict[str, Any]]) -> dict[str, SetScore]:
    """The scores of all parts put together."""
    whole: dict[str, SetScore] = {}
    for result in results:
        for name, counts in result["counts"].items():
            if name in whole:
                whole[name].add(SetScore(**counts))
            else:
                whole[name] = SetScore(**counts)
    return whole
