"""Features on disk: the right ones, resumable, checked, and never those of something else."""

import json
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_backbones import ALONE, DATA, tiny_backbone

import mixlab
from mixlab.backbones.backbone import Backbone
from mixlab.data.images import ImageFolder, parse_source
from mixlab.data.labelled import Relabelled
from mixlab.data.source import ImageSource, Subset
from mixlab.evaluation import feature_cache
from mixlab.evaluation.feature_cache import Extraction, FeatureCache, extract_features
from mixlab.evaluation.features import FeaturePlan, FeatureTable, HeadInput
from mixlab.evaluation.machine import CentreView, Machine, precision_in_use
from mixlab.training.distributed import World
from tests.bars import CountingBar

SHARD = 8


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_cache, "SHARD", SHARD)


def make_cache(
    folder: Path, *, seed: int = 0, source=None, stored: str = "float16", backbone: Backbone | None = None
) -> FeatureCache:
    backbone = backbone or tiny_backbone(seed)
    inputs = [HeadInput(2, "cls"), HeadInput(1, "mean")]
    plan = FeaturePlan.build(backbone, inputs, source="stream", image=16)
    extraction = Extraction(plan, CentreView(16, 1.0), "fp32", stored)
    return FeatureCache(folder, extraction, backbone=backbone, source=source or parse_source(DATA), name=DATA)


def fill(cache: FeatureCache, counts: list[int] | None = None, *, world: World = ALONE) -> FeatureTable:
    return cache.fill(Machine(world, batch=4), counts.append if counts is not None else lambda count: None)


def test_rows_are_the_features_of_the_images_in_half_precision(tmp_path: Path) -> None:
    cache, source = make_cache(tmp_path), parse_source(DATA)
    table = fill(cache)
    assert len(table) == 44 and table.labels.tolist() == source.labels().tolist()
    chosen = np.array([43, 0, 7, 8, 8, 20])  # across shards, out of order, one of them twice
    features, labels = table.rows(chosen, torch.device("cpu"))
    pixels = torch.stack([source.load(index) for index in chosen.tolist()]).float() / 255
    mean, std = (torch.tensor(part)[:, None, None] for part in (cache.backbone.pixel_mean, cache.backbone.pixel_std))
    expected = cache.extraction.plan.extract(cache.backbone, (pixels - mean) / std)
    torch.testing.assert_close(features, expected.half().float(), rtol=2e-3, atol=1e-3)
    assert features.dtype == torch.float32 and labels.tolist() == source.labels()[chosen].tolist()
    assert np.load(cache.folder / "00000.npy", allow_pickle=False).dtype == np.float16


def test_a_stopped_extraction_goes_on_with_the_missing_shards_only(tmp_path: Path) -> None:
    first = make_cache(tmp_path)
    whole = fill(first).all().clone()
    for number in (1, 5):
        (first.folder / f"{number:05d}.json").unlink()  # as a kill leaves a shard: without its description
    counts: list[int] = []
    again = fill(make_cache(tmp_path), counts)
    assert counts == [44 - 8 - 4, 4, 4, 4]  # what was there, then two batches of shard 1 and one of the last, short one
    assert torch.equal(again.all(), whole)


def test_a_bar_ends_with_the_last_image_that_this_rank_extracts(tmp_path: Path) -> None:
    cache, bar = make_cache(tmp_path), CountingBar()
    fill(cache)
    (cache.folder / "00001.json").unlink()
    machine = Machine(World(torch.device("cpu"), rank=1, size=2), batch=4, features=tmp_path, bar=bar)
    extract_features(cache.backbone, cache.source, cache.extraction, name=DATA, machine=machine)
    assert bar.totals == bar.done == [8 + 8 + 4]  # shards 1, 3 and 5 of six


def test_a_damaged_shard_is_made_again(tmp_path: Path) -> None:
    cache = make_cache(tmp_path)
    whole = fill(cache).all().clone()
    data = bytearray((cache.folder / "00002.npy").read_bytes())
    data[-3] ^= 4
    (cache.folder / "00002.npy").write_bytes(data)
    (cache.folder / "00004.json").write_text('{"features": "')
    counts: list[int] = []
    assert torch.equal(fill(make_cache(tmp_path), counts).all(), whole)
    assert counts[0] == 44 - 16


def test_other_weights_images_or_precision_never_share_a_folder(tmp_path: Path) -> None:
    caches = [
        make_cache(tmp_path),
        make_cache(tmp_path, seed=1),
        make_cache(tmp_path, source=parse_source("shapes:n=44,size=16,seed=1")),
        make_cache(tmp_path, source=Subset(parse_source(DATA), range(20))),
        make_cache(tmp_path, stored="float32"),
    ]
    assert len({cache.folder for cache in caches}) == len(caches)
    assert make_cache(tmp_path).folder == caches[0].folder
    assert not any(cache.folder.exists() for cache in caches)  # until there is something to keep
    fill(caches[0])
    assert json.loads((caches[0].folder / "about.json").read_text())["images"]["number"] == 44


