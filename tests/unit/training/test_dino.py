"""The parts of DINO: head, centre, teacher, views, and what tells a collapse."""

import math
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixlab.backbones.zoo import create_model
from mixlab.data.loader import Batch
from mixlab.recipes import RECIPES
from mixlab.training.dino import DinoConfig, DinoRecipe, describe_collapse
from mixlab.training.dino_parts import DinoCentre, DinoHead, koleo_loss
from mixlab.training.loop import train
from mixlab.training.optim import parameter_groups
from mixlab.training.recipe import BatchPart, to_pixels_of
from mixlab.training.settings import override

CONFIG = DinoConfig(
    num_prototypes=24, hidden=16, bottleneck=8, global_size=32, local_size=16, num_local=3, teacher_momentum=0.9
)


def small_recipe(**fields: object) -> DinoRecipe:
    torch.manual_seed(0)
    backbone = create_model("vit_tiny", dim=32, depth=2, patch=8, image=32, head_dim=16, **fields)
    return DinoRecipe(CONFIG, backbone, total_steps=100)


def batch(num_images: int = 4) -> Batch:
    generator = torch.Generator().manual_seed(3)
    images = torch.randint(0, 256, (num_images, 3, 32, 32), dtype=torch.uint8, generator=generator)
    numbers = torch.arange(num_images)
    return Batch(images, numbers, numbers, torch.full((num_images, 2), 32))


def test_the_head_is_torchs_weight_norm_with_its_norm_fixed_at_one() -> None:
    torch.manual_seed(0)
    head = DinoHead(dim=12, hidden=16, bottleneck=8, num_prototypes=20)
    last = nn.utils.parametrizations.weight_norm(nn.Linear(8, 20, bias=False))
    with torch.no_grad():
        last.parametrizations.weight.original0.fill_(1.0)
        last.parametrizations.weight.original1.copy_(head.prototypes)
    x = torch.randn(5, 12)
    expected = last(F.normalize(head.mlp(x), dim=-1))
    torch.testing.assert_close(head(x), expected)
    assert head(x).abs().max() <= 1 + 1e-6
    (expected_gradient,) = torch.autograd.grad(expected.square().sum(), last.parametrizations.weight.original1)
    (gradient,) = torch.autograd.grad(head(x).square().sum(), head.prototypes)
    torch.testing.assert_close(gradient, expected_gradient)


def test_views_of_all_sizes_come_out_in_order_as_if_each_went_alone() -> None:
    network = small_recipe().student.eval()
    views = [torch.randn(2, 3, 3, 32, 32), torch.randn(4, 3, 3, 16, 16)]
    cosines, features = network(views)
    assert cosines.shape == (6, 3, 24) and features.shape == (6, 3, 32)
    for index, view in enumerate([*views[0], *views[1]]):
        torch.testing.assert_close(cosines[index], network.head(network.backbone(view)), rtol=1e-4, atol=1e-5)


def test_the_centre_moves_to_the_mean_of_all_passes_of_a_step() -> None:
    centre = DinoCentre(5)
    centre.mean.copy_(torch.arange(5.0))
    passes = [torch.randn(2, 3, 5), torch.randn(2, 3, 5)]
    for teacher in passes:
        centre.collect(teacher)
    expected = torch.arange(5.0) * 0.9 + torch.cat(passes, dim=1).mean((0, 1)) * 0.1
    drift = (expected - torch.arange(5.0)).square().mean().sqrt()
    torch.testing.assert_close(centre.move(0.9), drift)
    torch.testing.assert_close(centre.mean, expected)


def test_the_teacher_starts_as_the_student_never_learns_by_gradient_and_follows_slowly() -> None:
    recipe = small_recipe()
    before = {name: value.clone() for name, value in recipe.teacher.state_dict().items()}
    assert all(torch.equal(before[name], value) for name, value in recipe.student.state_dict().items())
    loss, _ = recipe.loss(recipe.prepare(batch(), BatchPart(step=0, epoch=0)))
    loss.backward()
    assert all(parameter.grad is None for parameter in recipe.teacher.parameters())
    with torch.no_grad():
        for parameter in recipe.student.parameters():
            parameter += 1.0
    recipe.after_update(BatchPart(step=0, epoch=0))
    for name, value in recipe.teacher.state_dict().items():
        torch.testing.assert_close(value, before[name] + 0.1)


