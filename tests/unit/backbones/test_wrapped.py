"""Any module as a backbone: what is found out by itself, what must be said, and what is refused by name."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.models import register_model
from timm.models.vision_transformer import VisionTransformer as TimmViT
from torch import Tensor, nn
from torchvision.models import ResNet, VisionTransformer
from torchvision.models.resnet import BasicBlock

import mixlab
from mixlab.backbones.backbone import LayerShape
from mixlab.backbones.zoo import ZOO
from mixlab.run.files import read_json
from mixlab.training.settings import override


class Net(nn.Module):
    """Twelve channels at a quarter of the size, in any form."""

    def __init__(self, form: str = "map") -> None:
        super().__init__()
        self.body, self.form = nn.Conv2d(3, 12, 4, stride=4), form

    def forward(self, images: Tensor) -> Any:
        found = self.body(images)
        forms = {
            "map": lambda: found,
            "channels last": lambda: found.permute(0, 2, 3, 1),
            "48 px alone": lambda: found.view(1, 12, 12, 12),
            "tokens": lambda: found.flatten(2).mT,
            "class token": lambda: torch.cat([found.flatten(2).mean(2)[:, None], found.flatten(2).mT], dim=1),
            "tuple": lambda: (found, found.mean()),
            "dict": lambda: {"maps": found, "loss": 0.0},
            "vector": lambda: found.flatten(1),
        }
        return forms[self.form]()


def small_resnet(num_classes: int = 10) -> ResNet:
    return ResNet(BasicBlock, [1, 1, 1, 1], num_classes=num_classes)


def small_vit(**fields: int) -> VisionTransformer:
    return VisionTransformer(
        **{
            "image_size": 32,
            "patch_size": 8,
            "num_layers": 2,
            "num_heads": 2,
            "hidden_dim": 16,
            "mlp_dim": 32,
            **fields,
        }
    )


@pytest.fixture
def registered() -> str:
    """A function of somebody's that builds and wraps a network, known by its name."""

    @mixlab.register_backbone("own_net")
    def build(width: int = 8) -> mixlab.Backbone:
        parts = nn.Conv2d(3, width, 4, stride=4), nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 2, stride=2)
        return mixlab.wrap(nn.Sequential(*parts), maps=["2", "3"], image=32)

    return "own_net"


def test_a_resnet_of_torchvision_is_wrapped_by_the_names_of_its_maps() -> None:
    network = small_resnet().eval()
    model = mixlab.wrap(network, maps=["layer1", "layer4"], image=64).eval()
    assert model.layer_shapes() == [LayerShape(64, 4), LayerShape(512, 32)] and model.dim == 512
    images = torch.randn(2, 3, 96, 64)
    with torch.no_grad():
        found = dict(model.features(images, layers=None))
        network.fc = nn.Identity()
        torch.testing.assert_close(model(images), network(images))  # its own pooled feature
        stem = network.maxpool(network.relu(network.bn1(network.conv1(images))))
        torch.testing.assert_close(found[0].patches.permute(0, 3, 1, 2), network.layer1(stem))
    assert found[0].grid == (24, 16) and not network.layer1._forward_hooks  # nothing stays on it


def test_a_transformer_of_torchvision_has_a_class_token_and_its_grid() -> None:
    network = small_vit().eval()
    model = mixlab.wrap(network, maps="encoder", image=32)
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        ((_, features),) = model.features(images)
        network.heads = nn.Identity()
        torch.testing.assert_close(model(images), network(images))
    assert features.patches.shape == (2, 4, 4, 16) and model.layout.num_learned == 1
    with pytest.raises(ValueError, match=r"was wrapped for 32 px and refuses 16 x 16 px .*crops \(method.local_size\)"):
        model(torch.randn(1, 3, 16, 16))


def test_a_size_whose_tokens_are_not_its_patches_names_the_size_that_was_wrapped() -> None:
    """CrossViT resizes images on its own, so that it always gives the tokens of 240 px."""
    model = mixlab.create_model("timm/crossvit_tiny_240").eval()
    said = r"was wrapped for 240 px, and what it gives of 132 x 96 px .*give images, and crops .* of 240 px$"
    with pytest.raises(mixlab.InputError, match=said):
        list(model.features(torch.randn(1, 3, 132, 96)))
    with torch.no_grad():
        assert model(torch.randn(1, 3, 132, 96)).shape == (1, model.dim)


