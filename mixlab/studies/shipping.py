"""Networks to ship: a trained network in few bits, with a card that is made from its run's measurements."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from mixlab.backbones.weights import model_from_file, save_weights
from mixlab.backbones.weights.rows import Bits
from mixlab.data.images import HELD_OUT_OF
from mixlab.errors import InputError
from mixlab.evaluation.knn import evaluate_knn
from mixlab.evaluation.methods import train_config
from mixlab.evaluation.settings import KnnSettings
from mixlab.evaluation.target import load_target
from mixlab.run import Measurement, RunDirectory
from mixlab.run.aside import folder_aside
from mixlab.run.codec import to_json
from mixlab.run.directory import method_of
from mixlab.run.files import write_atomically
from mixlab.statistics import with_interval
from mixlab.studies.speedrun.record import K, changed_settings, listed

MOST_LOST = 0.005  # of the accuracy of nearest neighbours, by fewer bits
NO_LICENCE = "not stated by the run; say under which terms its images may be used"
MEANT = "demonstrations, tests and teaching; its accuracy holds for images like those it was trained on"


def ship_network(
    run: Path, out: Path, *, bits: Bits, data: str | None = None, licence: str = NO_LICENCE, device: str | None = "auto"
) -> dict[str, Any]:
    """Write OUT, the weights of a run in few bits, and OUT's card beside it, OUT.md.

    With labelled images, nearest neighbours are asked before and after: a file that loses more than half a point is
    not kept.
    """
    directory = RunDirectory.open(run)
    config = directory.read_config_if_any()
    if "recipe" not in config:
        raise InputError(f"{run} is not a training run: its config.json names no recipe; ship the run that trained it")
    if not (run / "weights.safetensors").is_file():
        raise InputError(f"{run} is not finished: it has no weights.safetensors; run the same command again, then ship")
    model = model_from_file(run)
    said = {"recipe": str(config["recipe"]), "seed": str(config["seed"]), "training": str(method_of(config))}
    lost = None
    with folder_aside(out) as aside:
        made = aside / out.name
        save_weights(model, made, bits=bits, extra_metadata=said)
        if data is not None:
            before, after = lost = (_knn(str(run), data, device), _knn(str(made), data, device))
            if before.value - after.value > MOST_LOST:
                raise InputError(
                    f"{bits} bits change the kNN of {run} from {100 * before.value:.2f} to {100 * after.value:.2f} %, "
                    f"by over 0.5 points; give --bits {'16' if bits == 8 else '8 or 16'}"
                )
        made.replace(out)
    text = card(directory, name=out.stem, bits=bits, num_bytes=out.stat().st_size, lost=lost, licence=licence)
    place = out.with_suffix(".md")
    write_atomically(place, lambda file: file.write(text.encode()))
    return {"file": str(out), "card": str(place), "bits": bits, "bytes": out.stat().st_size}


def card(
    run: RunDirectory,
    *,
    name: str,
    bits: Bits,
    num_bytes: int,
    licence: str,
    lost: tuple[Measurement, Measurement] | None = None,
) -> str:
    """What a network is, was trained on, and scores: from config.json and results/ of its run."""
    config = run.read_config()
    found = [*run.measurements(), *RunDirectory(run.path / "voc").measurements()]
    knn = [m for m in found if m.metric == "knn_top1" and m["k"] == K]
    best = [m for m in found if m.metric == "probe_top1" and m["blocks"] is None]
    maps = [m for m in found if m.metric == "binary_auc" and m["index"] is None]
    beside = {(m.metric, _images(m), m["map"], m["layer"]): m for m in found if m["map"] and m["index"] is None}
    model = config.get("settings", {}).get("model", {})
    start = model["name"] if str(model.get("name")).startswith("shipped/") else Path(model.get("weights") or "").name
    rows = {
        "architecture": f"{_architecture(config)}, {_millions(found)} parameters; the file holds all fields",
        "file": f"{num_bytes / 1e6:.2f} MB, matrices in {bits} bits{', a scale for each row' * (bits < 16)}",
        **({"began from": f"{start}, on whose training images its own card has more"} if start else {}),
        "training": f"{method_of(config)}, {_recipe(config)}, {config['total_steps']:,} steps",
        "seed, commit": f"{config['seed']}, {config.get('commit')}",
        "training data": f"{_name(config['data'])}: {config['num_images']:,} images; {licence}",
        "kNN, k = 20": _scores(knn),
        "linear probe, the best head on these images": _scores(best),
        "kNN in these bits": _lost(lost),
        "meant for": MEANT,
        "licence": "Apache-2.0, as the code; of the training images, see above",
    }
    lines = [f"# {name}", "", "| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in rows.items())]
    if maps:
        lines += ["", "| map, after layer | on | Binary-AUC | centre blob | untrained twin |", "|---|---|---|---|---|"]
    for m in sorted(maps, key=lambda m: (_images(m), str(m["map"]), m["layer"] or 0)):
        others = (beside.get((metric, _images(m), m["map"], m["layer"])) for metric in ("centre_prior", "untrained"))
        cells = " | ".join("" if other is None else f"{other.value:.3f}" for other in others)
        score = with_interval(m.value, m.low, m.high)
        lines.append(f"| {m['map']}, {m['layer']} | {_images(m)} | {score} | {cells} |")
    return "\n".join(lines) + "\n"


def _knn(target: str, data: str, device: str | None) -> Measurement:
    return evaluate_knn(load_target(target, device=device), data, KnnSettings(k=(K,))).measurements[0]


def _scores(found: list[Measurement]) -> str:
    shares = [with_interval(m.value, m.low, m.high, form=".1f", unit=100) for m in found]
    said = (f"{share} % on {_name(m['data'])}, n = {m.n:,}" for share, m in zip(shares, found, strict=True))
    return "; ".join(said) or "not measured"


def _images(m: Measurement) -> str:
    """Which images maps were scored on, and how they were made as large as the network."""
    return f"{_name(m['data'])}, {m['image']} px by {m['fit']}, n = {m.n:,}"


def _lost(lost: tuple[Measurement, Measurement] | None) -> str:
    if lost is None:
        return "not measured"
    before, after = lost
    return f"{100 * after.value:.1f} %, of the run's own {100 * before.value:.1f} % on {_name(after['data'])}"


def _architecture(config: dict[str, Any]) -> str:
    return str(config["architecture"].get("name") or config["architecture"].get("registered"))


def _recipe(config: dict[str, Any]) -> str:
    """Its name, and the settings in which the run differs from it as it is today."""
    recipe, changed = str(config["recipe"]), ""
    with suppress(InputError):  # a recipe of someone's own may not be at hand
        changed = listed(changed_settings(recipe, to_json(train_config(config["settings"]))))
    return ", ".join(filter(None, (f"`{recipe}`", changed)))


def _millions(found: list[Measurement]) -> str:
    sizes = {m.subject.num_parameters for m in found if m.subject.num_parameters}
    return f"{max(sizes) / 1e6:.2f} M" if sizes else "unknown"


def _name(data: str) -> str:
    """A source without the folders above it."""
    held_out = data.startswith(HELD_OUT_OF)
    name = Path(data.removeprefix(HELD_OUT_OF)).name
    return f"a held-out fifth of {name}" if held_out else name
