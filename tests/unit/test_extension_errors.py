"""What people get wrong, or do in their own way, when they add to mixlab."""

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import mixlab
from mixlab.analysis.exhibit import Exhibit
from mixlab.analysis.registry import ANALYSES
from mixlab.backbones.backbone import LayerShape, chosen_layers
from mixlab.backbones.isotropic import Isotropic
from mixlab.backbones.onnx_file import export_onnx
from mixlab.backbones.tokens import Features
from mixlab.backbones.zoo import transformer
from mixlab.data import parse_source
from mixlab.data.loader import Batch, BatchLoader, ImageReader
from mixlab.data.mask_formats import parse_label_maps, parse_masks
from mixlab.data.objects import parse_objects
from mixlab.data.registered import SOURCES
from mixlab.data.sample_order import SampleOrder
from mixlab.data.source import ImageSource, Subset
from mixlab.mixers import ALL, MixerConfig, Mixing, TokenMixer
from mixlab.recipes import RECIPES, with_method
from mixlab.training.building import check_modules
from mixlab.training.image_list import changed_list, write_list
from mixlab.training.lejepa import LeJepaConfig
from mixlab.training.log import MetricBuffer
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
    with pytest.raises(mixlab.InputError, match="Convs names a part of its network 'features'"):
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
        (lambda: mixlab.register_backbone("convs", Convs()), "convs is registered with a Convs; .* class that builds"),
        (lambda: mixlab.register_family("conv", lambda dim: dim), "conv_tiny is registered with a int; give an Iso"),
        (lambda: mixlab.register_recipe("one")(lambda size: size), "recipe one must take no arguments, .* 'size'"),
        (lambda: mixlab.register_source("frames")(lambda rest: rest), r"cannot be called as <lambda>\(rest, split\)"),
        (lambda: mixlab.wrap(nn.Conv2d(1, 8, 4, 4), image=32), "fails on a blank image .* pass image= and channels="),
        (
            lambda: mixlab.data.as_data({"train": "photos"}),
            "'photos' is a name, which cannot be mixed with data sets; open it with",
        ),
        (lambda: parse_source("frames:a.npy"), "for a source 'frames' of a plugin, write `mixlab --import PLUGIN"),
    ],
)
def test_mistakes_at_registration_say_what_to_write(call, said):
    with pytest.raises((mixlab.InputError, FileNotFoundError), match=said):
        call()


def test_an_analysis_is_registered_with_and_without_parentheses():
    @mixlab.register_analysis
    def bare(targets, images):
        """Nothing."""
        return Exhibit(title="Bare", about="", columns=("model",), rows=[(target.label,) for target in targets])

    try:
        assert ANALYSES["bare"].about == "nothing"
        assert len(bare(mixlab.create_model("vit_tiny", dim=64, depth=1, image=32), "shapes:n=2").rows) == 1
    finally:
        del ANALYSES["bare"]


@dataclass
class MeanMixing(Mixing):
    """Every token reads the mean of all, times `scale` where it runs."""

    values: torch.Tensor
    scale: float = 1.0

    def matrix(self, heads=ALL):
        length = self.values.shape[-2]
        return torch.full((*self.values.shape[:2], length, length), 1 / length)[:, heads]

    def apply(self):
        return self.scale * self.values.mean(-2, keepdim=True).expand_as(self.values)


@dataclass(frozen=True, kw_only=True)
class MeanConfig(MixerConfig):
    kind: ClassVar[str] = "mean"
    fault: str = ""

    def build(self, dim, depth):
        return Mean(self.fault)

    def mixing_macs(self, num_tokens, dim):
        return num_tokens * dim


class Mean(TokenMixer):
    def __init__(self, fault):
        super().__init__()
        self.fault = fault

    def prepare(self, x, grid):
        if self.fault == "GPU":
            raise RuntimeError("no CPU")
        mixing = MeanMixing(x[:, None], scale=2.0 if self.fault == "scale" else 1.0)
        return mixing if self.fault == "one" else (mixing, None)

    def merge(self, mixed, bypass):
        return {"images": mixed[:1, 0], "tokens": mixed.mean(-2), "pair": (mixed, 1)}.get(self.fault, mixed[:, 0])


