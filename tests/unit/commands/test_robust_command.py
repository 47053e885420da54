"""`mixlab robust` from a probed run to the paper's table."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import command
from look_runs import make_run
from PIL import Image

import mixlab
from mixlab.cli import main
from mixlab.commands.robust import parse_sets, parse_shard
from mixlab.data.imagenet_labels import imagenet_a_classes, imagenet_classes, real_labels
from mixlab.evaluation.probe_head import ProbeHead, load_head, save_head
from mixlab.run import RunDirectory, measurements_of

probe = command("probe")
robust = command("robust")

CLASSES = list(imagenet_a_classes()[:3])
COLOURS = [(250, 10, 10), (10, 250, 10), (10, 10, 250)]
OPTIONS = {"workers": 0, "device": "cpu"}
V2_TI = "imagenetv2-top-images-format-val"


def draw(folder: Path, names: list[str], number: int) -> None:
    for name, colour in zip(names, COLOURS, strict=True):
        (folder / name).mkdir(parents=True)
        for index in range(number):
            Image.new("RGB", (64, 64), tuple(min(part + 3 * index, 255) for part in colour)).save(
                folder / name / f"{index}.png"
            )


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run whose probe tells three colours apart under names of ImageNet classes, and sets to score it on."""
    place = tmp_path_factory.mktemp("robust")
    torch.manual_seed(0)
    run = make_run(place / "vit", "vit_tiny")
    draw(place / "data" / "train", CLASSES, 12)
    draw(place / "data" / "val", CLASSES, 4)
    probe(str(run), data=str(place / "data"), mode="cached", epochs=60, batch=36, strategies=("mean",), blocks=(1,),
          lrs=(1.0,), weight_decays=(0.0,), **OPTIONS)  # fmt: skip
    sets = place / "sets"
    draw(sets / "imagenet-a", CLASSES, 2)
    numbers = [str(imagenet_classes().index(synset)) for synset in CLASSES]
    draw(sets / V2_TI, numbers, 3)
    draw(sets / "val", CLASSES, 2)
    image = next(n for n, labels in enumerate(real_labels()) if imagenet_classes().index(CLASSES[1]) in labels)
    Image.new("RGB", (64, 64), COLOURS[1]).save(sets / "val" / CLASSES[1] / f"ILSVRC2012_val_{image + 1:08d}.png")
    return run, sets