@pytest.mark.parametrize("form", ["map", "channels last", "tokens", "class token"])
def test_every_form_of_a_map_gives_the_same_patches(form: str) -> None:
    torch.manual_seed(0)
    network, images = Net(form), torch.randn(2, 3, 32, 16)
    model = mixlab.wrap(network, image=16)
    ((_, features),) = model.features(images)
    expected = network.body(images).permute(0, 2, 3, 1)
    torch.testing.assert_close(features.patches, expected)
    torch.testing.assert_close(model(images), expected.mean((1, 2)))  # also what its class token is


@pytest.mark.parametrize("place", ["tuple", "dict"])
def test_one_entry_of_a_tuple_or_a_mapping_is_taken_by_name(place: str) -> None:
    network, entry = Net(place), {"tuple": "[0]", "dict": "[maps]"}[place]
    with pytest.raises(ValueError, match=rf"gives a {place} of .*\(1, 12, 4, 4\).*maps='\{entry[:-1]}\]'"):
        mixlab.wrap(network, image=16)
    by_name = mixlab.wrap(network, maps=entry, image=16)
    by_function = mixlab.wrap(network, maps=lambda net, images: net.body(images), image=16)
    images = torch.randn(1, 3, 16, 16)
    torch.testing.assert_close(by_name(images), by_function(images))
    with pytest.raises(ValueError, match=r"the output has no \[5\]"):
        mixlab.wrap(network, maps="[5]", image=16)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: mixlab.wrap(small_resnet(), image=64),
            r"gives \(1, 10\), which is not a map .*maps='layer4' would be one",
        ),
        (lambda: mixlab.wrap(small_resnet(), maps="layer5", image=64), "no submodule 'layer5'; did you mean layer4"),
        (lambda: mixlab.wrap(Net(), maps="b ody", image=16), "is not a place in a module"),
        (
            lambda: mixlab.wrap(Net("48 px alone"), image=48),
            "axes cannot be told by their sizes; pass axes='NCHW' or 'NHWC'",
        ),
        (lambda: mixlab.wrap(Net("tokens"), num_prefix=3, image=16), "16 tokens, which are not a square of patches"),
        (lambda: mixlab.wrap(Net("vector"), image=16), r"gives \(1, 192\), which is not a map"),
        (lambda: mixlab.wrap(nn.Identity()), "this Identity has no parameters"),
        (lambda: mixlab.wrap(Net), "wrap takes an nn.Module, got a type; build the network first"),
        (lambda: mixlab.wrap(mixlab.create_model("vit_tiny", depth=1)), "is a backbone already"),
        (lambda: mixlab.wrap(Net(), axes="HWC", image=16), "axes 'HWC' are unknown"),
        (lambda: mixlab.wrap(Net(), mean=(0.5,), std=(0.5,), image=16), "give one of each per channel"),
    ],
)
def test_what_is_missing_or_wrong_is_named_when_it_is_wrapped(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_axes_of_equal_length_are_found_by_a_larger_image_or_said() -> None:
    for form in ("map", "channels last"):  # (1, 12, 12, 12)
        model = mixlab.wrap(Net(form), image=48)
        assert [(shape.axes, shape.width) for shape in model.forms] == [("NCHW" if form == "map" else "NHWC", 12)]
    assert mixlab.wrap(Net("48 px alone"), image=48, axes="NCHW").layer_shapes() == [LayerShape(12, 4)]


def test_an_incomplete_backbone_is_refused_when_it_is_made() -> None:
    class Half(mixlab.Backbone):
        def __init__(self) -> None:
            super().__init__()
            self.name, self.dim, self.num_layers, self.channels, self.image = "half", "8", 1, 3, 16

        def forward(self, images: Tensor) -> Tensor: ...
        def features(self, images: Tensor, layers: Any = 1, source: Any = "stream") -> Any: ...
        def layer_shapes(self) -> list[LayerShape]: ...

    with pytest.raises(ValueError, match=r"Half is not a complete backbone: set dim \(a str, not an? int\), layout"):
        Half()


def test_everything_that_reads_features_works_on_it() -> None:
    torch.manual_seed(0)
    model = mixlab.wrap(Net(), maps="body", image=32, name="net")
    data = "shapes:n=24,size=32"
    assert mixlab.evaluate_knn(model, data, mixlab.KnnSettings(k=(5,))).measurements[0].subject.model == "net"
    mixlab.evaluate_linear_probe(model, data, mixlab.ProbeSettings(mode="cached", epochs=1))
    assert mixlab.score_maps([model], "shapes:n=2,size=32").measurements  # with its untrained twin
    found = mixlab.activation_maps([model], data)
    assert found.components["net"][0].first.shape == (1, 8, 8)
    with pytest.raises(ValueError, match="net has no mixings to look at"):
        mixlab.measure_ranks(model, data)


def test_an_untrained_twin_is_drawn_anew_or_what_cannot_be_is_named() -> None:
    model = mixlab.wrap(small_resnet(), maps="layer4", image=32)
    one, again, other = model.twin(1), model.twin(1), model.twin(2)
    weights = [net.network.conv1.weight for net in (one, again, other, model)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2]) and not torch.equal(weights[0], weights[3])
    with pytest.raises(
        ValueError, match=r"no reset_parameters\(\) covers network.class_token.*mixlab.register_backbone"
    ):
        mixlab.wrap(small_vit(), maps="encoder", image=32).twin()


