"""Numbers and folders that cannot work are refused in a sentence, wherever they are given; none is an error of NumPy's
or PIL's."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import mixlab
from mixlab.analysis.pca import pca_maps
from mixlab.backbones.zoo import create_model
from mixlab.cli import main
from mixlab.data.dataset_source import DatasetSource
from mixlab.data.decode import fit_image
from mixlab.data.labelled import label_subset
from mixlab.data.mask_formats import parse_masks
from mixlab.data.packed import PackedReader
from mixlab.data.sample_order import SampleOrder
from mixlab.data.shapes import Shapes
from mixlab.errors import InputError
from mixlab.evaluation.features import head_inputs
from mixlab.evaluation.probe.heads import check_rates
from mixlab.evaluation.target import load_targets
from mixlab.recipes import find_recipe
from mixlab.studies.reproduce.listing import find_items
from mixlab.training.batches import check_enough
from mixlab.training.config import TrainConfig
from mixlab.training.dino_parts import dino_loss
from mixlab.training.distributed import World, num_workers
from mixlab.training.knn import fitting_ks, vote
from mixlab.training.supervised import SupervisedConfig

NAN = float("nan")
VIT = "timm/vit_tiny_patch16_224"
ALONE = World(torch.device("cpu"))
SHAPES = Shapes(num_images=4)
PIXELS = torch.zeros(3, 8, 8, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("give", "message"),
    [
        (lambda: SampleOrder(4, 2, seed=-1), "the seed is -1; give 0 or more"),
        (lambda: label_subset(SHAPES, 0.5, seed=-1), "the seed is -1; give 0 or more"),
        (lambda: PackedReader(SHAPES, lambda height, width: 1, -1), "squashed to -1 px; give at least 1"),
        (lambda: vote(torch.ones(1, 1), torch.zeros(1, 1, dtype=torch.int64), num_classes=2, temperature=NAN), "nan"),
        (lambda: num_workers(-1, ALONE), "-1 processes cannot read data; give 0 or more"),
        (lambda: pca_maps(torch.ones(1, 2, 2, 3), threshold=NAN), "the threshold is nan; give a number"),
        (lambda: check_rates((NAN,), (0.0,)), "give some lr above 0"),
        (lambda: check_rates((0.1,), (float("inf"),)), "some wd from 0"),
        *(
            (lambda name=name, field=field: create_model(name, **{field: 0}), f"{field} must be at least 1, got 0")
            for name, field in (
                ("vit_tiny", "head_dim"),
                ("dinovim_tiny", "state"),
                ("dinovim_tiny", "conv"),
                ("vim_tiny", "expand"),
                ("gatedconv_tiny", "kernel"),
                ("vmamba_tiny", "state"),
            )
        ),
        (lambda: create_model(VIT, checkpoint_path="x.pth"), "write weights='x.pth' instead of checkpoint_path"),
        (lambda: create_model(VIT, weights="augreg_in21k"), f"`hf download {VIT}.augreg_in21k model.safetensors"),
        (lambda: create_model("mambaout_femto", weights="mambaout_femto.in1k"), "a name of released weights"),
        (lambda: create_model(f"{VIT}.augreg_in22k"), "tagged 'augreg_in22k'; did you mean augreg_in21k"),
        (lambda: create_model("vit_tiny", mlp_ratio=-1.0), "mlp_ratio must be 0 (no MLP) or above, got -1.0"),
        (lambda: fit_image(Image.new("RGB", (4, 4)), size=0, fit="crop"), "an image of 0 px does not exist"),
        (lambda: dino_loss(torch.ones(2, 1, 3), torch.ones(2, 1, 3), temperature=0.0), "the temperature is 0.0"),
        (lambda: parse_masks("photo"), "photo has no masks; give 'shapes'"),
        (lambda: head_inputs(create_model("shipped/vit"), (99,), ("cls",)), "blocks of vit_tiny; choose 1 to "),
        (lambda: load_targets(["shipped/vit"], training=["b=dino"]), "the labels are shipped/vit; write LABEL=KIND"),
        (lambda: DatasetSource([(PIXELS, 2)], classes=("no", "yes")).classes, "(..., classes=[...]) names them all"),
        (lambda: find_items(["qqqq"]), "no item 'qqqq'; `mixlab reproduce` lists all"),
        (
            lambda: check_enough(1, find_recipe("dino_vit_tiny64"), replace(ALONE, size=2)),
            "1 image is less than one batch of 64; give at least 2, one for each pass",
        ),
    ],
)
def test_it_is_refused_in_a_sentence(give: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError) as refused:
        give()
    assert message in str(refused.value)


NETWORK, LABELLED = nn.Sequential(nn.Conv2d(3, 8, 8, 8)), "mixlab.labelled_features(backbone, data)"
CLASSIFIER = "load_classifier(backbone, head=FILE)"
TRAIN = "fit_{0}(plan_{0}(backbone, data=...), run)"


@pytest.mark.parametrize(
    ("give", "message"),
    [
        (lambda network: mixlab.evaluate_segmentation(network, "shapes"), TRAIN.format("segmentation")),
        (lambda network: mixlab.evaluate_detection(network, "shapes"), TRAIN.format("detection")),
        (lambda network: mixlab.fit_segmentation(network, "run"), "plan_segmentation(backbone, data=...)"),
        (lambda network: mixlab.fit_detection(network, "run"), "plan_detection(backbone, data=...)"),
        (lambda network: mixlab.evaluate_shifts(network, "shapes"), CLASSIFIER),
        (lambda network: mixlab.evaluate_robustness(network, {}), CLASSIFIER),
        (lambda network: mixlab.load_classifier(network), "a Sequential is no backbone; "),
        (lambda network: mixlab.load_target(network), "networks are loaded by name"),
        (lambda network: mixlab.load_weights(network, "file"), "mixlab.wrap(module)"),
        (lambda network: mixlab.Target(label="a", backbone=network), "mixlab.wrap(module)"),
        (lambda network: mixlab.score_maps(network, "shapes"), "a Sequential is no backbone; "),
        (lambda network: mixlab.activation_maps(network, "shapes"), "a Sequential is no backbone; "),
        (lambda network: mixlab.measure_norms(network, "shapes"), "a Sequential is no backbone; "),
        (lambda network: mixlab.train(network, data="shapes", run="run"), "mixlab.find_recipe('dino_vit_tiny64')"),
        (
            lambda network: mixlab.train(
                find_recipe("dino_vit_tiny64"), data="shapes", run="run", backbone=network, device="cpu"
            ),
            "a Sequential is no backbone; ",
        ),
        (lambda network: mixlab.linear_probe(network, network), LABELLED),
        (lambda network: mixlab.knn_accuracy(network, network), LABELLED),
    ],
)
def test_a_plain_network_is_refused_with_a_way_out(give: Callable[[nn.Module], object], message: str) -> None:
    with pytest.raises(InputError) as refused:
        give(NETWORK)
    assert "a Sequential" in str(refused.value) and message in str(refused.value)


BATCH = "give a batch of images, such as mixlab.preprocess(model, FILE)"
FILES, HEAD = "give the path of a file", "give the outputs of a head as a tensor"
PACKABLE = "give images as tensors (3, H, W), or a batch"
NO_PIXELS = "an image of 0 x 0 pixels has nothing to show"


@pytest.mark.parametrize(
    ("give", "message"),
    [
        (lambda model: mixlab.KnnSettings(k=10), "k is 10; expected a list of int"),
        (lambda model: mixlab.KnnSettings(k=("a",)), "k is ('a',); expected a list of int"),
        (lambda model: fitting_ks((), 8), "k has no number"),
        (lambda model: mixlab.KnnSettings(source="x"), "source is 'x'; expected one of auto, branch, stream"),
        (lambda model: mixlab.KnnSettings(precision="fp8"), "precision is 'fp8'; expected one of auto, bf16, fp32"),
        (lambda model: mixlab.KnnSettings(seed=None), "seed is None; expected int"),
        (lambda model: mixlab.ProbeSettings(mode="cachd"), "mode is 'cachd'; expected one of augmented, cached, both"),
        (lambda model: mixlab.ProbeSettings(heads="x"), "heads is 'x'; expected one of grid, light, heavy"),
        (lambda model: mixlab.ProbeSettings(blocks=1), "blocks is 1; expected a list of int"),
        (lambda model: mixlab.evaluate_knn(model, "shapes", {"k": 10}), "got a dict; give mixlab.KnnSettings(...)"),
        (lambda model: mixlab.evaluate_linear_probe(model, "shapes", None), "give mixlab.ProbeSettings(...)"),
        *(
            (lambda model, recipe=recipe, name=name: with_setting(recipe, name, "x"), f"{name} is 'x'; expected one of")
            for recipe, name in (
                ("dino_vit_tiny64", "precision"),
                ("dino_vit_tiny64", "sharding"),
                ("supervised_vit_tiny64", "method.interpolation"),
                ("supervised_vit_tiny64", "method.moves"),
                ("segment_vit_tiny64", "method.norm"),
                ("detect_vit_tiny64", "method.head"),
                ("detect_vit_tiny64", "method.rules"),
            )
        ),
        (lambda model: with_setting("dino_vit_tiny64", "batch", "64"), "batch is '64'; expected int"),
        *((lambda model, given=given: mixlab.activation_map(model, given), BATCH) for given in ("photo.jpg", None, [])),
        (lambda model: next(model.features(Path("photo.jpg"))), BATCH),
        (lambda model: mixlab.activation_map(model, torch.zeros(1, 3, 16, 16), 3), "got a int; name a map, such as "),
        (lambda model: mixlab.preprocess(model, np.zeros((0, 0, 3), np.uint8)), NO_PIXELS),
        (lambda model: mixlab.preprocess(model, [PIXELS[:, :0, :0]]), NO_PIXELS),
        (lambda model: mixlab.preprocess(model, Image.new("RGB", (0, 5))), "an image of 0 x 5 pixels"),
        (lambda model: mixlab.preprocess(model, PIXELS[:, :0]), "preprocess takes images with pixels, got (3, 0, 8)"),
        (lambda model: mixlab.score_maps(None, "shapes"), "got a NoneType; give a network, or a list of them"),
        (lambda model: create_model(None), "got a NoneType; give the name of a model"),
        (lambda model: mixlab.list_models(None), "got a NoneType; give a shell pattern"),
        (lambda model: find_recipe(None), "got a NoneType; give the name of a recipe"),
        (lambda model: mixlab.load_weights(model, None), f"got a NoneType; {FILES} of weights"),
        (lambda model: mixlab.model_from_file(None), f"got a NoneType; {FILES} of mixlab.save_weights"),
        (lambda model: mixlab.save_weights(model, None), f"got a NoneType; {FILES}"),
        (lambda model: mixlab.save_weights(model, "a", bits=7), "cannot be stored in 7 bits; choose one of (6, 8, 16"),
        (lambda model: mixlab.load_classifier(model, head=[]), "got a list; give head as the path of a file"),
        (
            lambda model: mixlab.train(find_recipe("dino_vit_tiny64"), data="shapes", run=None, device="cpu"),
            "got a NoneType; give the path of a run directory",
        ),
        *((lambda model, given=given: mixlab.pack_images(given), PACKABLE) for given in (None, "photo.jpg", [None])),
        (lambda model: mixlab.pack_images(torch.zeros(2, 3)), "an image has the shape (2, 3)"),
        (lambda model: mixlab.MultiCrop("x"), "'x' are no kinds of view; give for example dino_crops()"),
        (lambda model: mixlab.pca_maps([]), "got a list; give the patches (B, h, w, D) of features"),
        (lambda model: mixlab.pca_maps(torch.zeros(1, 2, 2, 4, dtype=torch.int64)), "patches are torch.int64"),
        (lambda model: mixlab.binary_auc("a", "b"), "got a str; give maps and masks as tensors"),
        (lambda model: mixlab.LabelledFeatures(None, None), "got a NoneType; give features (n, D) and labels (n,)"),
        (lambda model: mixlab.koleo_loss(None), f"got a NoneType; {HEAD}"),
        (lambda model: mixlab.balanced_targets(torch.ones(3), temperature=0.1), "outputs are torch.float32 (3,)"),
        (lambda model: mixlab.teacher_targets([], None, temperature=0.1), "got a list; give outputs (T, B, K)"),
        (lambda model: dino_loss(None, None, temperature=0.1), f"got a NoneType; {HEAD}"),
    ],
)
def test_an_argument_of_another_kind_is_refused_with_a_way_out(
    give: Callable[[mixlab.Backbone], object], message: str
) -> None:
    with pytest.raises(InputError) as refused:
        give(create_model("vit_tiny", dim=32, depth=1, patch=8, image=16, head_dim=16))
    assert message in str(refused.value)


def with_setting(recipe: str, name: str, value: object) -> TrainConfig:
    """A recipe with one field set as Python sets it, in whatever type."""
    config, (*owner, field) = find_recipe(recipe), name.split(".")
    return (
        replace(config, method=replace(config.method, **{field: value})) if owner else replace(config, **{field: value})
    )


def test_paths_may_be_texts_and_lists_tuples(tmp_path: Path) -> None:
    assert mixlab.KnnSettings(k=[5, 10]).k == (5, 10) and mixlab.KnnSettings(k=(np.int64(5),)).k == (5,)
    model = create_model("vit_tiny", dim=32, depth=1, patch=8, image=16, head_dim=16)
    settings = mixlab.ProbeSettings(mode="cached", epochs=1, blocks=[1], strategies=["cls"], lrs=[0.1])
    mixlab.evaluate_linear_probe(model, "shapes:n=16,size=16", settings, folder=str(tmp_path / "probe"))
    assert (tmp_path / "probe" / "cached" / "best_head.safetensors").is_file()


def test_a_single_network_needs_no_list() -> None:
    model = create_model("vit_tiny", dim=64, depth=1, patch=8, image=16)
    images = mixlab.ViewedImages("shapes", size=16, num_images=1, with_masks=True)
    assert len(mixlab.score_maps(model, images, twins=False).subjects) == 1
    assert list(mixlab.activation_maps(model, images).maps) == [model.name]


def test_images_that_cannot_be_read_are_named_by_whoever_needs_them(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for file in ("a/0.png", "a/1.png", "b/0.png", "b/1.png"):
        (tmp_path / "data" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / file).write_bytes(b"not an image")
    data, on = str(tmp_path / "data"), ("--device", "cpu")
    small = ("--set", "batch=2", "--set", "steps=1", "--set", "optim.warmup_steps=0")
    assert main(["pretrain", "dino_vit_tiny64", "--data", data, "--run", str(tmp_path / "run"), *on, *small]) == 1
    assert (
        "none of the 2 images to score can be read, such as" in (said := capfd.readouterr().err)
        and "repair them" in said
    )
    assert main(["knn", "shipped/vit", "--data", data, "--run", str(tmp_path / "knn"), *on, "--workers", "0"]) == 1
    assert f"none of the 2 images of {data} [train] can be read, such as" in capfd.readouterr().err


def test_a_validation_part_that_cannot_be_scored_is_refused_before_training(tmp_path: Path) -> None:
    for name in ("train/a", "train/b", "val/c", "val/d"):
        (tmp_path / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / name / "0.png")
    with pytest.raises(InputError, match="no validation image belongs to a known class: found c, d, known are a, b"):
        SupervisedConfig().open(str(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("knn shipped/vit --k --data shapes", "--k has no number; give one or more, such as 20"),
        ("probe shipped/vit --name features", "use letters and digits, and none of results, features, checkpoints"),
        ("study miniature --seeds 0 --run RUN", "--seeds is 0; give at least 1"),
        (
            "study small --data DATA --masks shapes --voc nowhere --run RUN --quick --device cpu",
            "'nowhere' is not a source",
        ),
        ("bench all --readme nowhere.md", "nowhere.md is not a file; give one with the lines <!--"),
        ("bench dense --figure speed.txt", "--figure speed.txt is neither .svg nor .png"),
        ("bench scale --files 0", "--files is 0; give at least 1"),
        ("report RUN --title Mine --out page.md", "--title has no effect on page.md"),
        ("report RUN --out nowhere/page.html", "the folder nowhere of --out does not exist"),
        ("advise --image 224 --width 0", "--width is 0; give at least 1"),
    ],
)
def test_a_command_refuses_before_it_works(
    arguments: str, message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mixlab.commands.bench.run_benchmark", None)
    monkeypatch.setattr("mixlab.commands.report.measure_costs", None)
    for name in ("a", "b"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for index in range(20):
            Image.new("RGB", (8, 8)).save(tmp_path / "data" / name / f"{index}.png")
    words = [
        {"RUN": str(tmp_path / "run"), "DATA": str(tmp_path / "data")}.get(word, word) for word in arguments.split()
    ]
    assert main(words) == 1
    assert message in " ".join(capfd.readouterr().err.split())
    assert not (tmp_path / "run").exists()


def test_a_size_below_one_is_no_size_to_count_for(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "vit_tiny", "--image", "-3"]) == 1
    assert "--image is -3; give at least 1" in capfd.readouterr().err


@pytest.mark.parametrize("recipe", ["dino_vit_tiny64", "supervised_vit_tiny64"])
def test_a_run_that_cannot_begin_leaves_no_folder_but_ones_own(
    recipe: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own").mkdir()
    for run in ("new", "own"):
        command = "pretrain" if recipe.startswith("dino") else "train"
        assert main([command, recipe, "--data", str(tmp_path / "nowhere"), "--run", str(tmp_path / run)]) == 1
        assert "not a data source" in capfd.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["own"]


@pytest.mark.parametrize(
    "arguments",
    [
        "knn shipped/vit --data nowhere",
        "knn no_model --data shapes:n=8,size=64",
        "knn shipped/vit --data BAD --workers 0",
        "knn shipped/vit --data shapes:n=8,size=64 --temperature 0",
        "probe no_model --data shapes:n=8,size=64",
        "probe shipped/vit --data BAD --mode cached --workers 0",
        "probe shipped/vit --data shapes:n=8,size=64 --strategies nothing",
        "probe shipped/vit --data shapes:n=8,size=64 --epochs 0",
        "robust shipped/vit --shifts shapes",
        "rank shipped/vit --data nowhere",
        "rank shipped/vit --heads 99 --num-images 1",
        "maps shipped/vit --layer 99",
        "matrices shipped/vit --layer 99",
        "auc shipped/vit --study register --num-images 1",
        "segment shipped/vit --data nowhere",
        "detect no_model --data shapes",
        "study miniature --data BAD --masks shapes --quick",
        "speedrun dino_vit_tiny64 --data BAD --held-out",
    ],
)
def test_a_command_that_is_refused_leaves_no_run_folder(
    arguments: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for file in ("a/0.png", "a/1.png", "b/0.png", "b/1.png"):
        (tmp_path / "bad" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "bad" / file).write_bytes(b"not an image")
    words = arguments.replace("BAD", str(tmp_path / "bad")).split()
    assert main([*words, "--device", "cpu", "--run", str(tmp_path / "run")]) == 1
    assert "error:" in capfd.readouterr().err and not (tmp_path / "run").exists()
