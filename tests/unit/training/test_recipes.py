"""Every recipe can be built, and says what the papers say."""

from dataclasses import fields, replace

import pytest

from mixlab.backbones.meta import without_storage
from mixlab.backbones.zoo import create_model, known_fields, list_models
from mixlab.recipes import RECIPE_FAMILIES, RECIPES
from mixlab.training.dino import DinoConfig
from mixlab.training.optim import parameter_groups
from mixlab.training.supervised import SupervisedConfig
from mixlab.training.views import ViewsConfig

# One of each function and family: sizes of a family differ in their width alone.
OTHER_SIZES = (
    "_small", "_base", "_large", "_kobe", "mambaout_tiny", "_l2", "_l3", "_s2l5", "l15", "l20", "_midclstok", "160",
)  # fmt: skip
BUILT = [name for name in RECIPES if not name.endswith(OTHER_SIZES)]


@pytest.mark.parametrize("name", BUILT)
def test_every_recipe_builds_its_network_and_its_groups(name: str) -> None:
    config = RECIPES[name]()
    shallow = {"depth": 4} if "depth" in (known_fields(config.model.name) or ()) else {}  # all layers are alike
    with without_storage():
        backbone = create_model(config.model.name, **config.model.fields | shallow)
        recipe = config.method.build(backbone, num_classes=10, total_steps=config.total_steps(3), steps_per_epoch=3)
    groups = parameter_groups(recipe.network, recipe.no_weight_decay())
    assert all(group["params"] for group in groups)


@pytest.mark.parametrize("family", ["vit", "linearvit", "dinovim", "dinomambareg"])
def test_dino_recipes_have_the_hyper_parameters_of_the_paper(family: str) -> None:
    for size in ("tiny", "small", "base"):
        check_dino(f"dino_{family}_{size}")


def check_dino(name: str) -> None:
    config = RECIPES[name]()
    method = config.method
    assert isinstance(method, DinoConfig)
    assert config.optim.lr * config.batch / config.optim.lr_batch == 5e-4 * 1024 / 256
    assert (config.epochs, config.optim.warmup_epochs, config.optim.min_lr) == (100, 10, 1e-6)
    assert (config.optim.weight_decay, config.optim.weight_decay_end) == (0.04, 0.4)
    assert (method.num_prototypes, method.hidden, method.bottleneck) == (65_536, 2048, 256)
    assert method.student_temperature == 0.1
    assert (method.teacher_temperature_start, method.teacher_temperature) == (0.04, 0.07)
    assert (method.teacher_warmup_epochs, method.teacher_momentum, method.centre_momentum) == (30, 0.996, 0.9)
    assert (method.global_size, method.local_size, method.num_local) == (224, 96, 8)
    assert (method.global_scale, method.local_scale) == ((0.4, 1.0), (0.05, 0.4))
    assert config.optim.clip == (0.3 if name in ("dino_vit_base", "dino_linearvit_base") else 3.0)
    assert config.model.fields["drop_path"] == 0.1 and config.precision == "bf16"
    # Of the released codes: Dino-Mamba's teachers drop paths, DINO's do not; both decay tokens and positions.
    assert method.teacher_drop_path == ("vit" not in name) and method.decay_tokens and method.norm_last_layer
    assert config.data.size is None, "crops are cut from the image as it is"


@pytest.mark.parametrize(("size", "rate"), [("femto", 0.025), ("tiny", 0.2), ("small", 0.4), ("base", 0.6)])
def test_mambaout_recipes_have_the_hyper_parameters_of_table_5(size: str, rate: float) -> None:
    config = RECIPES[f"supervised_mambaout_{size}"]()
    method = config.method
    assert isinstance(method, SupervisedConfig)
    assert (config.optim.lr, config.optim.lr_batch, config.batch) == (4e-3, 4096, 4096)
    assert (config.epochs, config.optim.warmup_epochs, config.optim.weight_decay) == (300, 20, 0.05)
    assert (method.rand_augment, method.rand_augment_deviation) == (9.0, 0.5)
    assert (method.mixup, method.cutmix, method.switch) == (0.8, 1.0, 0.5)
    assert (method.erasing, method.smoothing, config.model.fields["drop_path_rate"]) == (0.25, 0.1, rate)
    # Of the released code: 128 images a process, timm's order, its rates at the start and at the end.
    assert (method.mix_every, method.erase_first, method.interpolation, method.repeats) == (128, False, "random", 1)
    assert (config.optim.min_lr, config.optim.lr * config.optim.warmup_start) == (1e-5, pytest.approx(1e-6))
    assert config.data.size is None


def test_visual_mambas_drop_paths_as_they_were_released() -> None:
    names = ("vim_small_stride8", "vmamba_tiny_s1l8", "vmamba_base_s2l15", "vmamba_base_s1l20", "localvim_tiny")
    rates = [RECIPES[f"supervised_{name}"]().model.fields["drop_path"] for name in names]
    assert rates == [0.05, 0.2, 0.6, 0.5, 0.1]


@pytest.mark.parametrize("name", ["vit_tiny", "vit_small", "vit_base", "vit_causal_tiny", "vit_causal_small"])
def test_supervised_transformers_train_as_deit_does(name: str) -> None:
    config = RECIPES[f"supervised_{name}"]()
    method = config.method
    assert isinstance(method, SupervisedConfig)
    assert (config.epochs, config.batch, config.optim.warmup_epochs, config.optim.weight_decay) == (300, 1024, 5, 0.05)
    assert config.optim.lr * config.batch / config.optim.lr_batch == 5e-4 * 1024 / 512
    assert (config.optim.min_lr, 1e-3 * config.optim.warmup_start) == (1e-5, pytest.approx(1e-6))
    assert (method.rand_augment, method.mixup, method.cutmix, method.switch) == (9.0, 0.8, 1.0, 0.5)
    assert (method.erasing, method.smoothing, config.model.fields["drop_path"]) == (0.25, 0.1, 0.1)
    assert (method.erase_first, method.interpolation, method.repeats) == (True, "bicubic", 3)


@pytest.mark.parametrize(
    ("size", "least", "most", "tokens"), [("tiny", 5.0, 6.0, (80, 8)), ("small", 20.5, 22.5, (160, 16))]
)
def test_families_at_160_px_are_alike_but_for_mixer_and_length_and_have_matched_parameters(
    size: str, least: float, most: float, tokens: tuple[int, int]
) -> None:
    configs = [RECIPES[f"dino_{family}_{size}160"]() for family in RECIPE_FAMILIES]
    alike = [replace(one, model=configs[0].model, steps=configs[0].steps) for one in configs]
    assert len(configs) == 5 and all(one == alike[0] for one in alike)
    for family, config in zip(RECIPE_FAMILIES, configs, strict=True):
        with without_storage():
            backbone = config.model.build()
        assert least < backbone.num_parameters / 1e6 < most, config.model
        assert (backbone.image, config.model.fields["patch"]) == tokens
        assert all(RECIPES[f"{kind}_{family}_{size}160"]().model == config.model for kind in ("supervised", "segment"))
    lejepa, dino = RECIPES["lejepa_vit_small160"](), RECIPES["dino_vit_small160"]()
    assert (lejepa.model, lejepa.steps, lejepa.data) == (dino.model, dino.steps, dino.data)
    assert all(getattr(lejepa.method, view.name) == getattr(dino.method, view.name) for view in fields(ViewsConfig))


def test_every_backbone_of_the_zoo_has_a_recipe() -> None:
    trained = {RECIPES[name]().model.name for name in RECIPES}
    assert set(list_models()) <= trained
