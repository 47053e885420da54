"""Label maps, and images with objects, on their way into a batch."""

import colorsys

import numpy as np
import pytest
import torch

from mixlab.data.dense_batches import (
    MEAN_COLOUR,
    CropReader,
    CropRule,
    ObjectReader,
    ObjectSample,
    Resizing,
    collate,
    fitted_size,
    flip,
    random_crop,
    resize_objects,
)
from mixlab.data.loader import BatchLoader
from mixlab.data.mask_formats import parse_label_maps
from mixlab.data.masks import MaskedImage
from mixlab.data.objects import Objects, parse_objects
from mixlab.data.sample_order import AspectOrder
from mixlab.data.transforms import change_colours, draw_colours


def rule(**changes) -> CropRule:
    return CropRule(
        **{"crop": 48, "short_side": 64, "long_side": 256, "scale": (0.5, 2.0), "most_of_one_class": 0.75, **changes}
    )


def painted(height: int, width: int, seed: int = 0) -> MaskedImage:
    """Blocks of classes whose colour says the class, so that a crop shows whether its mask is still true."""
    blocks = np.random.default_rng(seed).integers(0, 5, (height // 16 + 1, width // 16 + 1))
    mask = np.kron(blocks, np.ones((16, 16)))[:height, :width].astype(np.uint8)
    image = np.stack([mask * 50, 255 - mask * 50, mask * 0 + 90])
    return MaskedImage(torch.from_numpy(image.astype(np.uint8)), torch.from_numpy(mask), "painted")


@pytest.mark.parametrize("size", [(64, 64), (100, 70), (40, 160)])
def test_every_crop_shows_the_pixels_of_its_mask(size: tuple[int, int]) -> None:
    for seed in range(12):
        image, mask = random_crop(painted(*size), rule(), np.random.default_rng(seed))
        assert image.shape == (3, 48, 48) and mask.shape == (48, 48)
        shown = (image[0].float() / 50).round()
        agree = (shown == mask)[mask != 255].float().mean()
        assert agree > 0.85, seed  # borders of blocks are blended


def test_what_lies_beyond_the_image_is_the_mean_colour_and_not_counted() -> None:
    image, mask = random_crop(painted(64, 64), rule(scale=(0.5, 0.5)), np.random.default_rng(0))
    assert (mask[:32, :32] != 255).all() and (mask[32:] == 255).all() and (mask[:, 32:] == 255).all()
    assert image[:, 40, 40].tolist() == list(MEAN_COLOUR)


def crops_of(mask: np.ndarray) -> list[torch.Tensor]:
    pair = MaskedImage(torch.zeros(3, *mask.shape, dtype=torch.uint8), torch.from_numpy(mask), "")
    plain = rule(short_side=256, scale=(1.0, 1.0))
    return [random_crop(pair, plain, np.random.default_rng(seed))[1] for seed in range(80)]


def test_a_crop_of_one_class_is_drawn_anew() -> None:
    mask = np.zeros((256, 256), dtype=np.uint8)
    mask[:40, :40] = 1  # one of 27 crops touches this corner, about three of ten after ten tries
    assert sum(bool((crop == 1).any()) for crop in crops_of(mask)) > 12


def test_a_crop_mostly_of_one_class_is_drawn_anew() -> None:
    mask = np.zeros((256, 256), dtype=np.uint8)
    mask[:, 128:] = 1  # one of nine crops holds a quarter of both sides, about two thirds after ten tries
    fair = [0.25 <= float((crop == 1).float().mean()) <= 0.75 for crop in crops_of(mask)]
    assert sum(fair) > 40


def test_half_of_the_crops_are_mirrored() -> None:
    gradient = torch.arange(64, dtype=torch.uint8).expand(3, 64, 64).contiguous()
    pair = MaskedImage(gradient, torch.zeros(64, 64, dtype=torch.uint8), "")
    crops = [random_crop(pair, rule(crop=64, scale=(1.0, 1.0)), np.random.default_rng(s))[0] for s in range(100)]
    mirrored = sum(int(crop[0, 0, 0]) > int(crop[0, 0, -1]) for crop in crops)
    assert 30 < mirrored < 70


@pytest.mark.parametrize(
    ("size", "expected"),
    [((480, 640), (512, 683)), ((683, 512), (683, 512)), ((100, 1000), (205, 2048)), ((1, 9000), (1, 2048))],
)
def test_images_are_as_large_as_both_sides_allow(size: tuple[int, int], expected: tuple[int, int]) -> None:
    assert fitted_size(size, short_side=512, long_side=2048) == expected


def test_a_crop_depends_on_seed_epoch_and_image_alone() -> None:
    source = parse_label_maps("shapes:n=6,size=48")
    reader = CropReader(source, rule(), seed=3)
    first = reader.read(2, 1)
    again = CropReader(source, rule(), seed=3).read(2, 1)
    assert all(torch.equal(a, b) for a, b in zip(first[:2], again[:2], strict=True))
    others = [reader.read(2, 2), CropReader(source, rule(), seed=4).read(2, 1)]
    assert not any(torch.equal(first[0], other[0]) for other in others)
    assert reader.collate([]).images.shape == (0, 3, 48, 48) and len(reader.collate([first]).indexes) == 1


def test_neutral_strengths_change_no_colour_and_the_drawn_ones_change_half() -> None:
    images = torch.rand(4, 3, 8, 8)
    neutral = torch.tensor([0.0, 1.0, 1.0, 0.0]).expand(4, 4)
    torch.testing.assert_close(change_colours(images.clone(), neutral), images, atol=1e-5, rtol=1e-5)
    drawn = draw_colours(2000, torch.Generator().manual_seed(0))
    assert ((drawn != neutral[0]).float().mean(0) - 0.5).abs().max() < 0.05
    assert drawn[:, 0].abs().max() <= 32 / 255 and drawn[:, 3].abs().max() <= 0.1
    assert drawn[:, 1:3].min() >= 0.5 and drawn[:, 1:3].max() <= 1.5


def test_brightness_is_added_and_contrast_multiplied() -> None:
    images = torch.full((1, 3, 2, 2), 0.4)
    changed = change_colours(images.clone(), torch.tensor([[0.1, 1.5, 1.0, 0.0]]))
    torch.testing.assert_close(changed, torch.full((1, 3, 2, 2), 0.75))


@pytest.mark.parametrize(("saturation", "hue"), [(0.5, 0.0), (1.5, 0.0), (1.3, 0.08), (0.7, -0.1)])
def test_saturation_and_hue_change_as_in_hsv(saturation: float, hue: float) -> None:
    images = torch.rand(1, 3, 6, 6)
    changed = change_colours(images.clone(), torch.tensor([[0.0, 1.0, saturation, hue]]))
    for row in range(6):
        for column in range(6):
            h, s, v = colorsys.rgb_to_hsv(*images[0, :, row, column].tolist())
            expected = colorsys.hsv_to_rgb((h + hue) % 1, min(s * saturation, 1.0), v)
            assert changed[0, :, row, column].tolist() == pytest.approx(expected, abs=1e-5)


def boxes_around(masks: torch.Tensor) -> list[list[float]]:
    found = []
    for mask in masks:
        rows, columns = mask.nonzero(as_tuple=True)
        found.append([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
    return [[float(edge) for edge in box] for box in found]


def test_images_come_to_1333_x_800_in_their_own_shape():
    published = {(480, 640): (800, 1067), (640, 480): (1067, 800), (427, 640): (800, 1199)}  # COCO's usual shapes
    limits = {(100, 1000): (133, 1333), (1, 5000): (1, 1333), (800, 1333): (800, 1333)}  # the long side decides
    for own, expected in {**published, **limits}.items():
        assert Resizing().size(*own, short=800) == expected


def test_short_sides_are_drawn_from_the_published_steps():
    resizing = Resizing(short=(480, 800))
    random = np.random.default_rng(0)
    assert {resizing.draw_short(random) for _ in range(400)} == set(range(480, 801, 32))
    with pytest.raises(ValueError, match="short sides 800 to 480"):
        Resizing(short=(800, 480))


def test_a_flip_moves_boxes_with_their_masks_and_twice_changes_nothing():
    source = parse_objects("shapes:n=4,size=48")
    image, objects = source.load(1).image, source.load(1).objects()
    turned = flip(ObjectSample(image, objects, 1, (48, 48)))
    assert turned.objects.boxes.tolist() == boxes_around(turned.objects.masks)
    assert torch.equal(turned.image, image.flip(-1))
    assert torch.equal(flip(turned).objects.boxes, objects.boxes)


def test_objects_are_resized_as_their_image_is():
    masks = torch.zeros(1, 10, 20, dtype=torch.bool)
    masks[0, 2:6, 5:15] = True
    objects = Objects(torch.tensor([[5.0, 2.0, 15.0, 6.0]]), torch.tensor([3]), masks)
    twice = resize_objects(objects, (10, 20), (20, 60))
    assert twice.boxes.tolist() == [[15.0, 4.0, 45.0, 12.0]] == boxes_around(twice.masks)
    none = Objects(objects.boxes[:0], objects.classes[:0], masks[:0])
    assert resize_objects(none, (10, 20), (20, 60)).masks.shape == (0, 20, 60)


def test_batches_are_padded_to_multiples_of_32_and_give_objects_back_image_by_image():
    samples = []
    for number, (height, width, count) in enumerate([(30, 70, 2), (50, 20, 0), (33, 33, 1)]):
        masks = torch.rand(count, height, width) < 0.5
        objects = Objects(torch.rand(count, 4), torch.arange(count), masks)
        image = torch.randint(0, 255, (3, height, width), dtype=torch.uint8)
        samples.append(ObjectSample(image, objects, number, (height, width)))
    batch = collate(samples)
    assert batch.images.shape == (3, 3, 64, 96)
    for sample, image, (height, width), objects in zip(
        samples, batch.images, batch.shapes(), batch.objects(), strict=True
    ):
        assert torch.equal(image[:, :height, :width], sample.image)
        assert image[:, height:].sum() == 0 and image[:, :, width:].sum() == 0
        assert torch.equal(objects.boxes, sample.objects.boxes)
        assert torch.equal(objects.masks[:, :height, :width], sample.objects.masks)
    assert len(collate([]).indexes) == 0


def test_what_is_drawn_depends_on_seed_epoch_and_image_alone():
    source = parse_objects("shapes:n=40,size=32")
    resizing = Resizing(short=(32, 96), long=128, flip=0.5)

    def reader(seed=0):
        return ObjectReader(source, resizing, augment=True, seed=seed)

    def sizes(epoch, seed=0):
        return [tuple(reader(seed).read(index, epoch).image.shape) for index in range(40)]

    assert sizes(0) == sizes(0)
    assert sizes(0) != sizes(1)
    assert sizes(0) != sizes(0, seed=1)
    assert torch.equal(reader().read(7, 3).image, reader().read(7, 3).image)


def order(num=37, batch=4, ranks=1, rank=0, group=8, seed=3, **fields):
    tall = np.random.default_rng(1).random(num) < 0.3
    return AspectOrder(num, batch, seed, rank, ranks, tall=tall, group=group, **fields)


def test_every_step_but_the_last_leftovers_has_one_orientation():
    chosen = order(num=100, batch=8)
    places = chosen.permutation(0)
    assert sorted(places) == list(range(100))
    kinds = chosen.tall[places]
    whole = [kinds[first : first + 8] for first in range(0, 100, 8)]
    mixed = [len(set(part)) > 1 for part in whole]
    assert not any(mixed[: 100 // 8 - 2])
    assert {bool(part[0]) for part in whole[:8]} == {True, False}  # both kinds come early: no curriculum
    assert not np.array_equal(places, chosen.permutation(1))


def test_ranks_and_passes_share_the_steps_of_one_process():
    alone = [part.tolist() for part in order(batch=8).batches(2)]
    two = zip(*(order(batch=4, ranks=2, rank=rank).batches(2) for rank in (0, 1)), strict=True)
    assert [[*first, *second] for first, second in two] == alone
    passes = [part.tolist() for part in order(batch=4).batches(2)]
    assert [passes[k] + passes[k + 1] for k in range(0, len(passes) - 1, 2)] == alone


def test_a_loader_goes_on_in_the_middle_of_an_epoch():
    source = parse_objects("shapes:n=37,size=16")
    reader = ObjectReader(source, Resizing(short=(16, 16), long=16), augment=True)
    loader = BatchLoader(reader, order())
    seen = []
    for batch in loader:
        seen.append(batch.indexes.tolist())
        if len(seen) == 3:
            state = loader.state_dict()
    other = BatchLoader(reader, order())
    other.load_state_dict(state)
    assert [batch.indexes.tolist() for batch in other] == seen[3:]


def test_an_order_needs_the_shape_of_every_image():
    with pytest.raises(ValueError, match="3 shapes for 10 images"):
        AspectOrder(10, 2, tall=np.zeros(3, dtype=bool), group=2)
