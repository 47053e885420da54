"""Live scores: which images they use, and that they are the scores they say."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from mixlab.backbones.zoo import create_model
from mixlab.data.crops import normalise
from mixlab.data.dataset_source import DatasetSource
from mixlab.data.given import as_data
from mixlab.data.images import parse_source
from mixlab.data.labelled import align
from mixlab.data.shapes import Shapes
from mixlab.data.source import split
from mixlab.errors import InputError
from mixlab.evaluation.accuracy import write_accuracy
from mixlab.evaluation.knn import evaluate_knn
from mixlab.evaluation.settings import KnnSettings
from mixlab.evaluation.target import load_target
from mixlab.recipes import RECIPES
from mixlab.run import RunDirectory
from mixlab.training.config import KnnConfig
from mixlab.training.dino import DinoConfig
from mixlab.training.distributed import World
from mixlab.training.knn import LabelledFeatures, knn_accuracy
from mixlab.training.live_scores import KnnScores, validation_set
from mixlab.training.loop import train
from mixlab.training.settings import override
from mixlab.training.supervised import SupervisedConfig
from tests.drawn_folders import draw_folders

WORLD = World(torch.device("cpu"))
DATA = "shapes:size=32,n=60"


def backbone():
    torch.manual_seed(0)
    return create_model("vit_tiny", dim=32, depth=1, patch=8, image=32, head_dim=16)


def scores(data: str, recipe: str = "dino", workers: int = 0, **settings: int) -> KnnScores:
    config = RECIPES[f"{recipe}_vit_tiny64"]()
    sizes = {"size": 32} if recipe == "supervised" else {"global_size": 32}
    config = replace(
        config,
        method=replace(config.method, **sizes),
        knn=KnnConfig(**{"bank": 40, "queries": 30, **settings}),
        data=replace(config.data, workers=workers),
    )
    return config.method.scores(data, parse_source(data), config, world=WORLD, precise=nullcontext)


def test_the_live_score_is_knn_on_the_two_splits_of_the_data() -> None:
    recipe = DinoConfig(num_prototypes=8, hidden=8, bottleneck=4).build(
        backbone(), num_classes=0, total_steps=2, steps_per_epoch=1
    )
    ((name, value),) = list(scores(DATA, bank=60, queries=60)(recipe))
    train, val = parse_source(DATA), parse_source(DATA, split="val")
    with torch.no_grad():
        features = [
            recipe.teacher.backbone(
                normalise(torch.stack([source.load_fitted(i, 37, "crop")[0][:, 2:34, 2:34] for i in range(60)]))
            )
            for source in (train, val)
        ]
    bank, queries = (LabelledFeatures(f, s.labels()) for f, s in zip(features, (train, val), strict=True))
    expected = knn_accuracy(bank, queries, num_classes=10, k=20, temperature=0.07, device=WORLD.device)
    assert (name, value) == ("knn_accuracy", pytest.approx(expected))


def test_a_bank_that_is_smaller_than_k_is_asked_for_all_it_has() -> None:
    recipe = SupervisedConfig(size=32).build(backbone(), num_classes=10, total_steps=1, steps_per_epoch=1)
    few, all_of_them = (dict(scores(DATA, "supervised", bank=12, k=k)(recipe)) for k in (20, 12))
    assert few["knn_accuracy"] == all_of_them["knn_accuracy"]


def test_classifiers_also_get_their_accuracy_and_go_back_to_training_mode() -> None:
    recipe = SupervisedConfig(size=32).build(backbone(), num_classes=10, total_steps=1, steps_per_epoch=1)
    recipe.network.train()
    found = dict(scores(DATA, "supervised")(recipe))
    assert set(found) == {"knn_accuracy", "accuracy"} and all(0 <= value <= 1 for value in found.values())
    assert recipe.network.training


@pytest.mark.parametrize(
    ("recipe", "fields"),
    [
        ("supervised_vit_tiny64", ("model.image=80", "model.dim=32", "model.depth=1")),  # trained at another size
        ("supervised_mambaout_femto64", ("model.dims=[8,8,8,8]", "model.depths=[1,1,1,1]", "method.size=32")),
        ("dino_vit_tiny64", ("model.dim=32", "model.depth=1", "method.num_prototypes=16", "method.num_local=0")),
    ],
)
def test_the_last_live_scores_are_what_is_recorded_afterwards(
    recipe: str, fields: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos, _ = draw_folders(tmp_path)
    broken = sorted((photos / "val").rglob("*.png"))[0]
    broken.write_bytes(b"not an image")
    small = ("steps=6", "batch=8", "optim.warmup_steps=0", "optim.lr=0.01", "precision=fp32", "knn.k=5", *fields)
    config = override(RECIPES[recipe](), list(small))
    with pytest.warns(UserWarning, match="skipped"):
        labelled = recipe.startswith("supervised")
        train(config, data=str(photos), run=tmp_path / "run", device="cpu", then=write_accuracy if labelled else None)
        run = RunDirectory(tmp_path / "run")
        live = run.results()["training"]["figures"]
        knn = evaluate_knn(load_target(run.path, device="cpu"), str(photos), KnnSettings(k=(5,)))
    assert live["knn_accuracy"] == pytest.approx(knn.scores[5].estimate.value)
    if labelled:
        score = run.results()["accuracy"]["score"]
        assert live["accuracy"] == pytest.approx(score["top1"]) and score["n"] == knn.scores[5].n
        assert f"accuracy {score['top1']:.4g} [" in capsys.readouterr().err.splitlines()[-1]


def save_images(folder: Path, classes: list[str], each: int) -> None:
    for number, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for index in range(each):
            Image.new("RGB", (40, 32), (60 * number, 10 * index, 0)).save(folder / name / f"{index}.png")


def test_a_folder_without_a_held_out_part_is_cut_so_that_no_query_is_in_the_bank(tmp_path: Path) -> None:
    save_images(tmp_path, ["cat", "dog"], 10)
    assert validation_set(str(tmp_path), parse_source(str(tmp_path))) is None
    bank, queries = split(parse_source(str(tmp_path)))
    in_bank, in_queries = ({part.name(i) for i in range(len(part))} for part in (bank, queries))
    assert len(in_bank) == 16 and len(in_queries) == 4 and not in_bank & in_queries


def test_accuracy_is_given_only_for_images_that_were_not_trained_on(tmp_path: Path) -> None:
    save_images(tmp_path / "train", ["cat", "dog"], 10)
    recipe = SupervisedConfig(size=32).build(backbone(), num_classes=2, total_steps=1, steps_per_epoch=1)
    assert [name for name, _ in scores(str(tmp_path / "train"), "supervised")(recipe)] == ["knn_accuracy"]
    save_images(tmp_path / "val", ["cat", "dog"], 2)
    assert [name for name, _ in scores(str(tmp_path), "supervised")(recipe)] == ["knn_accuracy", "accuracy"]


def test_a_held_out_part_of_other_classes_is_none_and_a_classifier_is_not_trained_beside_it(tmp_path: Path) -> None:
    save_images(tmp_path / "train", ["cat", "dog"], 5)
    save_images(tmp_path / "val", ["cow", "emu"], 2)
    assert validation_set(str(tmp_path), parse_source(str(tmp_path))) is None
    with pytest.raises(InputError, match="no validation image belongs to a known class: found cow, emu"):
        scores(str(tmp_path), "supervised")


def test_a_held_out_part_that_lacks_a_class_or_has_another_is_scored_by_the_classes_of_both(tmp_path: Path) -> None:
    save_images(tmp_path / "train", ["ant", "cat", "dog"], 5)
    save_images(tmp_path / "val", ["cat", "dog", "emu"], 2)
    found = validation_set(str(tmp_path), parse_source(str(tmp_path)))
    assert found is not None and found.classes == ("ant", "cat", "dog")
    assert found.labels().tolist() == [1, 1, 2, 2]
    recipe = SupervisedConfig(size=32).build(backbone(), num_classes=3, total_steps=1, steps_per_epoch=1)
    assert [name for name, _ in scores(str(tmp_path), "supervised")(recipe)] == ["knn_accuracy", "accuracy"]


def test_a_held_out_part_without_an_image_of_a_known_class_is_none() -> None:
    black = torch.zeros(3, 8, 8, dtype=torch.uint8)
    train, val = [(black, 0), (black, 1)], [(black, 1), (black, -1)]
    known = DatasetSource(train, classes=["cat", "dog"])
    for classes, found in {("cat", "emu"): None, ("emu", "dog"): [1], ("cat", "dog"): [1]}.items():
        data = as_data({"train": known, "val": DatasetSource(val, classes=classes)})
        held_out = validation_set(data, known)
        assert (None if held_out is None else held_out.labels().tolist()) == found


def test_classes_that_share_a_name_stay_two() -> None:
    images = [(torch.zeros(3, 8, 8, dtype=torch.uint8), label) for label in (0, 1, 2)]
    source = DatasetSource(images, classes=["crane", "dog", "crane"])
    assert align(source, source).val.labels().tolist() == [0, 1, 2]


def test_a_folder_with_a_held_out_part_uses_it(tmp_path: Path) -> None:
    save_images(tmp_path / "train", ["cat", "dog"], 5)
    save_images(tmp_path / "val", ["cat", "dog"], 2)
    live = scores(str(tmp_path))
    in_bank, in_queries = ({part.name(i) for i in range(len(part))} for part in (live.bank, live.queries))
    assert (len(in_bank), len(in_queries)) == (10, 4)
    assert live.queries.source.source.root == tmp_path / "val"


def test_scores_are_due_every_few_epochs_and_at_the_end_and_never_without_labels(tmp_path: Path) -> None:
    every_three = scores(DATA, every_epochs=3)
    assert [epoch for epoch in range(1, 9) if every_three.due(epoch, 8)] == [3, 6, 8]
    assert not scores(DATA, every_epochs=0).due(8, 8)
    for index in range(30):
        Image.new("RGB", (32, 32), (index, 0, 0)).save(tmp_path / f"{index}.png")
    assert not scores(str(tmp_path)).due(8, 8)


def test_images_to_score_are_read_by_the_worker_processes_and_the_score_stays_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = DinoConfig(num_prototypes=8, hidden=8, bottleneck=4).build(
        backbone(), num_classes=0, total_steps=2, steps_per_epoch=1
    )
    alone = dict(scores(DATA, bank=60, queries=60)(recipe))
    read_here: list[int] = []
    load = Shapes.load_fitted

    def counted(self: Shapes, index: int, *rest: object) -> object:
        read_here.append(index)
        return load(self, index, *rest)

    monkeypatch.setattr(Shapes, "load_fitted", counted)  # workers count in their own memory
    assert dict(scores(DATA, workers=2, bank=60, queries=60)(recipe)) == alone
    assert not read_here
