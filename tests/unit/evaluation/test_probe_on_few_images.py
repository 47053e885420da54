"""Linear probes where there are few images: enough steps, a wide range of rates, and doubts that are said."""

import re
from pathlib import Path

import pytest
import torch
from command_line import command

import mixlab
from mixlab.evaluation.accuracy import Accuracy
from mixlab.evaluation.features import FeaturePlan
from mixlab.evaluation.probe.heads import Head
from mixlab.evaluation.probe.result import GridScores
from mixlab.evaluation.settings import LRS, ProbeSettings

PLAN = FeaturePlan((), "stream", ())


def test_few_images_get_small_batches_and_higher_rates_and_the_papers_data_get_the_papers() -> None:
    small = ProbeSettings().for_data(600)
    assert small.batch == 64 and set(LRS) < set(small.lrs) and max(small.lrs) > 100 * max(LRS)
    for number in (12_811, 1_281_167):  # 1 % of ImageNet, and all of it
        full = ProbeSettings().for_data(number)
        assert (full.batch, full.lrs, full.epochs) == (1024, LRS, 100)
    assert ProbeSettings(batch=7, lrs=(1.0,)).for_data(600) == ProbeSettings(batch=7, lrs=(1.0,))


def scores(correct: dict[float, int], knn: int) -> GridScores:
    """Heads by learning rate, each with so many of ten images right."""
    heads = tuple(Head(1, "cls", lr, 0.0) for lr in correct)
    right = torch.stack([torch.arange(10) < number for number in correct.values()])
    finite = torch.ones(len(heads), dtype=torch.bool)
    return GridScores(heads, right, finite, PLAN, 4, 10, torch.arange(10), {}, Accuracy(knn, 10))


@pytest.mark.parametrize(
    ("correct", "knn", "said"),
    [
        ({0.1: 3, 0.2: 5, 0.4: 4}, 5, []),
        ({0.1: 3, 0.2: 5, 0.4: 5}, 1, []),  # as good within
        ({0.1: 3, 0.2: 5, 0.4: 6}, 1, ["0.4, is the highest that was tried; add 1.6 to --lrs"]),
        ({0.1: 7, 0.2: 5, 0.4: 6}, 1, ["0.1, is the lowest that was tried; add 0.025 to --lrs"]),
        ({0.1: 3, 0.2: 5, 0.4: 4}, 6, ["below nearest neighbours in the same features, 50.0 % against 60.0 %"]),
        ({0.2: 5}, 1, []),  # one rate has no edge
        (dict.fromkeys((0.01 * n for n in range(1, 12)), 5), 1, ["of 11 heads was chosen on the same 10 images"]),
    ],
)
def test_doubts_name_what_is_at_the_edge_or_below_nearest_neighbours(
    correct: dict[float, int], knn: int, said: list[str]
) -> None:
    found = scores(correct, knn).doubts()
    assert len(found) == len(said) and all(words in doubt for words, doubt in zip(said, found, strict=True))


def test_the_command_says_the_cost_first_and_compares_with_nearest_neighbours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = mixlab.create_model("vit_tiny", dim=32, depth=1, patch=8, image=32, head_dim=16)
    mixlab.save_weights(model, tmp_path / "vit.safetensors")
    options = {"data": "shapes:n=40,size=32", "epochs": 1, "workers": 0, "device": "cpu", "blocks": (1,)}
    call = options | {"strategies": ("cls",), "weight_decays": (0.0,), "run": tmp_path / "run"}
    probe = command("probe")
    found = probe(str(tmp_path / "vit.safetensors"), **call)["modes"]["augmented"]
    said = " ".join(capsys.readouterr().err.split())
    whole = r"about \d+ (s|min), of which the heads take \d+ (s|min)"
    cost = (
        "8 heads of 10 classes, augmented: 1 epoch of 40 images in batches of 16, each through the network every time, "
        f"{whole}; --mode cached passes each once, {whole}"
    )
    assert re.search(cost, said)
    assert found["knn"]["n"] == 40 and found["batch"] == 16 and len(found["heads"]) == 8
    again = probe(str(tmp_path / "vit.safetensors"), **call, mode="cached")["modes"]["cached"]
    assert again["knn"]["correct"] == found["knn"]["correct"]  # of plain images in both modes
