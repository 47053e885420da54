"""The seam of dense tasks: kinds of method, what a loader may give, where weights come from, how long a run is."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from timm.layers import DropPath
from torch import Tensor, nn

from mixlab.backbones.weights import save_weights
from mixlab.backbones.zoo import create_model
from mixlab.data.decode import UnreadableImage
from mixlab.data.loader import BatchLoader, SampleReader
from mixlab.data.sample_order import SampleOrder
from mixlab.evaluation.dense_recipe import DenseConfig, DenseNetwork, DenseScores
from mixlab.evaluation.dense_task import settings_digest, starting_point
from mixlab.evaluation.methods import METHODS, train_config
from mixlab.evaluation.segmentation.recipe import SegmentConfig
from mixlab.evaluation.segmentation.task import plan_segmentation
from mixlab.recipes import RECIPES
from mixlab.run import RunDirectory
from mixlab.run.codec import to_json
from mixlab.training.config import ModelConfig
from mixlab.training.distributed import World
from mixlab.training.loop import train
from mixlab.training.settings import override
from mixlab.training.stored_settings import check_settings

TINY = {"dim": 16, "depth": 4, "patch": 4, "image": 32}


class Words(NamedTuple):
    text: list[str]
    indexes: Tensor

    def to(self, device: torch.device | str) -> "Words":
        return self


class WordReader(SampleReader[tuple[str, int], Words]):
    """Samples that are no images: the loader must not care."""

    def __init__(self, num: int, bad: tuple[int, ...] = ()) -> None:
        self.num, self.bad = num, bad

    def __len__(self) -> int:
        return self.num

    def read(self, index: int, epoch: int) -> tuple[str, int]:
        if index in self.bad:
            raise UnreadableImage(f"word {index}", "cannot be spelt")
        return f"{epoch}:{index}", index

    def collate(self, samples: list[tuple[str, int]]) -> Words:
        return Words([text for text, _ in samples], torch.tensor([index for _, index in samples], dtype=torch.int64))


@dataclass(frozen=True)
class Backwards(SampleOrder):
    def permutation(self, epoch: int):
        return np.arange(self.num_images)[::-1].copy()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_loader_gives_samples_of_any_kind_and_tells_them_their_epoch(num_workers: int) -> None:
    loader = BatchLoader(WordReader(7), SampleOrder(7, 3, seed=1), num_workers=num_workers)
    for epoch in range(2):
        found = [batch.text for batch in loader]
        expected = [[f"{epoch}:{i}" for i in part] for part in SampleOrder(7, 3, seed=1).batches(epoch)]
        assert found == expected


def test_a_loader_takes_an_order_of_its_own_and_goes_on_in_it() -> None:
    first = BatchLoader(WordReader(8), Backwards(8, 2))
    batches = iter(first)
    head = [next(batches).indexes.tolist() for _ in range(2)]
    second = BatchLoader(WordReader(8), Backwards(8, 2))
    second.load_state_dict(first.state_dict())
    assert head + [batch.indexes.tolist() for batch in second] == [[7, 6], [5, 4], [3, 2], [1, 0]]


def test_what_cannot_be_read_is_replaced_by_the_next_or_left_out() -> None:
    with pytest.warns(UserWarning, match="word 2: cannot be spelt"):
        full = BatchLoader(WordReader(6, bad=(2,)), SampleOrder(6, 3, shuffle=False), skip_limit=0.5)
        assert [batch.indexes.tolist() for batch in full] == [[0, 1, 3], [3, 4, 5]]
    with pytest.warns(UserWarning, match="cannot be spelt"):
        order = SampleOrder(6, 3, shuffle=False)
        short = BatchLoader(WordReader(6, bad=(0, 1, 2)), order, unreadable="drop", skip_limit=0.5)
        assert [batch.indexes.tolist() for batch in short] == [[3, 4, 5]]


def test_config_files_know_the_methods_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Weighing(DenseConfig):
        kind: ClassVar[str] = "weighing"
        grams: float = 1.5
        image = 8

        def build(self, backbone, *, num_classes: int, total_steps: int, steps_per_epoch: int):
            raise NotImplementedError

    values = to_json(RECIPES["segment_vit_tiny64"]())
    values["method"] = {"kind": "weighing", "grams": 2.0, "taps": [0, 1, 2, 3]}
    with pytest.raises(ValueError, match="'weighing'; choose one of dino, .*, segment, detect"):
        train_config(values)
    monkeypatch.setitem(METHODS, "weighing", Weighing)
    read = train_config(values)
    assert isinstance(read.method, Weighing) and read.method.grams == 2.0 and read.method.taps == (0, 1, 2, 3)
    assert to_json(read)["method"]["kind"] == "weighing"
    assert override(read, ["method.taps=0,0,1,1"]).method.taps == (0, 0, 1, 1)


def test_steps_count_instead_of_epochs_where_given() -> None:
    config = RECIPES["segment_vit_tiny64"]()
    assert (config.epochs, config.total_steps(10)) == (0, config.steps)
    by_epochs = override(config, ["epochs=3", "steps=none"])
    assert by_epochs.total_steps(10) == 30
    with pytest.raises(ValueError, match="steps is 0; give at least 1"):
        override(config, ["steps=0"])
    with pytest.raises(ValueError, match="epochs is 0; give at least 1"):
        override(config, ["steps=none"])


def test_a_run_of_steps_stops_within_an_epoch_and_scores_there(tmp_path: Path) -> None:
    settings = ["steps=5", "batch=4", "model.dim=16", "model.image=32", "method.crop=16", "method.short_side=16",
                "method.channels=16", "method.score_every_epochs=1", "method.score_images=4",
                "log.every_steps=1", "optim.warmup_steps=1"]  # fmt: skip
    config = override(RECIPES["segment_gatedconv_tiny64"](), settings)
    outcome = train(config, data="shapes:n=12,size=16", run=tmp_path / "run", device="cpu")
    assert outcome.step == 5 and "miou" in outcome.metrics  # 3 steps an epoch: scored after 0, 3 and 5
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert sum('"miou"' in line for line in lines) == 3


def test_a_model_starts_from_a_file_or_from_a_finished_run(tmp_path: Path) -> None:
    torch.manual_seed(0)
    trained = create_model("gatedconv_tiny", **TINY)
    run = tmp_path / "run"
    run.mkdir()
    save_weights(trained, run / "weights.safetensors")
    for weights in (run, run / "weights.safetensors"):
        model = ModelConfig(name="gatedconv_tiny", fields=TINY, weights=str(weights)).build()
        assert all(
            torch.equal(a, b) for a, b in zip(model.state_dict().values(), trained.state_dict().values(), strict=True)
        )
    fresh = ModelConfig(name="gatedconv_tiny", fields=TINY).build()
    assert not torch.equal(fresh.embed.project.weight, trained.embed.project.weight)
    with pytest.raises(FileNotFoundError, match=r"model.weights: there is no .*weights.safetensors"):
        ModelConfig(name="gatedconv_tiny", weights=str(tmp_path)).build()


def test_a_directory_without_weights_is_no_start(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match="holds no network, neither weights.safetensors nor checkpoints"):
        starting_point(str(tmp_path))
    with pytest.raises(ValueError, match="has weights of its own"):
        starting_point(str(tmp_path), weights="file.pth")


def test_a_recipe_keeps_its_fields_for_the_model_of_its_name_only() -> None:
    recipe = RECIPES["segment_dinovim_tiny64"]()

    def planned(target: str) -> ModelConfig:
        return plan_segmentation(target, data="shapes", recipe=recipe).config.model

    assert planned("dinovim_tiny") == recipe.model
    assert planned("vit_small") == ModelConfig(name="vit_small")


def test_a_digest_of_settings_differs_where_scores_may_and_the_protocol_does_not_say_how() -> None:
    config = RECIPES["segment_vit_tiny64"]()

    def same(*settings: str) -> bool:
        return settings_digest(override(config, settings)) == settings_digest(config)

    assert same("seed=3", "steps=7", "log.every_steps=1", "data.workers=2", "model.dim=32", "method.frozen=true")
    assert not any(same(setting) for setting in ("optim.lr=1", "batch=4", "method.crop=32", "method.dropout=0.5"))


def test_the_head_goes_out_and_comes_back_without_the_backbone() -> None:
    def build():
        return SegmentConfig(crop=32, channels=16, auxiliary_channels=8, norm="group").build(
            create_model("gatedconv_tiny", **TINY), num_classes=4, total_steps=1, steps_per_epoch=1
        )

    first, second = build(), build()
    head = first.exported_head()
    assert head and not any("backbone" in name for name in head)
    own = {name: value.clone() for name, value in second.backbone.state_dict().items()}
    second.load_head(head)
    assert all(torch.equal(own[name], value) for name, value in second.backbone.state_dict().items())
    assert all(torch.equal(head[name], second.network.state_dict()[name]) for name in head)


def test_shards_are_refused_with_a_way_out() -> None:
    recipe = SegmentConfig(channels=16).build(
        create_model("gatedconv_tiny", **TINY), num_classes=4, total_steps=1, steps_per_epoch=1
    )
    with pytest.raises(ValueError, match="sharding=ddp"):
        recipe.shard(lambda module: None)


def test_scores_see_the_network_in_evaluation_mode_and_give_it_back_as_it_was() -> None:
    recipe = SegmentConfig(channels=16, frozen=True).build(
        create_model("gatedconv_tiny", **TINY), num_classes=4, total_steps=1, steps_per_epoch=1
    )
    recipe.network.train()
    seen: list[bool] = []

    def measure(network: nn.Module, stopped: Callable[[], bool]):
        seen.extend([network.training, torch.is_grad_enabled()])
        yield "half", 0.5

    scores = DenseScores(2, measure)
    assert list(scores(recipe)) == [("half", 0.5)] and seen == [False, False]
    assert isinstance(recipe.network, DenseNetwork) and recipe.network.training
    assert not recipe.backbone.training  # frozen
    assert [epoch for epoch in range(1, 6) if scores.due(epoch, 5)] == [2, 4, 5]
    assert not DenseScores(0, measure).due(5, 5)


def test_a_run_that_is_older_than_a_setting_goes_on_with_its_default(tmp_path: Path) -> None:
    config = RECIPES["supervised_vit_tiny64"]()
    before = json.loads(json.dumps(to_json(config)))
    for key in ("decay", "drop_epochs", "warmup_steps", "warmup_start"):
        del before["optim"][key]
    del before["steps"], before["model"]["weights"]
    folder = RunDirectory.create(tmp_path)
    folder.write_config({"data": "shapes", "settings": before})
    (tmp_path / "weights.safetensors").touch()
    assert check_settings(folder, data="shapes", config=config)["settings"] == before
    with pytest.raises(ValueError, match="optim.decay was 'cosine', is 'poly'"):
        check_settings(folder, data="shapes", config=override(config, ["optim.decay=poly"]))


@pytest.mark.parametrize(("kind", "reader"), [("segment", "score_label_maps"), ("detect", "find_objects")])
def test_images_of_live_scores_are_read_by_as_many_workers_as_training_has(
    kind: str, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Read(Exception):  # noqa: N818  the test ends here
        pass

    def read(*_: object, workers: int, **__: object) -> None:
        asked.append(workers)
        raise Read

    asked: list[int] = []
    config = override(RECIPES[f"{kind}_vit_tiny64"](), ["method.score_every_epochs=1", "data.workers=3"])
    module = import_module(type(config.method).__module__)
    monkeypatch.setattr(module, reader, read)
    source = config.method.open("shapes:n=8,size=32")
    scores = config.method.scores(
        "shapes:n=8,size=32", source, config, world=World(torch.device("cpu")), precise=nullcontext
    )
    backbone = create_model(config.model.name, **config.model.fields)
    recipe = config.method.build(backbone, num_classes=len(source.classes), total_steps=1, steps_per_epoch=1)
    with pytest.raises(Read):
        list(scores(recipe))
    assert asked == [3]


def drop_paths(backbone: nn.Module) -> list[float]:
    return [getattr(layer.drop_path, "drop_prob", 0.0) for layer in backbone.layers]


def test_fine_tuning_drops_paths_alike_however_its_target_is_named(tmp_path: Path) -> None:
    fields = {**TINY, "head_dim": 8, "drop_path": 0.3}
    pretrained = create_model("vit_tiny", **fields)
    save_weights(pretrained, tmp_path / "exported.safetensors")
    run = RunDirectory.create(tmp_path / "run")
    save_weights(pretrained, run.path / "weights.safetensors")
    model = ModelConfig(name="vit_tiny", fields=fields)
    run.write_config({"data": "x", "settings": to_json(replace(RECIPES["dino_vit_tiny64"](), model=model))})
    targets = (str(run.path), str(tmp_path / "exported.safetensors"), pretrained)
    for target in targets:
        plan = plan_segmentation(target, data="ade:x")
        backbone = plan.start.backbone or plan.config.model.build()
        recipe = plan.config.method.build(backbone, num_classes=3, total_steps=9, steps_per_epoch=3)
        assert drop_paths(recipe.backbone) == pytest.approx([0.0, 0.1 / 3, 0.2 / 3, 0.1]), target
    by_name = plan_segmentation("vit_tiny", data="ade:x").config
    assert by_name.method.drop_path == 0.1
    older = {key: value for key, value in to_json(by_name.method).items() if key != "drop_path"}
    assert by_name.method.as_begun(older).drop_path is None, "a run that began before keeps what it was built with"


@pytest.mark.parametrize(("name", "rate"), [("mambaout_femto", 0.025), ("mambaout_base", 0.6), ("dinovim_base", 0.1)])
def test_published_recipes_fine_tune_with_the_stochastic_depth_of_pretraining(name: str, rate: float) -> None:
    assert RECIPES[f"segment_{name}"]().method.drop_path == RECIPES[f"detect_{name}"]().method.drop_path == rate
    if name == "mambaout_femto":
        backbone, theirs = create_model(name), create_model(name, drop_path_rate=rate)
        backbone.set_drop_path(rate)
        rates = [[module.drop_prob for module in model.modules() if isinstance(module, DropPath)]
                 for model in (backbone, theirs)]  # fmt: skip
        assert rates[0] == pytest.approx(rates[1])
