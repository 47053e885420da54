"""The metric against the function, and two real processes against one."""

import math
import pickle
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torchmetrics import MetricCollection

from mixlab import BinaryAUC
from mixlab.analysis.binary_auc import binary_auc

NUM_IMAGES = 41


def sample() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    maps = torch.rand(NUM_IMAGES, 7, 7, generator=generator)
    masks = (torch.rand(NUM_IMAGES, 28, 28, generator=generator) < 0.5).to(torch.uint8)
    masks[5], masks[17] = 0, 1
    return maps, masks


SPLITS = {  # how the images are dealt to two processes
    "interleaved": (range(0, NUM_IMAGES, 2), range(1, NUM_IMAGES, 2)),
    "uneven": (range(30), range(30, NUM_IMAGES)),
    "all to one": (range(NUM_IMAGES), range(0)),
}


def score_shares(rank: int, folder: str) -> None:
    if rank:
        torch.set_num_threads(1)  # threads do not survive a fork
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    maps, masks = sample()
    seen = {}
    for name, shares in SPLITS.items():
        metric, slim = BinaryAUC(keep_values=True), BinaryAUC()
        for part in torch.tensor(shares[rank], dtype=torch.int64).split(4):
            if len(part):
                metric.update(maps[part], masks[part])
                slim.update(maps[part], masks[part])
        metric.report()
        report = metric.report()  # syncing twice must not count twice
        assert slim.report().values is None
        seen[name] = {"means": [metric.compute().item(), slim.compute().item(), report.mean, slim.report().mean]}
        seen[name] |= {"counts": [report.num_scored, report.num_undefined], "values": report.values}
    torch.save(seen, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_give_the_single_process_value_to_the_last_bit(tmp_path):
    other = mp.get_context("fork").Process(target=score_shares, args=(1, str(tmp_path)))  # no second import of torch
    other.start()
    score_shares(0, str(tmp_path))  # this process is the first of the two
    other.join()
    assert other.exitcode == 0
    maps, masks = sample()
    single = BinaryAUC()
    single.update(maps, masks)
    scores = binary_auc(maps, masks)
    for rank in range(2):
        seen = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for name, shares in SPLITS.items():
            assert seen[name]["means"] == [single.compute().item()] * 4
            assert seen[name]["counts"] == [NUM_IMAGES - 2, 2]
            expected = scores[[*shares[0], *shares[1]]]
            torch.testing.assert_close(seen[name]["values"], expected, rtol=0, atol=0, equal_nan=True)


def test_the_mean_is_that_of_the_defined_images():
    maps, masks = sample()
    metric = BinaryAUC(keep_values=True)
    for part in range(0, NUM_IMAGES, 10):
        metric.update(maps[part : part + 10], masks[part : part + 10])
    scores = binary_auc(maps, masks)
    assert metric.compute().item() == pytest.approx(scores.nanmean().item(), abs=1e-10)
    report = metric.report()
    assert (report.num_scored, report.num_undefined) == (NUM_IMAGES - 2, 2)
    torch.testing.assert_close(report.values, scores, rtol=0, atol=0, equal_nan=True)


def test_the_order_of_images_does_not_change_a_bit_of_the_mean():
    maps, masks = sample()
    means = set()
    for seed in range(20):
        metric = BinaryAUC()
        for part in torch.randperm(NUM_IMAGES, generator=torch.Generator().manual_seed(seed)).split(1 + seed):
            metric.update(maps[part], masks[part])
        means.add(metric.compute().item())
    assert len(means) == 1


def test_arguments_reach_the_function():
    maps, masks = sample()
    masks[:, :9] = 2
    options = {"ignore": 2, "normalize": False, "resize": "map", "threshold": 0.3, "thresholds": 5}
    metric = BinaryAUC(**options)
    metric.update(maps, masks)
    assert metric.compute().item() == pytest.approx(binary_auc(maps, masks, **options).nanmean().item(), abs=1e-10)
    assert metric.compute().item() != pytest.approx(binary_auc(maps, masks, ignore=2).nanmean().item(), abs=1e-3)


def test_forward_gives_the_batch_and_keeps_the_total():
    maps, masks = sample()
    metric = BinaryAUC(keep_values=True)
    first, second = metric(maps[:20], masks[:20]), metric(maps[20:], masks[20:])
    assert first.item() == pytest.approx(binary_auc(maps[:20], masks[:20]).nanmean().item(), abs=1e-10)
    assert first.item() != second.item()
    assert metric.compute().item() == pytest.approx(binary_auc(maps, masks).nanmean().item(), abs=1e-10)
    assert len(metric.report().values) == NUM_IMAGES


def test_reset_forgets_everything():
    maps, masks = sample()
    metric = BinaryAUC(keep_values=True)
    metric.update(maps, masks)
    metric.reset()
    metric.update(maps[:3], masks[:3])
    report = metric.report()
    assert report.num_scored == 3 and len(report.values) == 3


def test_without_a_defined_image_the_mean_is_nan_and_the_images_are_counted():
    metric = BinaryAUC()
    metric.update(torch.rand(3, 2, 2), torch.zeros(3, 2, 2))
    report = metric.report()
    assert math.isnan(metric.compute().item()) and math.isnan(report.mean)
    assert (report.num_scored, report.num_undefined, report.values) == (0, 3, None)


def test_metrics_of_a_collection_have_the_values_of_their_own_arguments():
    """At first the counts of all of them are equal: no map is inverted, no pixel has the value that is ignored."""
    generator = torch.Generator().manual_seed(1)
    masks = (torch.rand(6, 8, 8, generator=generator) < 0.5).long()
    maps = masks + 0.1 * torch.rand(6, 8, 8, generator=generator)
    maps[3:] *= -1
    masks[3:, :3] = 2
    options = {"paper": {}, "raw": {"normalize": False}, "no twos": {"ignore": 2}, "cut": {"thresholds": (0, 0.5, 1)}}
    options |= {"again": {}, "cut again": {"thresholds": torch.tensor([0, 0.5, 1])}}
    metrics = MetricCollection({name: BinaryAUC(**given) for name, given in options.items()})
    for part in (slice(3), slice(3, 6)):
        metrics.update(maps[part], masks[part])
    for name, value in metrics.compute().items():
        expected = binary_auc(maps, masks, **options[name]).nanmean().item()
        assert value.item() == pytest.approx(expected, abs=1e-10), name
    groups = [["again", "paper"], ["cut", "cut again"], ["no twos"], ["raw"]]  # equal ones are updated once
    assert sorted(sorted(group) for group in metrics.compute_groups.values()) == groups
    metrics.reset()
    metrics.update(maps[3:], masks[3:])
    assert metrics.compute()["raw"].item() == pytest.approx(binary_auc(maps, masks, normalize=False)[3:].mean().item())


def test_metrics_of_the_same_arguments_are_added_up_also_after_pickling_and_others_are_refused():
    maps, masks = sample()
    parts = [BinaryAUC(normalize=False, keep_values=True) for _ in range(2)]
    for metric, part in zip(parts, (slice(20), slice(20, None)), strict=True):
        metric.update(maps[part], masks[part])
    first, second = (pickle.loads(pickle.dumps(metric)) for metric in parts)
    first.merge_state(second)
    expected = binary_auc(maps, masks, normalize=False).nanmean().item()
    assert first.compute().item() == pytest.approx(expected, abs=1e-10)
    before = BinaryAUC(keep_values=True)
    with pytest.raises(ValueError, match="of different arguments cannot be added up"):
        before.merge_state(first)
    assert before.num_scored == 0
