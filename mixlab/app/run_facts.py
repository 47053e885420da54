"""What a run directory says of its model, in a few words for its card."""

from typing import Any

from mixlab.run import RunDirectory
from mixlab.run.directory import flat_records

METRICS = {"knn_top1": "kNN", "probe_top1": "linear probe"}


def run_facts(run: RunDirectory) -> tuple[str, ...]:
    """Its data, then its best figure of each known metric, in per cent."""
    config = run.read_config() if (run.path / "config.json").is_file() else {}
    facts = [f"data {config['data']}"] if isinstance(config.get("data"), str) else []
    records = [record for result in run.results().values() for record in _measurements(result)]
    for metric, name in METRICS.items():
        values = [record["value"] for record in records if record.get("metric") == metric and _is_whole_model(record)]
        if values:
            facts.append(f"{name} {100 * max(values):.1f} %")
    return tuple(facts)


def _measurements(result: dict[str, Any]) -> list[dict[str, Any]]:
    found = flat_records(result, "a result")
    return [record for record in found if isinstance(record, dict) and isinstance(record.get("value"), int | float)]


def _is_whole_model(record: dict[str, Any]) -> bool:
    return record.get("register") is None
