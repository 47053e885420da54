"""A run directory with one result of each kind, written by hand: two models, one of them trained."""

from pathlib import Path
from typing import Any

import numpy as np

from mixlab.run import RunDirectory
from mixlab.run.directory import file_name

ORIGIN = {
    "command": "mixlab auc vit --data 'a b'",
    "seed": 3,
    "date": "2026-01-02T03:04:05+00:00",
    "machine": {"device": "cpu", "processor": "a processor", "system": "Linux"},
    "versions": {"mixlab": "0.1.0", "torch": "2.11", "timm": "1.0", "numpy": "2.0"},
    "commit": None,
}
HEADS, LAYERS, SIDE, CHUNK = 2, 3, 8, 4


def subject(label: str, family: str, training: str = "dino") -> dict[str, Any]:
    about = {"label": label, "model": f"{label}_tiny", "family": family, "training": training, "seed": 0}
    return about | {"num_parameters": 1000, "num_layers": LAYERS, "num_registers": 0, "causal": False}


def make_example(folder: Path, labels: tuple[str, str] = ("vit", "vim")) -> RunDirectory:
    run = RunDirectory.create(folder)
    run.write_config({"command": "example", "seed": 0})
    families = ("attention", "mamba2")
    subjects = [subject(label, family) for label, family in zip(labels, families, strict=True)]
    for place, about in enumerate(subjects):
        _judged(folder, about, top1=0.5 + 0.1 * place, untrained=0.2)
        _ranks(run, about)
    write_scores(run, subjects)
    _pictures(run, subjects)
    run.write_result("claims", {"kind": "claims", "claims": [_claim(1, "supported"), _claim(2, "not measured")]})
    return run


def keep_results(run: RunDirectory, *names: str) -> None:
    """Remove all other results of a run: a page draws all that it finds."""
    for file in (run.path / "results").iterdir():
        if file.stem not in names:
            file.unlink()


def _judged(folder: Path, about: dict[str, Any], *, top1: float, untrained: float) -> None:
    label = about["label"].replace("/", "_")
    run, twin = RunDirectory.create(folder / label), RunDirectory.create(folder / label / "untrained")
    run.write_config({"seed": 0, "data": "shapes", "recipe": "r", "settings": {"method": {"kind": "dino"}}})
    for step in range(0, 50, 10):
        run.append_metrics({"step": step, "loss": 5 - step / 25, "knn_accuracy": 0.1 + step / 1000})
    for where, training, value in ((run, "dino", top1), (twin, "untrained", untrained)):
        figure = {"value": value, "low": value - 0.05, "high": value + 0.05, "n": 200, "data": "shapes"}
        record = about | {"training": training, "metric": "knn_top1"} | figure
        result = {"kind": "knn", "num_classes": 10, "measurements": [record], "provenance": ORIGIN}
        where.write_result(f"knn_{label}", result)
    speed = about | {"metric": "images_per_s", "value": 100.0, "low": 90.0, "high": 110.0, "n": 10}
    cost = {"kind": "cost", "subject": about, "num_parameters": 1000, "macs": 2_500_000, "measurements": [speed]}
    run.write_result("cost", cost | {"provenance": ORIGIN})


def _figure(mean: float) -> dict[str, Any]:
    return {"mean": mean, "low": mean - 0.02, "high": mean + 0.02, "n": 150, "undefined": 0}


def _row(about: dict[str, Any], layer: int, index: int | None, mean: float) -> dict[str, Any]:
    names = ("auc", "raw_auc", "centre_prior", "untrained")
    row = about | {"map": "cosine", "layer": layer, "index": index} | {name: _figure(mean) for name in names}
    return row | {"above_untrained": _figure(0.1)}


def write_scores(run: RunDirectory, subjects: list[dict[str, Any]]) -> None:
    rows = {
        "model": [_row(about, LAYERS - 1, None, 0.6) for about in subjects],
        "layer": [_row(about, layer, None, 0.4 + 0.1 * layer) for about in subjects for layer in range(LAYERS)],
        "map": [
            _row(about, LAYERS - 1, None, 0.6 + 0.1 * place) | {"map": kind}
            for about in subjects
            for place, kind in enumerate(("cosine", "norm"))
        ],
        "head": [_row(about, 2, head, 0.4 + 0.2 * head) for about in subjects for head in range(HEADS)],
    }
    for study, of in rows.items():
        found = [
            {key: value for key, value in row.items() if not isinstance(value, dict)}
            | {"metric": metric, "value": row[name]["mean"], "low": row[name]["low"], "high": row[name]["high"]}
            | {"n": 150, "study": study, "data": "shapes"}
            for row in of
            for metric, name in (("binary_auc", "auc"), ("above_untrained", "above_untrained"))
        ]
        gap = {"first": "vit", "second": "vim", "map": "cosine", "second_map": "pooled_cosine", "n": 150}
        gap |= {"difference": _figure(-0.01)}
        result = {"kind": "auc", "study": study, "data": "shapes", "rows": of, "comparisons": [gap], "correlations": {}}
        run.write_result(f"auc_{study}", result | {"measurements": found, "provenance": ORIGIN})


