"""A study's own small jobs, for which there is no command: the choice of learning rates, and speed against tokens."""

import gc
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mixlab.evaluation.target import Target
from mixlab.recipes import find_recipe
from mixlab.run import Measurement, RunDirectory, provenance
from mixlab.run.files import read_json
from mixlab.run.protocols import SpeedProtocol
from mixlab.run.provenance import device_name
from mixlab.statistics import median_interval
from mixlab.studies.speedrun.record import K
from mixlab.training.distributed import choose_device, make_current

REPEATS, WARM_UP = 12, 3
METRICS = {"dino": "knn_top1", "supervised": "top1"}


def choose_rates(run: str, *trials: str) -> dict[str, Any]:
    """RUN/results/tuning.json: every trial TRAINING/FAMILY/RATE with its accuracy, and the best of each family; trials
    of other families that are there already stay. "dino-tiny" is a training of the kind dino. kNN: with K neighbours.
    """
    place = RunDirectory.create(run)
    known = read_json(place.file_of("tuning")) if place.file_of("tuning").is_file() else {"trials": []}
    asked = {tuple(trial.split("/")[:2]) for trial in trials}
    rows: list[dict[str, Any]] = [row for row in known["trials"] if (row["training"], row["family"]) not in asked]
    for trial in trials:
        training, family, rate = trial.split("/")
        folder = RunDirectory.open(Path(run) / "tuning" / f"{training}-{family}-{rate}")
        own = [m for m in folder.measurements() if m.metric == METRICS[training.partition("-")[0]]]
        found = min(own, key=lambda m: m["k"] not in (None, K))
        config = folder.read_config()
        rows.append(
            {
                "training": training,
                "family": family,
                "lr": float(rate),
                "steps": config["settings"]["steps"],
                "seed": config["seed"],
                "command": config["command"],
                "k": found["k"],
                **{key: getattr(found, key) for key in ("metric", "value", "low", "high", "n")},
            }
        )
    chosen: dict[str, dict[str, float]] = {}
    for row in sorted(rows, key=lambda row: row["value"]):  # the best comes last
        chosen.setdefault(row["training"], {})[row["family"]] = row["lr"]
    about = "every fifth image of each class of the training part, which no comparison uses"
    result = {"kind": "tuning", "judged_on": about, "chosen": chosen, "trials": rows, "provenance": provenance()}
    place.write_result("tuning", result)
    return result


def write_scaling(run: str, sizes: str, batch_tokens: str, *rest: str) -> dict[str, Any]:
    """RUN/results/scaling.json: images per second and peak memory of each LABEL=RECIPE at each size."""
    *models, device = rest
    where = choose_device(device)
    make_current(where)
    precision = "bf16" if where.type == "cuda" else "fp32"
    here: dict[str, Any] = {
        "device": device_name(device),
        "threads": torch.get_num_threads() if where.type == "cpu" else None,
    }
    rows: list[dict[str, Any]] = []
    records: list[dict[str, Any]] = []
    for side in map(int, sizes.split(",")):
        for text in models:
            label, _, recipe = text.partition("=")
            config = find_recipe(recipe).model
            tokens = (side // config.fields["patch"]) ** 2
            backbone = config.build().to(where)
            target = Target(label=label, backbone=backbone)
            images = torch.randn(max(1, int(batch_tokens) // tokens), 3, side, side, device=where)
            protocol = SpeedProtocol(
                data="noise", px=side, tokens=tokens, batch=len(images), precision=precision, **here
            )
            for kind, step in {"forward": forward, "training": forward_backward}.items():
                if where.type == "cuda":
                    gc.collect()
                    torch.cuda.empty_cache()
                rates, gib, graph = _measure(step(backbone, images), where, len(images))
                rate = median_interval(rates)
                row = {"label": label, "px": side, "tokens": tokens, "batch": len(images), "pass": kind}
                figure = {"value": rate.value, "low": rate.low, "high": rate.high}
                rows.append({**row, "images_per_s": figure, "n": rate.n, "peak_gib": gib, "graph": graph})
                about: dict[str, Any] = {"subject": target.subject, "seed": None}
                launched = replace(protocol, graph=graph)
                records.append(Measurement.of(f"{kind}_images_per_s", rate, protocol=launched, **about).to_json())
                if gib is not None:  # of a pass that was launched kernel by kernel, in any case
                    peak = Measurement(metric=f"{kind}_peak_gib", value=gib, n=rate.n, protocol=protocol, **about)
                    records.append(peak.to_json())
    about_memory = "peak GiB of the pass, parameters and gradients included; none on a CPU"
    result = {
        "kind": "scaling",
        "precision": precision,
        "memory": about_memory,
        "rows": rows,
        "measurements": records,
        "provenance": provenance(device=str(where)),
    }
    RunDirectory.create(run).write_result("scaling", result)
    return result


def forward(backbone: nn.Module, images: Tensor) -> Callable[[], None]:
    backbone.eval()

    def step() -> None:
        with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16, enabled=images.is_cuda):
            backbone(images)

    return step


def forward_backward(backbone: nn.Module, images: Tensor) -> Callable[[], None]:
    backbone.train()

    def step() -> None:
        backbone.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=images.is_cuda):
            loss = backbone(images).float().square().mean()
        loss.backward()

    return step


def _measure(
    step: Callable[[], None], device: torch.device, batch: int
) -> tuple[list[float], float | None, bool | None]:
    """Images per second of some passes; on a GPU the peak memory in GiB, and whether they were replays of a graph."""
    if device.type == "cpu":
        step()
        return [batch / _seconds(step) for _ in range(REPEATS)], None, None
    for _ in range(WARM_UP):
        step()
    torch.cuda.reset_peak_memory_stats(device)
    step()
    gib = torch.cuda.max_memory_allocated(device) / 2**30
    replay = _captured(step)
    run = replay or step
    run()
    torch.cuda.synchronize(device)

    def finish() -> None:
        run()
        torch.cuda.synchronize(device)

    return [batch / _seconds(finish) for _ in range(REPEATS)], gib, replay is not None


def _captured(step: Callable[[], None]) -> Callable[[], None] | None:
    """A replay of the step, as a training runs it: launches take no time. None for a step that cannot be captured."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            step()
    except RuntimeError as error:
        warnings.warn(f"cannot be captured as a CUDA graph ({error}); launched kernel by kernel", stacklevel=2)
        return None
    return graph.replay


def _seconds(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