def test_saving_is_refused_unless_something_can_build_it_again(registered: str, tmp_path: Path) -> None:
    file = tmp_path / "net.safetensors"
    with pytest.raises(ValueError, match=r"wrapped from a .*Net, and nothing says how to build that again; register"):
        mixlab.save_weights(mixlab.wrap(Net(), image=32), file)
    model = mixlab.create_model(registered, width=6)
    mixlab.save_weights(model, file)
    again = mixlab.model_from_file(file)
    assert again.name == registered and again.registered == (registered, {"width": 6})
    images = torch.randn(1, 3, 32, 32)
    torch.testing.assert_close(again.eval()(images), model.eval()(images))
    assert not torch.equal(model.twin(1).network[0].weight, model.network[0].weight)
    torch.save(model.twin(2).network.state_dict(), tmp_path / "original.pth")  # as torchvision's weights come
    loaded = mixlab.create_model(registered, width=6, weights=tmp_path / "original.pth")
    assert torch.equal(loaded.network[0].weight, model.twin(2).network[0].weight)


def test_a_file_of_a_network_that_is_not_registered_says_what_to_load(registered: str, tmp_path: Path) -> None:
    mixlab.save_weights(mixlab.create_model(registered), tmp_path / "net.safetensors")
    entry = ZOO.data.pop(registered)
    try:
        with pytest.raises(
            ValueError, match=r"needs the plugin test_wrapped \(backbone own_net\), which is not loaded"
        ):
            mixlab.model_from_file(tmp_path / "net.safetensors")
    finally:
        ZOO.data[registered] = entry


def test_dino_trains_it_and_resumes_from_its_checkpoints(registered: str, tmp_path: Path) -> None:
    small = ["model.name=own_net", "batch=4", "data.size=none", "data.workers=0", "method.num_prototypes=16",
             "method.hidden=16", "method.bottleneck=8", "method.num_local=1", "method.global_size=32",
             "method.local_size=32", "method.frozen_prototype_epochs=0", "method.teacher_warmup_epochs=0",
             "optim.warmup_steps=0", "knn.every_epochs=0", "checkpoint.every_steps=1",
             "log.tensorboard=false"]  # fmt: skip
    config = override(mixlab.find_recipe("dino_vit_tiny64"), [*small, "steps=2"])
    mixlab.train(config, data="shapes:n=8,size=32", run=tmp_path, device="cpu")
    for file in [tmp_path / "weights.safetensors", *tmp_path.glob("checkpoints/*00002*"), *tmp_path.glob("results/*")]:
        file.unlink()
    with pytest.warns(UserWarning, match="is not finished: these are the weights of step 1 of 2"):
        assert mixlab.load_target(str(tmp_path), device="cpu").backbone.name == registered
    assert mixlab.train(config, data="shapes:n=8,size=32", run=tmp_path, device="cpu").from_step == 1
    assert mixlab.load_target(str(tmp_path), device="cpu").backbone.name == registered
    assert read_json(tmp_path / "config.json")["plugins"][0]["adds"] == {"backbone": [registered]}