def with_mean(fault):
    return Isotropic(transformer(64, MeanConfig(fault=fault)))


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("images", r"Mean.merge gives \(1, 7, 64\) where \(2, 7, 64\) is needed"),  # else broadcast in silence
        ("tokens", r"Mean.merge gives \(2, 1, 64\) where"),
        ("pair", "Mean.merge gives a tuple; return a tensor"),
        ("one", "Mean.prepare gives a MeanMixing; return a Mixing and a Tensor or None"),
    ],
)
def test_a_mixer_of_wrong_shapes_is_refused_when_it_is_built(fault, said):
    with pytest.raises(mixlab.InputError, match=said):
        with_mean(fault)


def test_a_matrix_that_is_not_what_runs_is_a_warning():
    with pytest.warns(UserWarning, match=r"MeanMixing: apply\(\) and matrix\(\) @ values differ by 50%"):
        with_mean("scale")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("fault", ["", "GPU"])
def test_a_mixer_that_is_right_or_cannot_run_here_is_built(fault):
    assert with_mean(fault).training


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
        (
            (torch.ones((), requires_grad=True), {"grad_norm": torch.ones(())}),
            "a metric 'grad_norm', which the log has",
        ),
    ],
)
def test_a_wrong_loss_is_named(found, said):
    with pytest.raises(mixlab.InputError, match=rf"Mine.loss .*{said}"):
        checked(found, "Mine")


def test_a_teacher_that_no_checkpoint_would_have_is_refused():
    class WithTeacher(ViewsRecipe):
        teacher_is_kept = False

        def __init__(self, network):
            super().__init__(ViewsConfig.__subclasses__()[0](), network)
            self.teacher = deepcopy(network)

        def modules(self):
            return super().modules() | ({"teacher": self.teacher} if self.teacher_is_kept else {})

        def loss(self, views):
            return self.run(views)[0].mean(), {}

    recipe = WithTeacher(ViewsNetwork(Convs(), nn.Identity()))
    with pytest.raises(
        mixlab.InputError, match="WithTeacher.teacher has weights or buffers and is not in WithTeacher.mod"
    ):
        check_modules(recipe, recipe.network.backbone)
    recipe.teacher_is_kept = True
    check_modules(recipe, recipe.network.backbone)


def test_metrics_that_come_and_go_are_named():
    buffer = MetricBuffer()
    buffer.add(1, {"loss": torch.ones(()), "grad_norm": torch.ones(())}, [])
    with pytest.raises(mixlab.InputError, match="steps 1 and 2 have different metrics: only one has spread"):
        buffer.add(2, {"loss": torch.ones(()), "grad_norm": torch.ones(()), "spread": torch.ones(())}, [])


class Own(mixlab.Source):
    """Whatever a test gives for a sample and its label."""

    title, classes = "own", ("a", "b")

    def __init__(self, sample=None, label=0, length=10):
        self.sample, self.given, self.length = sample, label, length

    def __len__(self):
        return self.length

    def load(self, index):
        if isinstance(self.sample, Exception):
            raise self.sample
        return torch.zeros(3, 8, 8, dtype=torch.uint8) if self.sample is None else self.sample

    def name(self, index):
        return f"frame-{index}"

    def label(self, index):
        return self.given


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        (np.zeros((8, 8, 3), np.uint8), "gives a ndarray, not a tensor of uint8"),
        (torch.zeros(3, 8, 8), r"gives torch.float32 of shape \(3, 8, 8\)"),
        (torch.zeros(8, 8, 3, dtype=torch.uint8), r"gives torch.uint8 of shape \(8, 8, 3\)"),
    ],
)
def test_a_source_of_other_than_pixels_is_refused_when_it_is_opened(sample, said):
    with pytest.raises(mixlab.InputError, match=rf"Own, sample 0: load {said}"):
        mixlab.data.as_data(Own(sample))
    with pytest.raises(mixlab.UnreadableImage, match="frame-3.* not a tensor of uint8"):  # one of many is skipped
        Own(sample).load_fitted(3, 8, "crop")