def test_a_probed_run_is_scored_on_every_set_that_is_found(
    probed: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run, sets = probed
    main(["robust", str(run), "--data", str(sets), "--workers", "0", "--device", "cpu", "--json", "-"])
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    assert {name: (part["top1"], part["n"]) for name, part in result["sets"].items()} == {
        "val": (1.0, 7), "v2-ti": (1.0, 9), "a": (1.0, 6), "real": (1.0, 1)
    }  # fmt: skip
    assert result == RunDirectory.open(run).results()["robust_vit"]
    assert "197 classes have no image" in " ".join(printed.err.split())
    assert result["subject"]["classifier"] == "cached probe, 60 epochs, 1 x mean, stream"
    found = measurements_of(result, "here")
    assert [m["data"] for m in found] == ["imagenet-v2-ti", "imagenet-a", "imagenet-real"]
    assert {m["classifier"] for m in found} == {"cached probe, 60 epochs"}
    assert all(part["paper"] is None and not part["complete"] for part in result["sets"].values())


def test_shards_are_put_together_when_the_last_one_is_there(probed: tuple[Path, Path], tmp_path: Path) -> None:
    run, sets = probed
    for part in range(3):
        result = robust(str(run), data=[f"v2-ti={sets / V2_TI}"], shard=f"{part}/3",
                        run=tmp_path / "out", **OPTIONS)  # fmt: skip
        assert ("sets" in result) == (part == 2)
        assert result["counts"]["v2-ti"]["n"] == (9 if part == 2 else 3)
    assert result["sets"]["v2-ti"]["top1"] == 1.0
    whole = robust(str(run), data=[f"v2-ti={sets / V2_TI}"], run=tmp_path / "whole", **OPTIONS)
    assert result["measurements"] == whole["measurements"] and whole["measurements"][0]["by_image"] == 9 * "1"


def test_parts_of_another_classifier_limit_or_view_count_as_missing(
    probed: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, sets = probed
    backbone = mixlab.model_from_file(run / "weights.safetensors")
    old = load_head(run / "probe" / "cached" / "best_head.safetensors", backbone)
    wrong = ProbeHead(old.weight.roll(1, 0), old.bias.roll(1, 0), old.input, old.source, old.classes, old.about)
    save_head(wrong, tmp_path / "retrained.safetensors")
    v2, a = (f"{name}={sets / folder}" for name, folder in (("v2-ti", V2_TI), ("a", "imagenet-a")))

    def part(shard: str, data: str = v2, **options: object) -> dict[str, Any]:
        return robust(str(run), data=[data], shard=shard, run=tmp_path / "out", **OPTIONS, **options)

    for other in ({"head": tmp_path / "retrained.safetensors"}, {"limit": 6}, {"crop_share": 0.5}, {"data": a}):
        part("0/2", **other)
        capsys.readouterr()
        assert "sets" not in part("1/2")
        assert "part 0 of 2 has another" in " ".join(capsys.readouterr().err.split())
    assert part("0/2")["sets"]["v2-ti"]["top1"] == 1.0
    both = part("1/2", head=tmp_path / "retrained.safetensors")  # no other part has replaced its first one
    assert both["counts"]["v2-ti"]["n"] == 9 and both["sets"]["v2-ti"]["top1"] == 0.0
    assert sorted(m.value for m in RunDirectory.open(tmp_path / "out").measurements()) == [0.0, 1.0]


def test_sets_and_changed_images_keep_files_of_their_own(probed: tuple[Path, Path], tmp_path: Path) -> None:
    run, sets = probed
    images = str(sets.parent / "data")
    on_sets = robust(str(run), data=[f"a={sets / 'imagenet-a'}"], run=tmp_path / "apart", **OPTIONS)
    changed = robust(str(run), shifts=images, run=tmp_path / "apart", **OPTIONS)
    both = robust(str(run), data=[f"a={sets / 'imagenet-a'}"], shifts=images, run=tmp_path / "at once", **OPTIONS)
    apart, at_once = (RunDirectory.open(tmp_path / name).results() for name in ("apart", "at once"))
    assert apart == {"robust_vit": on_sets, "shifts_vit": changed}
    for name, result in at_once.items():
        assert result["measurements"] == apart[name]["measurements"] and result["measurements"]
    assert both["measurements"] == on_sets["measurements"] + changed["measurements"]


def test_a_run_is_scored_by_the_classifier_it_was_trained_with_before_and_after_a_probe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, other, data = tmp_path / "sup", make_run(tmp_path / "other", "vit_tiny"), "shapes:n=20,size=32"
    small = ("model.dim=32", "model.depth=1", "steps=1", "batch=8", "optim.warmup_steps=0", "knn.every_epochs=0")
    settings = [part for setting in small for part in ("--set", setting)]
    main(["train", "supervised_vit_tiny64", "--data", data, "--run", str(run), "--device", "cpu", *settings])
    own, head = run / "classifier.safetensors", run / "probe" / "cached" / "best_head.safetensors"

    def scored(*options: str) -> tuple[dict[str, Any], str]:
        capsys.readouterr()
        main(["robust", str(run), "--shifts", data, "--workers", "0", "--device", "cpu", "--json", "-", *options])
        printed = capsys.readouterr()
        return json.loads(printed.out), " ".join(printed.err.split())

    before, said = scored()
    assert before["subject"]["classifier"] == "trained with it" and "corrupted; classifier: trained with it" in said
    probe(str(run), data=data, mode="cached", epochs=1, strategies=("cls",), blocks=(1,), batch=20, **OPTIONS)
    after, said = scored()
    assert after["measurements"] == before["measurements"] and f"this run also has a probe: --head {head}" in said
    assert scored("--head", str(own))[0]["measurements"] == before["measurements"]
    probed, said = scored("--head", str(head))
    assert "classifier: cached probe, 1 epochs, 1 x cls, stream" in said and probed["checksum"] != before["checksum"]
    assert {m["classifier"] for m in measurements_of(probed, "here")} == {"cached probe, 1 epochs"}
    in_memory = mixlab.load_classifier(mixlab.model_from_file(run), head=own)
    assert in_memory.checksum == before["checksum"]
    with pytest.raises(ValueError, match="was trained with the network of .*sup, not other; score that run"):
        robust(str(other), shifts=data, head=own, **OPTIONS)


def test_a_target_without_a_classifier_and_wrong_names_get_a_sentence(
    probed: tuple[Path, Path], tmp_path: Path
) -> None:
    _, sets = probed
    bare = make_run(tmp_path / "bare", "vit_tiny")
    with pytest.raises(ValueError, match="has no classifier: give --head FILE, probe it first"):
        robust(str(bare), data=[str(sets)], **OPTIONS)
    with pytest.raises(ValueError, match="'v3' in .* is not a known set; choose among val, v2-mf"):
        parse_sets(["v3=/nowhere"])
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        parse_sets([f"a={tmp_path / 'nowhere'}"])
    for text in ("4/4", "1", "a/b"):
        with pytest.raises(ValueError, match="is not I/N"):
            parse_shard(text)
