"""Multi-crop against torchvision and PIL: the same laws for the choices, the same pixels for the same choices."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torchvision.transforms as T
import torchvision.transforms.functional as TF
from PIL import Image, ImageFilter, ImageOps
from scipy import stats

from mixlab.data import (
    CropKind,
    CropParameters,
    MultiCrop,
    Shapes,
    dino_crops,
    draw_parameters,
    make_crops,
    pack_images,
)
from mixlab.data.crops import IMAGENET_MEAN, IMAGENET_STD, _colour, normalise
from mixlab.data.transforms import (
    _resize_batched,
    _resize_one_by_one,
    blur,
    change_brightness,
    change_contrast,
    change_saturation,
    resize_boxes,
    shift_hue,
    whole_boxes,
)

JITTERED = CropKind(size=32, scale=(0.2, 1.0), num_views=2, jitter=0.8, grey=0.2, blur=0.5, solarise=0.3)

NEUTRAL = (1.0, 1.0, 1.0, 0.0)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(number: int, size: int = 64) -> torch.Tensor:
    source = Shapes(size=size, num_images=number)
    return torch.stack([source.load(index) for index in range(number)])


def undo(views: torch.Tensor) -> torch.Tensor:
    mean, std = (torch.tensor(part)[:, None, None] for part in (IMAGENET_MEAN, IMAGENET_STD))
    return views * std + mean


def oracle(image: torch.Tensor, p: CropParameters, row: int, size: int) -> torch.Tensor:
    """One crop by torchvision's functions on PIL images, in DINO's order, in [0, 1]."""
    top, left, height, width = whole_boxes(p.box, torch.tensor(image.shape[1:]))[row].tolist()
    picture = Image.fromarray(image.permute(1, 2, 0).numpy())
    picture = TF.resized_crop(picture, top, left, height, width, [size, size], T.InterpolationMode.BICUBIC)
    picture = TF.hflip(picture) if p.flip[row] else picture
    if p.jitter[row]:
        changes = (TF.adjust_brightness, TF.adjust_contrast, TF.adjust_saturation, TF.adjust_hue)
        for which in p.order[row].tolist():
            value = float(p.factors[row, which])
            picture = changes[which](picture, value) if value != NEUTRAL[which] else picture
    picture = TF.rgb_to_grayscale(picture, 3) if p.grey[row] else picture
    picture = picture.filter(ImageFilter.GaussianBlur(float(p.sigma[row]))) if p.blur[row] else picture
    picture = ImageOps.solarize(picture) if p.solarise[row] else picture
    return TF.to_tensor(picture)


def only(**changes: torch.Tensor) -> CropParameters:
    """Parameters that do nothing to one whole image, but for `changes`."""
    none = torch.zeros(1, dtype=torch.bool)
    base = {
        "image": torch.zeros(1, dtype=torch.int64),
        "box": torch.tensor([[0.0, 0.0, 1.0, 1.0]], dtype=torch.float64),
        "factors": torch.tensor([NEUTRAL], dtype=torch.float64),
        "order": torch.arange(4)[None],
        "sigma": torch.ones(1, dtype=torch.float64),
        **dict.fromkeys(("flip", "jitter", "grey", "blur", "solarise", "bilinear"), none),
    }
    return CropParameters(**{**base, **changes})


YES = torch.ones(1, dtype=torch.bool)


def factor(which: int, value: float) -> torch.Tensor:
    factors = torch.tensor([NEUTRAL], dtype=torch.float64)
    factors[0, which] = value
    return factors


CHANGES = {
    "nothing": ({}, 0.1),
    "a box": ({"box": torch.tensor([[0.25, 0.125, 0.5, 0.75]], dtype=torch.float64)}, 1.1),
    "flip": ({"flip": YES}, 0.1),
    "brightness": ({"jitter": YES, "factors": factor(0, 1.37)}, 1.6),
    "contrast": ({"jitter": YES, "factors": factor(1, 0.63)}, 1.6),
    "saturation": ({"jitter": YES, "factors": factor(2, 1.2)}, 1.6),
    "hue": ({"jitter": YES, "factors": factor(3, 0.08)}, 5.0),  # PIL keeps hue in 8 bits
    "grey": ({"grey": YES}, 1.2),
    "blur": ({"blur": YES, "sigma": torch.tensor([1.3], dtype=torch.float64)}, 6.0),  # PIL blurs with three boxes
    "solarise": ({"solarise": YES}, 0.1),
}  # the change, and how many grey levels 99 of 100 pixels may differ by


@pytest.mark.parametrize("change", CHANGES)
def test_each_change_alone_gives_pils_pixels(change):
    fields, levels = CHANGES[change]
    images, parameters = pictures(1), only(**fields)
    ours = undo(make_crops(images, parameters, size=64))[0]
    difference = (ours - oracle(images[0], parameters, 0, 64)).abs() * 255
    assert difference.quantile(0.99) < levels and difference.mean() < 0.7


@pytest.mark.parametrize(
    ("change", "reference", "values"),
    [
        (change_brightness, TF.adjust_brightness, (0.6, 1.0, 1.4)),
        (change_contrast, TF.adjust_contrast, (0.6, 1.0, 1.4)),
        (change_saturation, TF.adjust_saturation, (0.0, 0.8, 1.2)),
        (shift_hue, TF.adjust_hue, (-0.5, -0.1, 0.03)),
    ],
)
def test_each_colour_change_is_torchvisions_on_floats_with_a_strength_per_image(change, reference, values):
    images = pictures(3).double() / 255
    images[0, :, :8] = images[0, :1, :8]  # some grey pixels: no hue
    images[1, :, :4] = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)[:, None, None]
    expected = [reference(image, value) for image, value in zip(images, values, strict=True)]
    change(images, torch.tensor(values, dtype=torch.float64)[:, None, None, None])
    assert (images - torch.stack(expected)).abs().max() < 2e-4  # torchvision rounds the weights of grey


def test_whole_dino_crops_are_close_to_pils():
    images = pictures(6, size=96)
    parameters = draw_parameters(JITTERED, torch.full((6, 2), 96), generator(3))
    ours = undo(make_crops(images, parameters, size=32))
    apart = []
    for row in range(len(parameters)):
        expected = oracle(images[parameters.image[row]], parameters, row, 32)
        difference = (ours[row] - expected).abs() * 255
        if parameters.solarise[row]:  # a value at the threshold may fall on either side of it
            difference = difference[(expected * 255 - 128).abs() > 8]
            difference = difference[difference < 100]
        apart.append(float(difference.mean()))
    assert max(apart) < 3.0 and np.mean(apart) < 2.0, apart


def test_the_batched_resize_is_torchs_own_of_each_box(monkeypatch):
    monkeypatch.setattr("mixlab.data.transforms._PADDED_PIXELS", 30_000)  # some crops at a time
    images = [image[:, :height] for image, height in zip(pictures(3, size=80), (80, 51, 7), strict=True)]
    packed = pack_images(images)
    number, size = 24, 37
    image, flip = torch.arange(number) % 3, torch.rand(number, generator=generator(3)) < 0.5
    sides = (torch.rand(number, 2, generator=generator(1)) * packed.shapes[image]).long() + 1
    first = (torch.rand(number, 2, generator=generator(2)) * (packed.shapes[image] + 1 - sides)).long()
    box = torch.cat([first, sides], dim=1)
    bilinear = torch.arange(number) % 5 < 2
    chosen = SimpleNamespace(image=image, flip=flip, bilinear=bilinear)
    batched, single = (resize(packed, chosen, box, size) for resize in (_resize_batched, _resize_one_by_one))
    for row, (top, left, height, width) in enumerate(box.tolist()):
        cut = images[image[row]][None, :, top : top + height, left : left + width].float() / 255
        mode = "bilinear" if bilinear[row] else "bicubic"
        expected = torch.nn.functional.interpolate(cut, (size, size), mode=mode, antialias=True)[0].clamp(0, 1)
        expected = expected.flip(-1) if flip[row] else expected
        assert (batched[row] - expected).abs().max() < 1e-4
        levels = (single[row] - expected).abs() * 255  # bytes are rounded and clipped between rows and columns
        assert levels.quantile(0.999) < 4 and levels.mean() < 0.6


def test_blur_is_the_gaussian_convolution():
    images = pictures(4, size=41).float() / 255
    sigma = torch.tensor([0.1, 0.7, 1.4, 2.0], dtype=torch.float64)
    for image, width, ours in zip(images, sigma.tolist(), blur(images, sigma), strict=True):
        expected = TF.gaussian_blur(torch.nn.functional.pad(image, (9, 9, 9, 9), mode="replicate"), [17, 17], width)
        assert (ours - expected[:, 9:-9, 9:-9]).abs().max() * 255 < 0.8


def test_crops_made_one_by_one_are_those_of_the_batched_form_to_the_bit():
    images = pack_images([picture[:, number:] for number, picture in enumerate(pictures(3))])
    kind = replace(JITTERED, num_views=12, grey=0.5, bilinear=0.5)
    parameters = draw_parameters(kind, images.shapes, generator())
    box = whole_boxes(parameters.box, images.shapes[parameters.image])
    found = make_crops(images, parameters, size=32)
    for row in range(len(found)):
        one = parameters[row : row + 1]
        batched = _colour(resize_boxes(images, one, box[row : row + 1], 32), one)
        assert torch.equal(found[row], normalise(batched)[0]), row


def test_crops_are_the_same_alone_and_in_a_batch():
    images, sizes = pictures(5), torch.full((5, 2), 64)
    parameters = draw_parameters(JITTERED, sizes, generator())
    together = make_crops(images, parameters, size=32)
    for row in range(len(parameters)):
        alone = make_crops(images, parameters[row : row + 1], size=32)
        assert torch.allclose(alone[0], together[row], atol=1e-5)


def draw_with_torchvision(kind: CropKind, height: int, width: int, number: int) -> np.ndarray:
    torch.manual_seed(0)
    blank = torch.empty(3, height, width)
    draws = [T.RandomResizedCrop.get_params(blank, list(kind.scale), [3 / 4, 4 / 3]) for _ in range(number)]
    return np.array(draws)


@pytest.mark.parametrize(
    ("height", "width", "scale"), [(256, 256, (0.05, 0.4)), (375, 500, (0.4, 1.0)), (40, 30, (0.05, 0.4))]
)
def test_boxes_follow_torchvisions_law(height, width, scale):
    kind = CropKind(size=8, scale=scale)
    number = 4000
    expected = draw_with_torchvision(kind, height, width, number)
    shares = draw_parameters(kind, torch.tensor([[height, width]]).repeat(number, 1), generator()).box
    ours = (shares * torch.tensor([height, width, height, width])).numpy()
    assert np.abs(ours - ours.round()).max() < 1e-9, "boxes are whole pixels of the original"
    for name, a, b in (
        ("area", ours[:, 2] * ours[:, 3], expected[:, 2] * expected[:, 3]),
        ("shape", ours[:, 3] / ours[:, 2], expected[:, 3] / expected[:, 2]),
        ("top", ours[:, 0], expected[:, 0]),
        ("left", ours[:, 1], expected[:, 1]),
    ):
        assert stats.ks_2samp(a, b).pvalue > 1e-3, name


@pytest.mark.parametrize(("height", "width"), [(10, 400), (400, 10)])
def test_very_long_images_fall_back_to_the_middle_as_torchvision_does(height, width):
    kind = CropKind(size=8, scale=(0.9, 1.0))
    ours = draw_parameters(kind, torch.tensor([[height, width]]), generator()).box[0]
    expected = draw_with_torchvision(kind, height, width, 1)[0]
    assert (ours * torch.tensor([height, width, height, width])).round().tolist() == expected.tolist()


def test_choices_and_strengths_follow_their_laws():
    number = 6000
    parameters = draw_parameters(dino_crops()[2], torch.full((number // 8, 2), 64), generator())
    assert len(parameters) == number
    for chosen, probability in (
        (parameters.flip, 0.5),
        (parameters.jitter, 0.8),
        (parameters.grey, 0.2),
        (parameters.blur, 0.5),
    ):
        assert stats.binomtest(int(chosen.sum()), number, probability).pvalue > 1e-3
    assert not parameters.solarise.any()
    for column, (low, high) in enumerate(((0.6, 1.4), (0.6, 1.4), (0.8, 1.2), (-0.1, 0.1))):
        values = parameters.factors[:, column].numpy()
        assert stats.kstest(values, "uniform", (low, high - low)).pvalue > 1e-3
    sigma = parameters.sigma[parameters.blur].numpy()
    assert stats.kstest(sigma, "uniform", (0.1, 1.9)).pvalue > 1e-3
    counts = torch.bincount(parameters.order @ torch.tensor([64, 16, 4, 1]))
    counts = counts[counts > 0].numpy()
    assert len(counts) == math.factorial(4) and stats.chisquare(counts).pvalue > 1e-3
    pairs = np.stack([parameters.flip.numpy(), parameters.jitter.numpy(), parameters.grey.numpy()]).astype(float)
    assert np.abs(np.corrcoef(pairs) - np.eye(3)).max() < 0.06


def test_the_views_of_dino_come_out_by_size():
    crop = MultiCrop(dino_crops(global_size=24, local_size=16, num_local=3))
    images = pictures(4, size=32)
    views = crop(images, crop.draw(torch.full((4, 2), 32), generator()))
    assert [tuple(view.shape) for view in views] == [(2, 4, 3, 24, 24), (3, 4, 3, 16, 16)]
    assert all(view.isfinite().all() for view in views)
    assert len(dino_crops(num_local=0)) == 2


def test_a_view_shows_its_own_image():
    images = torch.stack([torch.full((3, 32, 32), value, dtype=torch.uint8) for value in (10, 90, 170, 250)])
    crop = MultiCrop((CropKind(size=16, scale=(0.3, 1.0), num_views=2), CropKind(size=16, scale=(0.1, 0.2))))
    (views,) = crop(images, crop.draw(torch.full((4, 2), 32), generator()))
    shown = (undo(views).mean(dim=(2, 3, 4)) * 255).round()
    assert shown.tolist() == [[10, 90, 170, 250]] * 3


def test_ranks_draw_their_part_of_the_global_batch():
    crop, sizes = MultiCrop((JITTERED,)), torch.tensor([[64, 48]]).repeat(6, 1)
    whole = crop.draw(sizes, generator(4))[32]
    parts = [crop.draw(sizes[:3], generator(4), rank=rank, world_size=2)[32] for rank in range(2)]
    for rank, part in enumerate(parts):
        mine = (whole.image >= 3 * rank) & (whole.image < 3 * rank + 3)
        assert torch.equal(part.box, whole.box[mine]) and torch.equal(part.factors, whole.factors[mine])


def test_the_same_generator_state_gives_the_same_views():
    images, crop = pictures(3, size=32), MultiCrop((JITTERED,))
    runs = [crop(images, crop.draw(torch.full((3, 2), 32), generator(9)))[0] for _ in range(2)]
    assert torch.equal(runs[0], runs[1])


def test_images_of_many_sizes_give_the_crops_that_each_gives_alone():
    source = Shapes(size=60, num_images=3)
    images = [source.load(0)[:, :40], source.load(1)[:, :, :25], source.load(2)]
    packed = pack_images(images)
    assert packed.shapes.tolist() == [[40, 60], [60, 25], [60, 60]]
    assert all(torch.equal(packed.image(number), image) for number, image in enumerate(images))
    parameters = draw_parameters(JITTERED, packed.shapes, generator())
    together = make_crops(packed, parameters, size=32)
    for row, number in enumerate(parameters.image.tolist()):
        alone = parameters[row : row + 1]
        alone.image[:] = 0
        assert torch.equal(make_crops(images[number][None], alone, size=32)[0], together[row])


def test_normalise_is_torchvisions():
    images = pictures(2)
    expected = T.Normalize(IMAGENET_MEAN, IMAGENET_STD)(images / 255)
    assert torch.allclose(normalise(images), expected, atol=1e-5)
    assert torch.allclose(normalise(images / 255), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(2, 3, 8, 8), "uint8"),
        (torch.zeros(3, 8, 9, dtype=torch.uint8), "pack_images"),
        (torch.zeros(2, 1, 8, 8, dtype=torch.uint8), "pack_images"),
        (torch.zeros(0, 3, 8, 8, dtype=torch.uint8), "pack_images"),
    ],
)
def test_wrong_images_are_refused_with_a_way_out(images, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make_crops(images, only(), size=8)


@pytest.mark.parametrize(
    "wrong", [{"size": 0}, {"scale": (0.5, 0.2)}, {"scale": (0.0, 1.0)}, {"strengths": (2, 0, 0, 0)}, {"sigma": (0, 1)}]
)
def test_wrong_kinds_are_refused(wrong):
    with pytest.raises(ValueError, match=r"at least 1|scale|strengths|sigma"):
        CropKind(**{"size": 8, "scale": (0.2, 1.0), **wrong})


@pytest.mark.gpu
def test_the_gpu_gives_the_cpus_views_without_waiting():
    crop = MultiCrop(dino_crops(global_size=64, local_size=32))
    images = pack_images([image[:, : 96 - 7 * number] for number, image in enumerate(pictures(8, size=96))])
    parameters = crop.draw(images.shapes, generator())
    expected = crop(images, parameters)
    there = images.to("cuda")
    crop(there, parameters)
    torch.cuda.set_sync_debug_mode("error")
    try:
        views = crop(there, parameters)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for ours, theirs, size in zip(views, expected, crop.sizes, strict=True):
        difference = (undo(ours.cpu()) - undo(theirs)).abs() * 255
        solarised = parameters[size].solarise.reshape(ours.shape[:2])
        # On a CPU, bytes are rounded and clipped between rows and columns: a few pixels at sharp edges differ by more.
        assert difference[~solarised].quantile(0.999) < 6 and difference.mean() < 0.6