def test_networks_with_the_same_weights_and_another_architecture_never_share_a_folder(tmp_path: Path) -> None:
    stack = {"dim": 16, "depth": 3, "image": 16, "patch": 4, "head_dim": 8}
    made = []
    for feature_map in ("softmax", "elu"):
        torch.manual_seed(0)
        made.append(mixlab.create_model("linearvit_tiny", feature_map=feature_map, **stack).eval())
    state, other = (backbone.state_dict() for backbone in made)
    assert all(torch.equal(state[name], other[name]) for name in state)
    softmax, elu = (fill(make_cache(tmp_path, backbone=backbone)).all() for backbone in made)
    assert not torch.equal(softmax, elu)


def test_images_that_were_replaced_under_their_names_are_extracted_anew(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    for name in ("ant", "bee", "cow"):
        (photos / name).mkdir(parents=True)
        for index in range(5):
            Image.new("RGB", (16, 16), (40 * index, 9, 9)).save(photos / name / f"{index}.png")

    def folder(source: ImageSource | None = None) -> Path:
        return make_cache(tmp_path, source=source or ImageFolder(photos)).folder

    def sources() -> list[ImageSource]:
        folder = ImageFolder(photos)
        some = Subset(folder, [2, 7, 12])
        return [folder, some, Subset(some, [1]), Relabelled(folder, ("ant", "bee"))]

    before = [folder(source) for source in sources()]
    assert [folder(source) for source in sources()] == before
    Image.new("RGB", (16, 16), (1, 2, 250)).save(photos / "bee" / "2.png")  # the seventh
    os.utime(photos / "bee" / "2.png", ns=(5, 5))
    assert all(folder(source) != old for source, old in zip(sources(), before, strict=True))
    now = folder()
    (photos / "ant" / "0.png").write_bytes(b"of another size")
    os.utime(photos / "ant" / "0.png", ns=(6, 6))
    assert folder() != now
    listed = ImageFolder(photos)
    (photos / "cow" / "4.png").unlink()  # since it was listed: unreadable, which is for the loader to say
    assert folder(listed) != now


def test_shards_that_were_replaced_under_their_names_are_extracted_anew(tmp_path: Path) -> None:
    for number in range(4):
        Image.new("RGB", (16, 16), (60 * number, 9, 9)).save(tmp_path / f"{number}.png")

    def write(images: tuple[int, ...]) -> ImageSource:
        with tarfile.open(tmp_path / "a.tar", "w") as tar:
            for place, number in enumerate(images):
                tar.add(tmp_path / f"{number}.png", f"{place}.png")
        return parse_source(f"wds:{tmp_path / 'a.tar'}")

    first = make_cache(tmp_path, source=write((0, 1, 2)))
    assert make_cache(tmp_path, source=parse_source(f"wds:{tmp_path / 'a.tar'}")).folder == first.folder
    assert make_cache(tmp_path, source=write((0, 1, 3))).folder != first.folder


def test_auto_is_bf16_on_a_gpu_and_fp32_elsewhere() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert (precision_in_use("auto", cpu), precision_in_use("auto", gpu)) == ("fp32", "bf16")
    assert (precision_in_use("bf16", cpu), precision_in_use("fp32", gpu)) == ("bf16", "fp32")


def test_ranks_extract_different_shards_and_all_read_all(tmp_path: Path) -> None:
    alone = fill(make_cache(tmp_path / "alone")).all()
    cache = make_cache(tmp_path / "both")
    device = torch.device("cpu")
    with pytest.raises(FileNotFoundError, match="ranks must share the folder"):
        fill(cache, world=World(device, rank=1, size=2))
    counts: list[int] = []
    table = fill(cache, counts, world=World(device, rank=0, size=2))
    assert sum(counts) == 24 and torch.equal(table.all(), alone)


def test_unreadable_images_are_left_out_and_named(tmp_path: Path) -> None:
    for index in range(11):
        folder = tmp_path / "photos" / "ab"[index % 2]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(index).integers(0, 255, (20, 30, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{index:02d}.png")
    for name in ("a/02.png", "b/09.png"):
        (tmp_path / "photos" / name).write_bytes(b"not an image")
    source = ImageFolder(tmp_path / "photos")
    with pytest.warns(UserWarning, match="skipped"):
        table = fill(make_cache(tmp_path, source=source))
    assert len(table) == 9
    assert {Path(path).name for path in table.unreadable} == {"02.png", "09.png"}
    assert [source.name(index) for index in table.numbers.tolist()] == sorted(
        name for name in source.paths if name not in ("a/02.png", "b/09.png")
    )
    assert fill(make_cache(tmp_path, source=source)).unreadable == table.unreadable  # known without reading again


def test_features_that_half_precision_cannot_hold_are_an_error_with_a_way_out(tmp_path: Path) -> None:
    def huge(folder: Path, stored: str) -> FeatureCache:
        cache = make_cache(folder, stored=stored)
        cache.backbone.final_norm.weight.data.mul_(1e6)
        return cache

    with pytest.raises(ValueError, match="NaN or infinity in float16; store them as float32"):
        fill(huge(tmp_path, "float16"))
    assert fill(huge(tmp_path, "float32")).all().isfinite().all()
