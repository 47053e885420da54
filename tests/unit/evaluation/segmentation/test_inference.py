"""Label maps of images of any size: one look, many looks and windows, each held to a plain way to say the same."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mixlab.backbones.zoo import create_model
from mixlab.data.crops import normalise
from mixlab.data.mask_formats import parse_label_maps
from mixlab.data.masks import MaskSource
from mixlab.evaluation.pyramid import Pyramid
from mixlab.evaluation.segmentation.evaluate import ConfusionMatrix, same_size, score_label_maps
from mixlab.evaluation.segmentation.upernet import SCALES, Inference, Predictor, UperNet
from mixlab.training.distributed import World
from mixlab.training.stopping import ScoringStopped

ALONE = World(torch.device("cpu"))


def network() -> UperNet:
    torch.manual_seed(0)
    backbone = create_model("gatedconv_tiny", dim=16, depth=4, patch=4, image=32)
    net = UperNet(Pyramid(backbone), num_classes=5, channels=16, auxiliary_channels=8, norm="group")
    for parameter in net.classify.parameters():
        torch.nn.init.normal_(parameter)  # so that no class wins everywhere
    return net.eval()


class PixelNetwork(UperNet):
    """Looks at each pixel alone: whatever way an image is cut, its label map is the same."""

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        mixing = torch.tensor([[1.0, -2, 0.5], [-1, 1, 2], [0.3, 0.3, -1], [2, 0, 0], [0, -1, -1]])
        return (torch.einsum("kc,bchw->bkhw", mixing, images),)


def predictor(net: UperNet, **options) -> Predictor:
    return Predictor(net, Inference(**{"short_side": 32, "long_side": 128, **options}), precise=nullcontext)


def some_images(height: int = 40, width: int = 56) -> Tensor:
    return torch.randint(0, 256, (2, 3, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def test_one_look_is_the_networks_logits_brought_to_the_image() -> None:
    net, images = network(), some_images(32, 48)
    with torch.no_grad():
        (logits,) = net(normalise(images))
        expected = F.interpolate(logits, size=(32, 48), mode="bilinear").argmax(1)
    assert torch.equal(predictor(net)(images), expected.to(torch.uint8))
    assert len(expected.unique()) > 1


@pytest.mark.parametrize("size", [(7, 90), (90, 7), (33, 33), (1, 1)])
def test_label_maps_have_the_size_of_their_image(size: tuple[int, int]) -> None:
    for mode in ("single", "multi", "slide"):
        inference = Inference.of(mode, short_side=32, long_side=128, crop=24)
        found = Predictor(network(), inference, precise=nullcontext)(some_images(*size))
        assert found.shape == (2, *size) and found.dtype == torch.uint8


@pytest.mark.parametrize(("window", "stride"), [(16, None), (16, 16), (20, 7), (500, None)])
def test_windows_cover_every_pixel_and_agree_with_one_look_where_pixels_stand_alone(window, stride) -> None:
    net = PixelNetwork(network().pyramid, num_classes=5, channels=16, norm="group").eval()
    images = some_images(32, 50)
    whole, cut = predictor(net), predictor(net, window=window, stride=stride)
    assert torch.equal(cut(images), whole(images))


def test_windows_change_what_a_network_with_context_says() -> None:
    net, images = network(), some_images(32, 96)
    assert not torch.equal(predictor(net, window=32)(images), predictor(net)(images))


def test_with_flips_the_mirror_image_gets_the_mirrored_map() -> None:
    net, images = network(), some_images()
    both = predictor(net, scales=(0.5, 1.0), flip=True)
    assert (both(images.flip(-1)) == both(images).flip(-1)).float().mean() > 0.999  # but for ties in rounding
    assert not torch.equal(predictor(net)(images.flip(-1)), predictor(net)(images).flip(-1))


def test_many_looks_vote_with_probabilities() -> None:
    net, images = network(), some_images(32, 48)
    total = torch.zeros(2, 5, 32, 48)
    with torch.no_grad():
        for scale in SCALES:
            size = (round(32 * scale), round(48 * scale))
            pixels = normalise(images)
            if scale != 1:
                pixels = F.interpolate(pixels, size=size, mode="bilinear", antialias=True)
            for flip in (False, True):
                (logits,) = net(pixels.flip(-1) if flip else pixels)
                logits = F.interpolate(logits, size=size, mode="bilinear")
                logits = logits.flip(-1) if flip else logits
                total += F.interpolate(logits, size=(32, 48), mode="bilinear").softmax(1)
    found = Predictor(net, Inference.of("multi", short_side=32, long_side=128, crop=32), precise=nullcontext)(images)
    assert (found == total.argmax(1)).float().mean() > 0.999


def test_the_auxiliary_head_speaks_in_training_alone() -> None:
    net = network()
    images = torch.randn(2, 3, 64, 64)
    assert [tuple(part.shape) for part in net(images)] == [(2, 5, 16, 16)]
    assert [tuple(part.shape) for part in net.train()(images)] == [(2, 5, 16, 16), (2, 5, 4, 4)]


class MixedSizes(MaskSource):
    """Shapes of two sizes, taking turns."""

    def __init__(self) -> None:
        self.parts = [parse_label_maps("shapes:n=9,size=24"), parse_label_maps("shapes:n=9,size=32")]
        self.classes = self.parts[0].classes

    def __len__(self) -> int:
        return 18

    def load(self, index: int):
        return self.parts[index % 2].load(index // 2)

    def name(self, index: int) -> str:
        return self.parts[index % 2].name(index // 2)


def test_a_set_of_many_sizes_is_scored_image_by_image() -> None:
    torch.manual_seed(0)
    backbone = create_model("gatedconv_tiny", dim=16, depth=4, patch=4, image=32)
    net = UperNet(Pyramid(backbone), num_classes=11, channels=16, auxiliary_channels=8, norm="group").eval()
    look, source = predictor(net), MixedSizes()
    plain = ConfusionMatrix(11)
    for index in range(len(source)):
        pair = source.load(index)
        plain.update(look(pair.image[None])[0], pair.mask)
    found, skipped = score_label_maps(look, source, world=ALONE)
    assert np.array_equal(found.matrix, plain.compute()[0]) and not skipped
    shares = [evaluate_share(look, source, rank) for rank in range(3)]
    assert np.array_equal(sum(shares), plain.compute()[0])


def test_scoring_stops_at_once_when_asked_to() -> None:
    seen: list[int] = []

    def look(images: Tensor) -> list[Tensor]:
        seen.append(len(images))
        return [torch.zeros(image.shape[-2:], dtype=torch.int64) for image in images]

    with pytest.raises(ScoringStopped):
        score_label_maps(look, MixedSizes(), world=ALONE, stopped=lambda: bool(seen))  # type: ignore[arg-type]
    assert len(seen) == 1


def evaluate_share(look: Predictor, source: MaskSource, rank: int) -> np.ndarray:
    """What one of three processes counts, before they add up."""
    found, _ = score_label_maps(look, source, world=World(torch.device("cpu"), rank=rank, size=3))
    return found.matrix


def test_images_of_one_size_go_together_but_not_too_many() -> None:
    source = MixedSizes()
    groups = list(same_size([source.load(index) for index in range(18)]))
    assert [len(group) for group in groups] == [9, 9]
    assert groups[0] == list(range(0, 18, 2))
