"""One step: accumulation, activation checkpointing and compilation change nothing but the cost."""

import math
from dataclasses import replace

import pytest
import torch

from mixlab.backbones.zoo import create_model
from mixlab.data.loader import Batch
from mixlab.mixers.mamba2 import Mamba2, Mamba2Config
from mixlab.ops.mamba2 import op as mamba2_op
from mixlab.recipes import RECIPES
from mixlab.training.config import TrainConfig
from mixlab.training.dino import DinoRecipe
from mixlab.training.distributed import World
from mixlab.training.kept_scans import SHARE, KeptScans
from mixlab.training.recipe import BatchPart, Recipe, TensorDropPath, compile_recipe, seed_all, seed_for
from mixlab.training.settings import override
from mixlab.training.update import Update, _chooses_scans

WORLD = World(torch.device("cpu"))
SETTINGS = ["precision=fp64", "batch=8", "model.dim=32", "model.depth=2", "model.image=32", "method.num_prototypes=16",
            "method.hidden=16", "method.bottleneck=8", "method.num_local=2", "method.global_size=32",
            "method.local_size=16", "optim.warmup_epochs=0"]  # fmt: skip


def config(name: str, *settings: str) -> TrainConfig:
    return override(RECIPES[name](), [*SETTINGS, *settings])


def images(num: int = 8) -> Batch:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (num, 3, 32, 32), dtype=torch.uint8, generator=generator)
    return Batch(pixels, torch.arange(num) % 4, torch.arange(num), torch.full((num, 2), 32))


def train_three_steps(setup: TrainConfig, passes: list[Batch], prepare=None) -> tuple[Recipe, dict[str, torch.Tensor]]:
    seed_all(0)
    backbone = create_model(setup.model.name, **setup.model.fields)
    if prepare == "activations":
        backbone.set_grad_checkpointing()
    recipe = setup.method.build(backbone, num_classes=4, total_steps=4, steps_per_epoch=2)
    if prepare == "compile":
        compile_recipe(recipe, backend="aot_eager")
    for module in recipe.modules().values():
        module.double()
    update = Update(recipe, replace(setup, epochs=2), steps_per_epoch=2, world=WORLD)
    for step in range(3):
        metrics = update(passes, step)
    return recipe, metrics


def assert_same_weights(ours: Recipe, theirs: Recipe, tolerance: float = 1e-9) -> None:
    for prefix, module in theirs.modules().items():
        state = ours.modules()[prefix].state_dict()
        for name, value in module.state_dict().items():
            assert (state[name] - value).abs().max() < tolerance if value.numel() else True, (prefix, name)


@pytest.mark.parametrize("parts", [2, 4])
def test_a_batch_in_several_passes_is_the_batch_in_one(parts: int) -> None:
    setup, whole = config("dino_vit_tiny64", "method.spread=0"), images()  # that term looks at one pass at a time
    pieces = [Batch(*columns) for columns in zip(*(column.chunk(parts) for column in whole), strict=True)]
    once, metrics = train_three_steps(setup, [whole])
    often, same = train_three_steps(setup, pieces)
    assert_same_weights(often, once)
    assert same["loss"].item() == pytest.approx(metrics["loss"].item(), abs=1e-9)


@pytest.mark.parametrize("name", ["dino_vit_tiny64", "dino_dinovim_tiny64"])
def test_making_activations_twice_changes_no_weight(name: str) -> None:
    setup = config(name, "model.drop_path=0.3")
    plain, _ = train_three_steps(setup, [images()])
    twice, _ = train_three_steps(setup, [images()], "activations")
    assert_same_weights(twice, plain)


def test_compiled_layers_change_no_weight() -> None:
    setup = config("dino_vit_tiny64", "model.depth=1")
    plain, _ = train_three_steps(setup, [images()])
    compiled, _ = train_three_steps(setup, [images()], "compile")
    assert_same_weights(compiled, plain)


def test_drop_path_with_a_tensor_rate_keeps_the_mean_and_drops_whole_images() -> None:
    torch.manual_seed(0)
    drop = TensorDropPath(0.3).train()
    out = drop(torch.ones(20_000, 2, 3))
    assert out.mean().item() == pytest.approx(1.0, abs=0.02)
    kept = out[:, 0, 0] > 0
    assert kept.float().mean().item() == pytest.approx(0.7, abs=0.02)
    assert (out == out[:, :1, :1]).all()
    assert torch.equal(drop.eval()(out), out)


def test_metrics_are_scalars_without_gradients_and_hold_the_loss_and_the_norm() -> None:
    _, metrics = train_three_steps(config("dino_vit_tiny64"), [images()])
    assert {"loss", "grad_norm", "teacher_entropy", "batch_entropy", "feature_spread", "centre_drift"} == set(metrics)
    assert all(value.ndim == 0 and not value.requires_grad for value in metrics.values())