def test_the_teacher_drops_no_path_while_the_student_does() -> None:
    recipe = small_recipe(drop_path=0.9)
    recipe.network.train()
    view = [torch.randn(2, 8, 3, 32, 32)]
    assert torch.equal(recipe.teacher(view)[0], recipe.teacher(view)[0])
    assert not torch.equal(recipe.student(view)[0], recipe.student(view)[0])


def test_the_teacher_stands_still_at_the_end_of_a_run_of_less_than_an_epoch() -> None:
    torch.manual_seed(0)
    backbone = create_model("vit_tiny", dim=32, depth=1, patch=8, image=32, head_dim=16)
    config = replace(CONFIG, frozen_prototype_epochs=0)
    recipe = config.build(backbone, num_classes=0, total_steps=100, steps_per_epoch=1251)
    with torch.no_grad():
        for parameter in recipe.student.parameters():
            parameter += 1.0
    for step, share in ((0, 0.1), (50, 0.05), (99, 0.1 * (1 + math.cos(0.99 * math.pi)) / 2)):
        recipe.teacher.load_state_dict({k: v.clone().zero_() for k, v in recipe.teacher.state_dict().items()})
        recipe.after_update(BatchPart(step=step, epoch=0))
        for ours, theirs in zip(recipe.teacher.parameters(), recipe.student.parameters(), strict=True):
            torch.testing.assert_close(ours, share * theirs)


def test_a_run_too_short_to_free_its_prototypes_says_so() -> None:
    backbone = create_model("vit_tiny", dim=32, depth=1, patch=8, image=32, head_dim=16)
    for steps, epochs in ((100, 1), (2502, 2)):
        config = replace(CONFIG, frozen_prototype_epochs=epochs, teacher_warmup_epochs=0)
        with pytest.warns(UserWarning, match=f"frozen for {epochs * 1251} steps, and it has {steps};"):
            config.build(backbone, num_classes=0, total_steps=steps, steps_per_epoch=1251)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            config.build(backbone, num_classes=0, total_steps=2503, steps_per_epoch=1251)


