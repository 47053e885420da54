"""The order of images: seeded, shared out without overlap, resumable to the sample, the same for any workers."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from mixlab.data import (
    Batch,
    BatchLoader,
    ImageFolder,
    ImageReader,
    ImageSource,
    SampleOrder,
    Shapes,
    TooManyUnreadableError,
    workers,
)
from mixlab.data.packed import PackedReader
from mixlab.data.sample_order import shuffled
from mixlab.errors import WorkError


def load(source: ImageSource, batch_size: int, *order: int, size: int = 8, **settings: Any) -> BatchLoader[Batch]:
    return BatchLoader(ImageReader(source, size), SampleOrder(len(source), batch_size, *order), **settings)


def numbers(loader: BatchLoader[Batch]) -> list[list[int]]:
    return [batch.indexes.tolist() for batch in loader]


@given(
    num_images=st.integers(1, 60),
    batch_size=st.integers(1, 9),
    world_size=st.integers(1, 4),
    seed=st.integers(0, 99),
    epoch=st.integers(0, 3),
)
@settings(max_examples=80, deadline=None)
def test_ranks_share_every_image_without_overlap(num_images, batch_size, world_size, seed, epoch):
    parts = [
        np.concatenate(
            list(SampleOrder(num_images, batch_size, seed, rank, world_size, drop_last=False).batches(epoch))
        )
        for rank in range(world_size)
    ]
    assert sorted(np.concatenate(parts).tolist()) == list(range(num_images))


@given(batches=st.integers(1, 6), batch_size=st.integers(1, 5), world_size=st.integers(2, 4), extra=st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_many_ranks_see_what_one_rank_with_the_same_global_batch_sees(batches, batch_size, world_size, extra):
    num_images = batches * batch_size * world_size + min(extra, batch_size * world_size - 1)
    alone = list(SampleOrder(num_images, batch_size * world_size, 7).batches(1))
    ranks = [list(SampleOrder(num_images, batch_size, 7, rank, world_size).batches(1)) for rank in range(world_size)]
    assert len(alone) == batches and all(len(rank) == batches for rank in ranks)
    for step, together in enumerate(alone):
        assert np.concatenate([rank[step] for rank in ranks]).tolist() == together.tolist()


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = {(seed, epoch): tuple(SampleOrder(50, 5, seed).permutation(epoch)) for seed in (0, 1) for epoch in (0, 1)}
    assert len(set(orders.values())) == 4
    assert SampleOrder(50, 5, 1).permutation(1).tolist() == list(orders[1, 1])
    assert SampleOrder(5, 5, shuffle=False).permutation(3).tolist() == [0, 1, 2, 3, 4]


def test_repeated_images_stand_beside_each_other_in_an_epoch_of_the_same_length():
    order = SampleOrder(30, 6, 1, repeats=3)
    steps = np.stack(list(order.batches(0)))
    assert steps.shape == (5, 6) and (steps.reshape(10, 3) == steps.reshape(10, 3)[:, :1]).all()
    assert len(set(steps.ravel().tolist())) == 10
    assert steps.ravel()[::3].tolist() == SampleOrder(30, 6, 1).permutation(0)[:10].tolist()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_order_and_the_pixels_do_not_depend_on_the_workers(num_workers):
    source = Shapes(size=16, num_images=40)
    expected = [batch.tolist() for batch in SampleOrder(40, 7, 3).batches(0)]
    batches = list(load(source, 7, 3, size=16, num_workers=num_workers))
    assert [batch.indexes.tolist() for batch in batches] == expected
    for batch in batches:
        assert isinstance(batch, Batch) and batch.images.dtype == torch.uint8
        assert torch.equal(batch.images, torch.stack([source.load(i) for i in batch.indexes.tolist()]))
        assert batch.labels.tolist() == [source.label(i) for i in batch.indexes.tolist()]
        assert batch.sizes.tolist() == [[16, 16]] * 7


@pytest.mark.parametrize(("num_workers", "stop"), [(0, 1), (0, 4), (0, 5), (0, 7), (1, 4)])
def test_a_loader_resumes_after_the_last_batch_given_out(num_workers, stop):
    def fresh() -> BatchLoader[Batch]:
        return load(Shapes(size=8, num_images=23), 4, 5, num_workers=num_workers)

    def stream(loader: BatchLoader[Batch], number: int) -> list[list[int]]:
        found: list[list[int]] = []
        while len(found) < number:
            for batch in loader:
                found.append(batch.indexes.tolist())
                if len(found) == number:
                    break
        return found

    whole = stream(fresh(), 12)
    first = fresh()
    head = stream(first, stop)
    second = fresh()
    second.load_state_dict(first.state_dict())
    assert head + stream(second, 12 - stop) == whole


def test_a_run_may_go_on_with_another_number_of_ranks():
    source = Shapes(size=8, num_images=48)
    alone = load(source, 8)
    whole = numbers(alone)
    first = load(source, 8)
    iterator = iter(first)
    head = [next(iterator).indexes.tolist() for _ in range(2)]
    ranks = [load(source, 4, 0, rank, 2) for rank in range(2)]
    for loader in ranks:
        loader.load_state_dict(first.state_dict())
    tails = [numbers(loader) for loader in ranks]
    assert head + [a + b for a, b in zip(*tails, strict=True)] == whole


def test_a_position_in_other_data_is_refused():
    state = load(Shapes(size=8, num_images=10), 2).state_dict()
    with pytest.raises(ValueError, match="num_images 10, here it is 12"):
        load(Shapes(size=8, num_images=12), 2).load_state_dict(state)
    with pytest.raises(ValueError, match="seed 0, here it is 1"):
        load(Shapes(size=8, num_images=10), 2, 1).load_state_dict(state)


@pytest.fixture
def photos(tmp_path: Path) -> ImageFolder:
    for number in range(12):
        Image.new("RGB", (10 + number, 8), (number, 0, 0)).save(tmp_path / f"{number:02d}.png")
    (tmp_path / "03.png").write_bytes(b"broken")
    (tmp_path / "04.png").write_bytes(b"")
    return ImageFolder(tmp_path)


@pytest.mark.filterwarnings("ignore:skipped")
@pytest.mark.parametrize("num_workers", [0, 1])
def test_training_replaces_unreadable_images_by_the_next_one(photos, num_workers):
    reader = ImageReader(photos, 8)
    loader = BatchLoader(reader, SampleOrder.in_turn(12, 4), num_workers=num_workers, skip_limit=0.5)
    batches = list(loader)
    found = [index for batch in batches for index in batch.indexes.tolist()]
    assert found == [0, 1, 2, 5, 5, 5, 6, 7, 8, 9, 10, 11]
    assert [int(image[0, 0, 0]) for batch in batches for image in batch.images] == found
    assert {Path(path).name for path in loader.skipped.reasons} == {"03.png", "04.png"}
    assert batches[0].sizes.tolist() == [[8, 10], [8, 11], [8, 12], [8, 15]]


@pytest.mark.filterwarnings("ignore:skipped")
def test_evaluation_leaves_unreadable_images_out(photos):
    loader = BatchLoader(ImageReader(photos, 8), SampleOrder.in_turn(12, 2), unreadable="drop", skip_limit=0.5)
    assert [i for batch in numbers(loader) for i in batch] == [0, 1, 2, 5, 6, 7, 8, 9, 10, 11]
    again = load(photos, 2, skip_limit=0.5)
    again.load_state_dict(loader.state_dict())
    assert len(again.skipped) == 2


def test_each_unreadable_image_is_named_in_a_warning_once(photos):
    loader = load(photos, 12, skip_limit=0.5)
    with pytest.warns(UserWarning, match="skipped") as caught:
        numbers(loader), numbers(loader)
    assert len(caught) == 2


@pytest.mark.filterwarnings("ignore:skipped")
@pytest.mark.parametrize("num_workers", [0, 1])
def test_too_many_unreadable_images_stop_the_run(photos, num_workers):
    with pytest.raises(TooManyUnreadableError, match="of 12"):
        numbers(load(photos, 4, num_workers=num_workers))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: SampleOrder(10, 0), "at least 1"),
        (lambda: SampleOrder(10, 11), "at most 10"),
        (lambda: SampleOrder(10, 2, rank=2, world_size=2), "rank 2"),
        (lambda: load(Shapes(size=8, num_images=10), 2, unreadable="ignore"), "replace"),
    ],
)
def test_wrong_settings_are_refused_with_a_way_out(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()


def test_images_in_turn_come_once_each_by_number_in_batches_of_no_more_than_there_are():
    ranks = [SampleOrder.in_turn(7, 3, rank, 2) for rank in range(2)]
    steps = zip(*(order.batches(0) for order in ranks), strict=True)
    assert [[part.tolist() for part in parts] for parts in steps] == [[[0, 1, 2], [3, 4, 5]], [[6], []]]
    assert [batch.tolist() for batch in SampleOrder.in_turn(2, 256).batches(4)] == [[0, 1]]


def test_processes_whose_batches_do_not_fit_into_shared_memory_are_not_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = Shapes(size=32, num_images=40)
    loader = load(source, 8, size=32, num_workers=2)
    kept = (2 * 2 + 1) * 8 * 3 * 32**2
    monkeypatch.setattr(workers.shutil, "disk_usage", lambda place: shutil._ntuple_diskusage(0, 0, kept - 1))
    with pytest.raises(WorkError, match=r"2 processes .* but /dev/shm has 0 MB free; use at most 1 of them"):
        next(iter(loader))
    monkeypatch.setattr(workers.shutil, "disk_usage", lambda place: shutil._ntuple_diskusage(0, 0, 2 * kept - 1))
    assert len(next(iter(loader)).indexes) == 8
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(WorkError, match="2 processes that read data on each of 2 ranks"):
        next(iter(load(source, 8, size=32, num_workers=2)))


def test_the_size_of_a_batch_is_estimated_from_some_of_its_samples(photos) -> None:
    reader = PackedReader(photos, lambda height, width: 1, None)
    batch = reader.collate([reader.read(index, 0) for index in range(len(photos)) if index not in (3, 4)])
    each = sum(part.nbytes for part in (*batch.images, *batch[1:])) / len(batch.indexes)
    assert reader.sample_bytes() == pytest.approx(each, rel=0.05)


@given(total=st.integers(1, 3000), seed=st.integers(0, 9), epoch=st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_the_order_of_a_large_set_is_a_permutation_of_which_any_part_is_known_alone(total, seed, epoch):
    order = shuffled(np.arange(total), total, (seed, epoch))
    assert sorted(order.tolist()) == list(range(total))
    assert shuffled(np.array([total // 2]), total, (seed, epoch)).tolist() == [order[total // 2]]


def test_the_order_of_a_large_set_looks_random_and_differs_between_epochs() -> None:
    total = 100_003
    orders = [shuffled(np.arange(total), total, (0, epoch)) for epoch in range(3)]
    for order in orders:
        assert abs(np.corrcoef(np.arange(total), order)[0, 1]) < 0.02
        assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.02
        counts = np.bincount(order[: total // 2] * 20 // total, minlength=20)  # where the first half comes from
        assert abs(counts / (total / 40) - 1).max() < 0.06
    assert (orders[0] == orders[1]).mean() < 0.001 and (orders[1] == orders[2]).mean() < 0.001


@pytest.mark.parametrize("repeats", [1, 3])
def test_a_large_set_is_shared_out_and_resumed_like_a_small_one(repeats: int) -> None:
    one = SampleOrder(50, 8, seed=3, large=50, repeats=repeats)
    assert one.is_large and not SampleOrder(49, 8, large=50).is_large
    whole = np.concatenate(list(one.batches(1)))
    assert np.array_equal(whole, one.permutation(1)[:48])
    for world_size in (2, 4):
        ranks = [SampleOrder(50, 8 // world_size, 3, rank, world_size, large=50, repeats=repeats)
                 for rank in range(world_size)]  # fmt: skip
        steps = zip(*(order.batches(1, start=16) for order in ranks), strict=True)
        assert np.array_equal(np.concatenate([np.concatenate(parts) for parts in steps]), whole[16:])


def test_a_run_of_before_keeps_its_permutation_however_large_its_set_is() -> None:
    def loader(large: int) -> BatchLoader[Batch]:
        source = Shapes(size=8, num_images=40)
        return BatchLoader(ImageReader(source, 8), SampleOrder(40, 4, seed=1, large=large))

    small, large = loader(1000), loader(40)
    before = small.state_dict()
    assert "large" not in before and large.state_dict()["large"] == 40
    large.load_state_dict(before)
    assert numbers(large) == numbers(loader(1000)) != numbers(loader(40))
    again = loader(1000)  # and one that began without a permutation goes on without
    again.load_state_dict(loader(40).state_dict())
    assert numbers(again) == numbers(loader(40))