def test_learning_rate_and_weight_decay_follow_the_step() -> None:
    setup = override(config("dino_vit_tiny64"), ["optim.lr=0.1", "optim.lr_batch=4", "optim.weight_decay_end=0.4"])
    recipe, _ = train_three_steps(setup, [images()])
    update = Update(recipe, replace(setup, epochs=2), steps_per_epoch=2, world=WORLD)
    assert update.lr(0) == pytest.approx(0.1 * 8 / 4)
    assert update.lr(4) == pytest.approx(setup.optim.min_lr)
    assert (update.weight_decay(0), update.weight_decay(4)) == pytest.approx((0.04, 0.4))


def test_seeds_differ_for_other_numbers_and_repeat_for_the_same() -> None:
    seeds = {seed_for(seed, step, part) for seed in range(5) for step in range(20) for part in range(4)}
    assert len(seeds) == 400
    assert seed_for(1, 2, 3) == seed_for(1, 2, 3)
    seed_all(1, 2)
    first = torch.rand(3)
    seed_all(1, 2)
    assert torch.equal(first, torch.rand(3))


def test_a_pass_draws_other_numbers_than_its_batch_was_prepared_with(monkeypatch: pytest.MonkeyPatch) -> None:
    setup, seeds = config("dino_vit_tiny64"), []
    prepare = DinoRecipe.prepare

    def note(recipe: DinoRecipe, batch: Batch, part: BatchPart) -> tuple[torch.Tensor, ...]:
        seeds.append((torch.initial_seed(), part.generator().initial_seed()))
        return prepare(recipe, batch, part)  # type: ignore[arg-type]

    monkeypatch.setattr(DinoRecipe, "prepare", note)
    train_three_steps(setup, [images()])
    assert len(seeds) == 3 and all(dropped != cropped for dropped, cropped in seeds)


def test_as_many_layers_keep_their_scans_as_there_is_room_for() -> None:
    setup = config("dino_dinovim_tiny64")
    recipe = setup.method.build(create_model(setup.model.name, **setup.model.fields), num_classes=4, total_steps=4,
                                steps_per_epoch=2)  # fmt: skip
    mixers = [module for module in recipe.network.modules() if isinstance(module, Mamba2)]
    views = [torch.zeros(num, 8, 3, side, side) for num, side in ((2, 32), (2, 16))]  # as the settings above have them
    seen: list[int] = []  # tokens of each call
    with mixers[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[:2].numel())):
        recipe.network(views)
    assert len(seen) == 2
    layer = mixers[0].scan_bytes(torch.zeros(1, sum(seen), 32))
    for free_layers, kept in ((0.9, [False, False]), (1.5, [True, False]), (2.0, [True, True])):
        scans = KeptScans(recipe.network)
        assert not any(mixer.keep_scan for mixer in mixers)  # whatever an earlier run has left
        for num_passes in (1, 2):
            with scans.watching(num_passes):
                recipe.teacher(views)
                with torch.no_grad():
                    recipe.network(views)  # nothing is kept of these two
                for _ in range(num_passes):
                    recipe.network(views)
            assert not any(mixer._forward_pre_hooks for mixer in mixers)
        recipe.network(views)  # not watched
        scans.keep(free_bytes=math.ceil(layer * free_layers / SHARE))
        assert [mixer.keep_scan for mixer in mixers] == kept


@pytest.mark.parametrize(("fields", "length"), [({}, 38), ({"head_dim": 16, "state": 16}, 200)])
def test_a_mixer_knows_what_its_scan_takes(fields: dict[str, int], length: int) -> None:
    mixer = create_model("dinovim_tiny", depth=1).layer_modules[0].mixer if not fields else Mamba2(
        Mamba2Config(**fields), dim=64, depth=1)  # fmt: skip
    parameters = (mixer.conv_weight, mixer.conv_bias, mixer.dt_bias, mixer.A_log, mixer.skip, mixer.norm_weight)
    x = torch.zeros(2, length, mixer.out_proj.out_features)
    kept = mamba2_op._fake(mixer.in_proj(x), *parameters, mixer.out_proj.weight, mixer.config.head_dim, 1e-5, True)[1:]
    assert mixer.scan_bytes(x) == pytest.approx(sum(part.nbytes for part in kept), rel=0.1)


def test_a_run_chooses_what_it_keeps_only_where_nothing_else_decides() -> None:
    setup, gpu = config("dino_dinovim_tiny64"), World(torch.device("cuda"))
    recipe = setup.method.build(create_model("vit_tiny", depth=1), num_classes=4, total_steps=4, steps_per_epoch=2)
    assert _chooses_scans(recipe, setup, gpu) and not _chooses_scans(recipe, setup, WORLD)
    for setting in ("keep_scans=true", "keep_scans=false", "compile=true", "activation_checkpointing=true"):
        assert not _chooses_scans(recipe, override(setup, [setting]), gpu), setting
    recipe.static = False  # batches change shape: a later pass may take more
    assert not _chooses_scans(recipe, setup, gpu)
