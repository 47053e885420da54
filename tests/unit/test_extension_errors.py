"""What people get wrong, or do in their own way, when they add to mixlab."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import mixlab
from mixlab.backbones.backbone import LayerShape, chosen_layers
from mixlab.backbones.onnx_file import export_onnx
from mixlab.backbones.tokens import Features
from mixlab.data import parse_source
from mixlab.data.mask_formats import parse_label_maps, parse_masks
from mixlab.data.objects import parse_objects
from mixlab.data.registered import SOURCES
from mixlab.recipes import RECIPES, with_method
from mixlab.training.lejepa import LeJepaConfig
from mixlab.training.supervised import SupervisedConfig
from mixlab.training.update import checked
from mixlab.training.views import CollapseWatch, Symptom, ViewsConfig, ViewsNetwork, ViewsRecipe


class Convs(mixlab.Backbone):
    """Its layers are called `blocks`, as in most code."""

    family, layout = "other", mixlab.TokenLayout(place="none")

    def __init__(self, part: str = "blocks") -> None:
        super().__init__()
        self.dim, self.num_layers, self.channels, self.image = 8, 2, 3, 16
        self.stem = nn.Conv2d(3, 8, 8, 8)
        setattr(self, part, nn.ModuleList(nn.Conv2d(8, 8, 1) for _ in range(2)))

    def forward(self, images):
        return next(features.summary for _, features in self.features(images))

    def features(self, images, layers=1, source="stream", *, norm=True):
        wanted, x = chosen_layers(layers, 2), self.stem(images)
        for index, block in enumerate(self.blocks):
            x = x + block(x)
            if index in wanted:
                patches = x.permute(0, 2, 3, 1)
                yield index, Features(patches.mean((1, 2)), patches.new_zeros(len(x), 0, 8), patches, (2, 2))

    def layer_shapes(self):
        return [LayerShape(8, 8)] * 2


def test_a_network_may_call_its_layers_blocks():
    model = Convs()
    assert len(model.blocks) == 2 and model(torch.zeros(3, 3, 16, 16)).shape == (3, 8)


def test_a_part_under_the_name_of_a_method_is_refused():
    with pytest.raises(mixlab.InputError, match="Convs calls a part of its network 'features'"):
        Convs(part="features")


def test_a_network_that_fixes_the_batch_is_refused_as_onnx_in_a_sentence(tmp_path):
    pytest.importorskip("onnxscript")
    with pytest.raises(mixlab.InputError, match=r"Convs cannot be written as ONNX: .*x\.shape\[0\] for len\(x\)"):
        export_onnx(Convs(), tmp_path / "convs.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: mixlab.register_backbone(Convs), r"needs a name first: @mixlab.register_backbone\('convs'\)"),
        (lambda: mixlab.register_source(Convs), "needs a name first"),
        (lambda: mixlab.register_source("frames")(lambda rest: rest), r"cannot be called as <lambda>\(rest, split\)"),
        (lambda: mixlab.wrap(nn.Conv2d(1, 8, 4, 4), image=32), "fails on a blank image .* say image= and channels="),
        (lambda: mixlab.data.as_data({"train": "photos"}), "'photos' is a name among data sets; open it with"),
        (lambda: parse_source("frames:a.npy"), "for a source 'frames' of a plugin, write `mixlab --import PLUGIN"),
    ],
)
def test_mistakes_at_registration_say_what_to_write(call, said):
    with pytest.raises((mixlab.InputError, FileNotFoundError), match=said):
        call()


class Squares(mixlab.Source):
    title = "squares"

    def __len__(self):
        return 10

    def load(self, index):
        mask = torch.zeros(16, 16, dtype=torch.uint8)
        mask[index : index + 4] = 1
        return mixlab.MaskedImage(torch.full((3, 16, 16), index, dtype=torch.uint8), mask, self.name(index))

    def name(self, index):
        return f"{index}"


@pytest.fixture
def squares():
    def opened(rest, split):
        if rest:
            np.load(rest)
        return Squares() if split == "train" else None

    mixlab.register_source("squares")(opened)
    yield "squares"
    del SOURCES["squares"]


def test_a_registered_source_of_masks_serves_maps_and_segmentation(squares):
    assert len(parse_masks(squares)) == 10
    train, val = (parse_label_maps(squares, split=split) for split in ("train", "val"))
    assert (len(train), len(val)) == (8, 2)
    assert {train.name(i) for i in range(8)}.isdisjoint(val.name(i) for i in range(2))
    with pytest.raises(mixlab.InputError, match="squares gives MaskedImage; detection takes .* AnnotatedImage"):
        parse_objects(squares)


def test_what_a_source_cannot_open_is_named_with_its_plugin(squares):
    with pytest.raises(
        mixlab.InputError, match=r"source 'squares' of the plugin .* cannot open 'none.npy': FileNotFou"
    ):
        parse_source("squares:none.npy")


@dataclass(frozen=True, kw_only=True)
class FocalConfig(SupervisedConfig):
    kind: ClassVar[str] = "focal"
    gamma: float = 2.0


def test_with_method_keeps_what_both_methods_have():
    recipe = RECIPES["supervised_vit_tiny64"]()
    recipe = replace(recipe, method=replace(recipe.method, erasing=0.5))
    method = with_method(recipe, FocalConfig, gamma=1.0, mixup=0.0).method
    assert (method.gamma, method.mixup, method.erasing, method.size) == (1.0, 0.0, 0.5, recipe.method.size)
    with pytest.raises(mixlab.InputError, match="FocalConfig has no setting 'gama'; did you mean gamma"):
        with_method(recipe, FocalConfig, gama=1.0)
    with pytest.raises(mixlab.InputError, match="LeJepaConfig has no settings in common with SupervisedConfig"):
        with_method(recipe, LeJepaConfig)


def test_a_recipe_of_views_keeps_its_config():
    config = ViewsConfig.__subclasses__()[0]()

    class Own(ViewsRecipe):
        def loss(self, views):
            return self.run(views)[0].mean(), {}

    recipe = Own(config, ViewsNetwork(Convs(), nn.Identity()))
    assert recipe.config is config


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (torch.ones((), requires_grad=True), "gives a Tensor; return the loss and a dict of metrics"),
        ((torch.ones(3, requires_grad=True), {}), r"shape \(3,\) as 'loss'"),
        ((torch.ones((), requires_grad=True), {"spread": 1.0}), "a float as 'spread'"),
        ((torch.ones(()), {}), "depends on no parameter"),
    ],
)
def test_a_wrong_loss_is_named(found, said):
    with pytest.raises(mixlab.InputError, match=rf"Mine.loss .*{said}"):
        checked(found, "Mine")


def test_a_symptom_of_an_unknown_metric_is_named():
    watch = CollapseWatch([Symptom("flat", lambda metrics: metrics["spread"] < 1, "flat", "wait")])
    with pytest.raises(mixlab.InputError, match=r"'flat' reads the metric 'spread', which is not there; .* loss"):
        watch.look(1, {"loss": 1.0})