def _ranks(run: RunDirectory, about: dict[str, Any]) -> None:
    spread = {"mean": 2.5, "min": 1.0, "max": 4.0, "std_over_images": 0.1, "std_over_heads": 0.2}
    measures = dict.fromkeys(("numerical", "practical", "effective", "stable", "energy", "bound"), spread)
    overall = {"off_diagonal": measures, "bound_holds": True}
    overall["distance"] = {"self_share": 0.25, "distance_to_others": 3.0}
    layers = [{"layer": layer, "off_diagonal": measures} for layer in range(LAYERS)]
    result = {"kind": "rank", "subject": about, "image": 64, "chunk": CHUNK, "num_tokens": SIDE, "num_images": 1}
    blocks = [
        [
            0,
            LAYERS - 1,
            head,
            row == column,
            row,
            column,
            CHUNK,
            CHUNK,
            0,
            4,
            4,
            4,
            1.5 + row + 10 * column,
            1,
            1,
            -1,
            -1,
            0,
        ]
        for head in range(HEADS)
        for row in range(2)
        for column in range(2)
    ]
    arrays = {
        "blocks": np.array(blocks, dtype=np.float64),
        "off_diagonal_spectrum": np.tile(10.0 ** -np.arange(CHUNK), (LAYERS, HEADS, 1)),
        "grid_profile": np.full((LAYERS, HEADS, 5), 0.2),
    }
    result |= {"overall": overall, "layers": layers, "measurements": [], "provenance": ORIGIN}
    run.write_result(f"rank_{about['label'].replace('/', '_')}", result, arrays)


def _pictures(run: RunDirectory, subjects: list[dict[str, Any]]) -> None:
    random = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        "images": random.integers(0, 255, (2, 3, 16, 16), dtype=np.uint8),
        "masks": random.integers(0, 2, (2, 16, 16), dtype=np.uint8),
    }
    matrices: dict[str, Any] = {"image": arrays["images"][0]}
    for about in subjects:
        name = file_name(about["label"])
        arrays[f"map_{name}"] = random.random((2, 4, 4), dtype=np.float32)
        arrays[f"pca_first_{name}"] = random.random((2, 4, 4), dtype=np.float32)
        arrays[f"pca_colours_{name}"] = random.integers(0, 255, (2, 4, 4, 3), dtype=np.uint8)
        matrices[name] = random.integers(0, 255, (HEADS, SIDE, SIDE), dtype=np.uint8)
        matrices[f"reading_{name}"] = random.random((4, 4), dtype=np.float32)
        matrices[f"ranks_{name}"] = np.tile([[1.5, 11.5], [2.5, np.nan]], (HEADS, 1, 1))
    maps = {"kind": "maps", "data": "shapes", "images": ["one", "two"], "layer": -1, "subjects": subjects}
    maps |= {"maps": {about["label"]: "cosine" for about in subjects}, "pca": {"fit": "image"}, "figures": []}
    run.write_result("maps", maps | {"provenance": ORIGIN}, arrays)
    looked = {"layer": LAYERS - 1, "heads": [0, 1], "num_heads": HEADS, "num_tokens": SIDE, "chunk": CHUNK}
    looked |= {"patch": [1, 2]}
    models = [about | looked | {"run_and_look_differ_by": 2e-7} for about in subjects]
    result = {"kind": "matrices", "image": 64, "images": ["one"], "decades": 4, "models": models}
    run.write_result("matrices", result | {"provenance": ORIGIN}, matrices)


def _claim(number: int, status: str) -> dict[str, Any]:
    claim = {
        "number": number,
        "paper": "a paper",
        "place": "eq. 1",
        "statement": f"statement {number}",
        "kind": "theorem",
    }
    return claim | {"status": status, "measured": "what was found", "scale": "small", "value": 1.0}