def test_a_run_says_which_network_it_was_given(registered: str, tmp_path: Path) -> None:
    config = override(
        mixlab.find_recipe("supervised_gatedconv_tiny64"),
        ["steps=1", "batch=4", "method.size=32", "data.workers=0", "optim.warmup_steps=0", "knn.every_epochs=0"],
    )
    given = mixlab.create_model(registered)
    mixlab.train(config, data="shapes:n=8,size=32", run=tmp_path, device="cpu", backbone=given)
    assert read_json(tmp_path / "config.json")["settings"]["model"]["name"] == registered
    with pytest.raises(ValueError, match="could not be loaded again: Net was wrapped"):
        mixlab.train(config, data="shapes:n=8,size=32", run=tmp_path / "b", backbone=mixlab.wrap(Net(), image=32))


class Featured(nn.Module):
    """Two methods of timm's interface, and no more."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.body, self.head = nn.Conv2d(3, 8, 4, stride=4), nn.Linear(8, num_classes)

    def forward_features(self, images: Tensor) -> Tensor:
        return self.body(images)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.forward_features(images).mean((2, 3)))


@pytest.fixture(scope="module")
def known_to_timm() -> None:
    """Three models that timm knows by `register_model` alone."""
    about = {"pretrained_cfg", "pretrained_cfg_overlay", "cache_dir"}

    def own_vit(pretrained: bool = False, **fields: Any) -> nn.Module:
        rest = {key: value for key, value in fields.items() if key not in about}
        return TimmViT(**{"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, **rest})

    def own_featured(pretrained: bool = False, pretrained_cfg: Any = None, **fields: Any) -> nn.Module:
        return Featured()

    def own_bare(pretrained: bool = False, **fields: Any) -> nn.Module:
        return Net()

    for function in (own_vit, own_featured, own_bare):
        if not timm.is_model(function.__name__):
            register_model(function)


@pytest.mark.parametrize(("name", "image", "dim"), [("own_vit", 32, 32), ("own_featured", 224, 8)])
def test_models_that_timm_knows_by_registration_alone_are_targets(
    known_to_timm: None, name: str, image: int, dim: int, tmp_path: Path
) -> None:
    model = mixlab.load_target(f"timm/{name}", device="cpu").backbone
    assert (model.image, model.dim, model.name) == (image, dim, f"timm/{name}")
    images = torch.randn(1, 3, 32, 32)
    ((_, features),) = model.features(images)
    assert features.patches.shape[-1] == dim and model(images).shape == (1, dim)
    mixlab.save_weights(model, tmp_path / "net.safetensors")
    again = mixlab.load_target(str(tmp_path / "net.safetensors"), device="cpu").backbone
    torch.testing.assert_close(again(images), model(images))
    assert not torch.equal(next(model.twin(1).parameters()), next(model.parameters()))


@pytest.mark.parametrize(("name", "width"), [("crossvit_tiny_240", 288), ("coat_lite_mini", 512), ("convit_tiny", 192)])
@torch.no_grad()
def test_models_of_timm_without_intermediates_give_its_own_pooled_feature(name: str, width: int) -> None:
    model = mixlab.create_model(f"timm/{name}").eval()
    images = torch.randn(1, 3, model.image, model.image, generator=torch.Generator().manual_seed(0))
    theirs = timm.create_model(name, num_classes=0).eval()
    theirs.load_state_dict(model.network.state_dict())
    assert model.dim == width
    torch.testing.assert_close(model(images), theirs(images))
    with pytest.raises(ValueError, match=r"\(B, 3, H, W\)"):
        model(images[0])


def test_a_model_of_timm_without_features_says_what_it_lacks(known_to_timm: None) -> None:
    with pytest.raises(ValueError, match="own_bare has neither forward_intermediates nor forward_features; .*wrap"):
        mixlab.create_model("timm/own_bare")
