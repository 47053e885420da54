"""How demo and study score a training run: kNN and linear probes, of it and of its untrained twin."""

from collections.abc import Iterator
from pathlib import Path

from mixlab.backbones.weights import model_from_file, save_weights
from mixlab.backbones.zoo import SHIPPED, create_model
from mixlab.run import RunDirectory
from mixlab.studies.steps import Step


def score_run(
    run: Path,
    label: str,
    *,
    data: str,
    seed: int,
    heads: tuple[str, ...] | None,
    here: tuple[str, ...],
    twin: bool = True,
    shipped: str | None = None,
) -> Iterator[Step]:
    """Steps after `train LABEL`; `heads` are the arguments of `mixlab probe`, None for no probe. The run of a `shipped`
    network, which nobody trains here, holds its results alone."""
    trained = (f"train {label}",) if shipped is None else ()
    named = (f"{run}={label}",) if shipped is None else (f"{shipped}={label}", "--run", str(run))
    cases = [("", run, trained, named)]
    if twin:
        place = run / "untrained"
        made = Step(
            f"twin {label}",
            f"{label}: an untrained twin",
            "the same network with random weights, as a baseline",
            ("twin", shipped or str(run), str(place), str(seed)),
            place / "config.json",
            needs=trained,
        )
        yield made
        cases.append((" untrained", place, (made.name,), (f"{place}={label}", "--training", "untrained")))
    for note, place, needs, (target, *said) in cases:
        rest = (target, "--data", data, "--seed", str(seed), *said)
        reads = ((f"twin {label}", place / "weights.safetensors"),) if note else ()
        yield Step(
            f"knn {label}{note}",
            f"{label}{note}: nearest neighbours",
            "are validation images of one class near each other in feature space?",
            ("knn", *rest),
            place / "results" / f"knn_{label}.json",
            here=here,
            needs=needs,
            reads=reads,
        )
        if heads is not None:
            yield Step(
                f"probe {label}{note}",
                f"{label}{note}: linear probes",
                "can a linear layer predict the class from the frozen features?",
                ("probe", *rest, *heads),
                place / "results" / "probe.json",
                here=here,
                needs=needs,
                reads=reads,
            )


def write_twin(run: str, out: str, seed: str) -> None:
    """The backbone of a run, or a shipped one, with fresh weights, as a run of its own."""
    trained = create_model(run) if run in SHIPPED else model_from_file(Path(run) / "weights.safetensors")
    twin = trained.twin(int(seed))
    folder = RunDirectory.create(out)
    folder.write_config({"seed": int(seed), "twin_of": Path(run).name})
    save_weights(twin, folder.path / "weights.safetensors")
