"""How demo and study score a training run: kNN and linear probes, of it and of its untrained twin."""

from collections.abc import Iterator
from pathlib import Path

from mixlab.backbones.weights import model_from_file, save_weights
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
) -> Iterator[Step]:
    """Steps after `train LABEL`; `heads` are the arguments of `mixlab probe`, None for no probe."""
    cases = [("", run, f"train {label}", tuple[str, ...]())]
    if twin:
        place = run / "untrained"
        made = Step(
            f"twin {label}",
            f"{label}: an untrained twin",
            "the same network with random weights, as a baseline",
            ("twin", str(run), str(place), str(seed)),
            place / "config.json",
            needs=(f"train {label}",),
        )
        yield made
        cases.append((" untrained", place, made.name, ("--training", "untrained")))
    for note, place, needs, said in cases:
        rest = (f"{place}={label}", "--data", data, "--seed", str(seed), *said)
        yield Step(
            f"knn {label}{note}",
            f"{label}{note}: nearest neighbours",
            "are validation images of one class near each other in feature space?",
            ("knn", *rest),
            place / "results" / f"knn_{label}.json",
            here=here,
            needs=(needs,),
        )
        if heads is not None:
            yield Step(
                f"probe {label}{note}",
                f"{label}{note}: linear probes",
                "can one linear layer read the class off the frozen features?",
                ("probe", *rest, *heads),
                place / "results" / "probe.json",
                here=here,
                needs=(needs,),
            )


def write_twin(run: str, out: str, seed: str) -> None:
    """The backbone of a run with fresh weights, as a run of its own."""
    folder = RunDirectory.create(out)
    folder.write_config({"seed": int(seed), "twin_of": Path(run).name})
    twin = model_from_file(Path(run) / "weights.safetensors").twin(int(seed))
    save_weights(twin, folder.path / "weights.safetensors")