def test_a_temperature_that_rises_for_longer_than_the_run_says_so() -> None:
    backbone = create_model("vit_tiny", dim=32, depth=1, patch=8, image=32, head_dim=16)
    config = replace(CONFIG, frozen_prototype_epochs=0, teacher_warmup_epochs=3)
    with pytest.warns(UserWarning, match="rises for 3 epochs, longer than the run"):
        config.build(backbone, num_classes=0, total_steps=20, steps_per_epoch=10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config.build(backbone, num_classes=0, total_steps=30, steps_per_epoch=10)


def test_the_teacher_sees_the_two_global_views_alone_even_if_local_ones_have_their_size() -> None:
    torch.manual_seed(0)
    backbone = create_model("vit_tiny", dim=32, depth=1, patch=8, image=32, head_dim=16)
    recipe = DinoRecipe(replace(CONFIG, local_size=32), backbone, total_steps=100)
    seen: list[int] = []
    recipe.teacher.register_forward_pre_hook(lambda module, inputs: seen.extend(len(views) for views in inputs[0]))
    recipe.loss(recipe.prepare(batch(), BatchPart(step=0, epoch=0)))
    assert seen == [2]


def test_training_tells_the_recipe_its_true_number_of_steps(tmp_path: Path) -> None:
    settings = ["steps=7", "batch=16", "model.dim=32", "model.depth=1", "method.num_local=1", "knn.every_epochs=0"]
    config = override(RECIPES["dino_vit_tiny64"](), settings)
    known: list[int] = []
    train(
        config,
        data="shapes:n=80,size=32",
        run=tmp_path,
        device="cpu",
        then=lambda t: known.append(t.recipe.total_steps),
    )
    assert known == [7]  # 5 steps an epoch


def test_prototypes_are_frozen_in_the_first_epoch_only() -> None:
    recipe = small_recipe()
    for epoch, frozen in ((0, True), (1, False)):
        recipe.loss(recipe.prepare(batch(), BatchPart(step=epoch, epoch=epoch)))[0].backward()
        recipe.before_update(BatchPart(step=epoch, epoch=epoch))
        assert (recipe.student.head.prototypes.grad is None) == frozen


@pytest.mark.parametrize("num_parts", [2, 4])
def test_parts_of_a_batch_get_the_views_of_the_whole_batch(num_parts: int) -> None:
    recipe, whole = small_recipe(), batch(4)
    together = recipe.views(whole, BatchPart(step=7, epoch=0, seed=5))
    size = 4 // num_parts
    for part in range(num_parts):
        rows = slice(part * size, (part + 1) * size)
        own_part = BatchPart(step=7, epoch=0, index=part, num_parts=num_parts, seed=5)
        own = recipe.views(Batch(*(column[rows] for column in whole)), own_part)
        for ours, theirs in zip(own, together, strict=True):
            torch.testing.assert_close(ours, theirs[:, rows])


def test_other_steps_and_other_seeds_draw_other_views() -> None:
    recipe, images = small_recipe(), batch()
    first = recipe.views(images, BatchPart(step=1, epoch=0, seed=0))[0]
    assert torch.equal(first, recipe.views(images, BatchPart(step=1, epoch=0, seed=0))[0])
    assert not torch.equal(first, recipe.views(images, BatchPart(step=2, epoch=0, seed=0))[0])
    assert not torch.equal(first, recipe.views(images, BatchPart(step=1, epoch=0, seed=1))[0])


def test_metrics_tell_uniform_targets_one_output_and_equal_features_apart() -> None:
    outputs = 16
    uniform = torch.full((2, 8, outputs), 1 / outputs)
    one = torch.zeros(2, 8, outputs)
    one[..., 3] = 1.0
    own = F.one_hot(torch.arange(16) % outputs, outputs).float().view(2, 8, outputs)
    features: Tensor = torch.randn(2, 8, 64)
    assert describe_collapse(uniform, features)["teacher_entropy"].item() == pytest.approx(math.log(outputs))
    assert describe_collapse(one, features)["teacher_entropy"].item() == pytest.approx(0.0, abs=1e-6)
    assert describe_collapse(one, features)["batch_entropy"].item() == pytest.approx(0.0, abs=1e-6)
    assert describe_collapse(own, features)["batch_entropy"].item() == pytest.approx(math.log(outputs))
    assert describe_collapse(own, features)["feature_spread"].item() > 0.9
    assert describe_collapse(own, torch.ones(2, 8, 64))["feature_spread"].item() < 1e-3


def test_a_backbone_with_other_pixel_statistics_gets_them() -> None:
    backbone = create_model("timm/vit_tiny_patch16_224")
    pixels = torch.rand(2, 3, 4, 4)
    mean, std = (torch.tensor(part)[:, None, None] for part in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    ours, theirs = (torch.tensor(part)[:, None, None] for part in (backbone.pixel_mean, backbone.pixel_std))
    torch.testing.assert_close(to_pixels_of(backbone, (pixels - mean) / std), (pixels - ours) / theirs)


def test_impossible_temperatures_and_momenta_are_refused() -> None:
    with pytest.raises(ValueError, match="teacher_temperature is 0"):
        DinoConfig(teacher_temperature=0)
    with pytest.raises(ValueError, match="centre_momentum is 2"):
        DinoConfig(centre_momentum=2)


def decayed(config: DinoConfig, name: str) -> set[str]:
    backbone = create_model(name, dim=32, depth=1, patch=8, image=32, head_dim=16)
    recipe = DinoRecipe(config, backbone, total_steps=1)
    return {name for group in parameter_groups(recipe.network, recipe.no_weight_decay()) if group["decay"]
            for name in group["names"]}  # fmt: skip


def test_what_decays_is_what_has_two_dimensions_in_the_released_code() -> None:
    head = {f"head.mlp.{layer}.weight" for layer in (0, 2, 4)} | {"head.prototypes", "head.lengths"}
    tokens = {"backbone.embed.tokens", "backbone.embed.positions.table"}
    patches = {"backbone.embed.project.weight"}
    free = replace(CONFIG, norm_last_layer=False)  # the lengths are a column in the released code
    ours = decayed(free, "dinovim_tiny")
    scan = {f"backbone.layers.0.mixer.{part}" for part in ("in_proj.weight", "out_proj.weight", "conv_weight")}
    assert ours == head | tokens | patches | scan
    of_vit = decayed(free, "vit_tiny")
    assert head | tokens | patches <= of_vit
    assert all(name.endswith("weight") for name in of_vit - head - tokens)
    registers = decayed(CONFIG, "dinomambareg_tiny")
    assert tokens | {"backbone.embed.token_positions"} <= registers
    assert decayed(replace(free, decay_tokens=False), "dinovim_tiny") == ours - tokens


def test_tokens_of_timm_s_models_decay_unless_they_are_spared() -> None:
    spared = {
        "vit_small_patch16_dinov3": {"cls_token", "reg_token"},
        "vit_tiny_patch16_224": {"cls_token", "pos_embed"},
    }
    for name, tokens in spared.items():
        recipes = [
            DinoRecipe(replace(CONFIG, decay_tokens=decay), create_model(f"timm/{name}", depth=1), total_steps=1)
            for decay in (True, False)
        ]
        every, some = (
            {key for group in parameter_groups(recipe.network, recipe.no_weight_decay()) if group["decay"]
             for key in group["names"]} for recipe in recipes
        )  # fmt: skip
        assert every - some == {f"backbone.model.{token}" for token in tokens} and some < every


@pytest.mark.parametrize("dropping", [True, False])
def test_the_teacher_drops_paths_only_where_it_is_asked_to(dropping: bool) -> None:
    backbone = create_model("vit_tiny", dim=32, depth=4, patch=8, image=32, head_dim=16, drop_path=0.9)
    recipe = DinoRecipe(replace(CONFIG, teacher_drop_path=dropping), backbone, total_steps=100)
    views = [torch.randn(2, 8, 3, 32, 32)]
    first, second = (recipe.teacher(views)[0] for _ in range(2))
    assert torch.equal(first, second) == (not dropping)


def test_lengths_of_prototypes_are_learned_after_the_first_epoch_and_frozen_in_it() -> None:
    torch.manual_seed(0)
    backbone = create_model("vit_tiny", dim=32, depth=1, patch=8, image=32, head_dim=16)
    recipe = DinoRecipe(replace(CONFIG, norm_last_layer=False), backbone, total_steps=100)
    head = recipe.student.head
    assert head.lengths is not None
    with torch.no_grad():
        head.lengths.copy_(torch.rand(24, 1) + 0.5)
    last = nn.utils.parametrizations.weight_norm(nn.Linear(8, 24, bias=False))
    with torch.no_grad():
        last.parametrizations.weight.original0.copy_(head.lengths)
        last.parametrizations.weight.original1.copy_(head.prototypes)
    x = torch.randn(5, 32)
    torch.testing.assert_close(head(x), last(F.normalize(head.mlp(x), dim=-1)))
    for epoch in (0, 1):
        loss, _ = recipe.loss(recipe.prepare(batch(), BatchPart(step=0, epoch=epoch)))
        loss.backward()
        recipe.before_update(BatchPart(step=0, epoch=epoch))
        assert [parameter.grad is not None for parameter in head.last_layer()] == [epoch == 1] * 2


def test_koleo_is_the_mean_log_distance_to_the_nearest_other_image() -> None:
    features = torch.randn(2, 5, 3, dtype=torch.float64)
    logs = []
    for view in F.normalize(features, dim=-1):
        for i, one in enumerate(view):
            logs.append(math.log(min(float((one - other).norm()) for j, other in enumerate(view) if j != i)))
    assert koleo_loss(features).item() == pytest.approx(-sum(logs) / 10, rel=1e-6)


def test_koleo_of_equal_features_stays_finite_and_falls_as_they_part() -> None:
    same = torch.ones(1, 4, 6, requires_grad=True)
    koleo_loss(same).backward()
    assert same.grad is not None and same.grad.isfinite().all()
    torch.manual_seed(0)
    direction = torch.randn(1, 4, 6)
    crowded = [koleo_loss(1 + scale * direction).item() for scale in (0.01, 0.1, 1.0)]
    assert crowded == sorted(crowded, reverse=True)