@pytest.mark.parametrize(
    ("label", "said"),
    [
        ("cat", "label of frame-0 is 'cat'; give the place"),
        (None, "label of frame-0 is None; give"),
        (0.7, "label of frame-0 is 0.7"),
        (2, "label of frame-0 is 2, and there are 2 classes, from 0: a, b"),
    ],
)
def test_labels_that_are_no_places_of_classes_are_refused(label, said):
    with pytest.raises(mixlab.InputError, match=said):
        mixlab.labelled_splits(Own(label=label))


def test_a_source_that_fails_when_a_run_resumes_is_not_taken_for_a_damaged_list(tmp_path):
    write_list(tmp_path, Own())
    assert changed_list(tmp_path, Own()) is None and len(changed_list(tmp_path, Own(length=9)).names) == 10
    with pytest.raises(mixlab.InputError, match="^the label of frame-0 is 'cat'"):
        changed_list(tmp_path, Own(label="cat"))


def test_too_few_images_and_labels_without_classes_are_refused():
    with pytest.raises(mixlab.InputError, match="dataset:own has 1 image, too few"):
        mixlab.labelled_splits(Own(length=1))
    nameless = Own()
    nameless.classes = ()
    with pytest.raises(mixlab.InputError, match="has labels but no class names; set `classes` of Own"):
        mixlab.labelled_splits(nameless)


def load(source: ImageSource, num_workers: int = 0) -> BatchLoader[Batch]:
    return BatchLoader(ImageReader(source, 8), SampleOrder(len(source), 4), num_workers=num_workers)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_source_that_fails_is_named_with_its_line_also_in_a_worker(num_workers, squares, monkeypatch):
    monkeypatch.delenv("MIXLAB_DEBUG", raising=False)
    loader = load(Own(ValueError("no such frame")), num_workers)
    with pytest.raises(
        mixlab.WorkError, match=r"failed in Own.load, .*test_extension_errors.py:\d+: ValueError: no such"
    ):
        next(iter(loader))


class Changing(Own):
    """Has another number of samples once some were read."""

    def __init__(self, then, after):
        super().__init__(length=16)
        self.then, self.after, self.num_read = then, after, 0

    def __len__(self):
        return self.length if self.num_read < self.after else self.then

    def load(self, index):
        self.check(index)
        self.num_read += 1
        return super().load(index)


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("after", [6, 8, 16], ids=["in a batch", "between batches", "between epochs"])
def test_a_source_that_loses_samples_while_it_is_read_is_named(after, num_workers, monkeypatch):
    monkeypatch.delenv("MIXLAB_DEBUG", raising=False)
    for part in (lambda source: source, lambda source: Subset(source, range(0, 16, 2))):
        loader = load(part(Changing(5, after)), num_workers)
        with pytest.raises(mixlab.WorkError, match="the source own has 5 samples, and had 16 when it was opened; keep"):
            for _ in range(4):
                list(loader)


def test_a_source_that_grows_is_read_as_it_was_opened():
    loader = load(Changing(40, 6))
    assert sorted(index for batch in loader for index in batch.indexes.tolist()) == list(range(16))
    assert sorted(index for batch in loader for index in batch.indexes.tolist()) == list(range(16))


def test_a_symptom_of_an_unknown_metric_is_named():
    watch = CollapseWatch([Symptom("flat", lambda metrics: metrics["spread"] < 1, "flat", "wait")])
    with pytest.raises(mixlab.InputError, match=r"'flat' reads the metric 'spread', which is not there; .* loss"):
        watch.look(1, {"loss": 1.0})
