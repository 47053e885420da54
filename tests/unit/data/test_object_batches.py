"""Images and objects on their way into a batch."""

import numpy as np
import pytest
import torch

from mixlab.data.dense_batches import ObjectReader, ObjectSample, Resizing, collate, flip, resize_objects
from mixlab.data.loader import BatchLoader
from mixlab.data.objects import Objects, parse_objects
from mixlab.data.sample_order import AspectOrder


def boxes_around(masks: torch.Tensor) -> list[list[float]]:
    found = []
    for mask in masks:
        rows, columns = mask.nonzero(as_tuple=True)
        found.append([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
    return [[float(edge) for edge in box] for box in found]


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ((480, 640), (800, 1067)),  # the published rule on COCO's usual shapes
        ((640, 480), (1067, 800)),
        ((427, 640), (800, 1199)),
        ((100, 1000), (133, 1333)),  # the long side decides
        ((1, 5000), (1, 1333)),
        ((800, 1333), (800, 1333)),
    ],
)
def test_images_come_to_1333_x_800_in_their_own_shape(own, expected):
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
