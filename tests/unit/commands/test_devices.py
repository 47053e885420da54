"""`--device` is the same for every command: what it takes, what it says, what it answers where there is no GPU."""

import pytest
import torch
from command_line import help_of

from mixlab.cli import COMMANDS, main

SAID = "auto (a GPU if there is one), cpu, cuda or cuda:N. (default: auto)"


def test_every_command_says_the_same_of_its_device() -> None:
    said = {name: options["--device"] for name in COMMANDS if "--device" in (options := help_of(name))}
    assert len(said) >= 12
    assert all(SAID in text for text in said.values()), said


@pytest.mark.parametrize(
    "arguments",
    [
        ["maps", "vit_tiny"],
        ["rank", "vit_tiny"],
        ["auc", "vit_tiny"],
        ["app", "vit_tiny"],
        ["app"],
        ["knn", "vit_tiny"],
        ["probe", "vit_tiny"],
        ["robust", "vit_tiny", "--shifts", "shapes:n=20"],
        ["pretrain", "dino_vit_tiny64", "--data", "shapes:n=64", "--run", "run"],
        ["train", "supervised_vit_tiny64", "--data", "shapes:n=64", "--run", "run"],
        ["segment", "segment_vit_tiny64", "--data", "shapes:n=64", "--run", "run"],
        ["detect", "detect_vit_tiny64", "--data", "shapes:n=64", "--run", "run"],
        ["study", "miniature", "--run", "run", "--data", ".", "--masks", "shapes"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_gpu_that_is_not_there_is_the_same_sentence_everywhere(
    arguments: list[str], tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for device, words in (("cuda", "torch sees no GPU here"), ("gpu", "choose auto, cpu, cuda or cuda:N")):
        assert main([*arguments, "--device", device]) == 1
        assert f"device '{device}'" in (said := " ".join(capsys.readouterr().err.split())) and words in said
