"""Settings from the command line and from config.json: typed, and never guessed."""

import json
import re
from dataclasses import replace

import pytest

from mixlab.backbones.zoo import create_model
from mixlab.evaluation.methods import train_config
from mixlab.recipes import RECIPES, find_recipe
from mixlab.run.codec import differences, to_json
from mixlab.training.dino import DinoConfig
from mixlab.training.settings import override, setting_names


def recipe():
    return RECIPES["dino_dinovim_tiny64"]()


def test_settings_take_the_type_of_their_field() -> None:
    config = override(
        recipe(),
        ["optim.lr=1e-3", "epochs=7", "method.local_scale=0.1,0.5", "compile=yes", "optim.clip=none", "data.workers=2"],
    )
    assert isinstance(config.method, DinoConfig)
    assert (config.optim.lr, config.epochs, config.compile, config.optim.clip) == (1e-3, 7, True, None)
    assert (config.method.local_scale, config.data.workers) == ((0.1, 0.5), 2)


def test_any_field_of_the_backbone_can_be_set() -> None:
    config = override(recipe(), ["model.dim=96", "model.state=8", "model.two_way=false"])
    assert config.model.fields["dim"] == 96 and config.model.fields["state"] == 8
    assert config.model.fields["two_way"] is False


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("optim.learning_rate=1", "unknown setting 'optim.learning_rate'"),
        ("optim.rl=1", "did you mean optim.lr"),
        ("lr=1", "did you mean optim.lr"),
        ("momentum=1", "did you mean"),
        ("optim=1", "unknown setting 'optim'"),
        ("optim.lr.x=1", "unknown setting"),
        ("optim.lr", "has no value"),
        ("epochs=seven", "epochs is 'seven'; expected int"),
        ("epochs=1.5", "epochs is 1.5; expected int"),
        ("compile=perhaps", "compile is 'perhaps'; expected bool"),
        ("precision=fp8", "expected one of bf16, fp32, fp64"),
        ("method.global_scale=0.4", "expected 2 values"),
        ("model.dmi=64", "did you mean dim"),
        ("model.dim=wide", "expected int"),
        ("model.fields.dim=64", "unknown setting 'model.fields.dim'; did you mean model.dim?"),
        ("epochs=0", "epochs is 0; give at least 1"),
        ("optim.warmup_epochs=99", "99 warm-up epochs do not fit"),
        ("optim.lr=0", "optim.lr is 0.0; give a number above 0"),
        ("optim.lr=-1e-3", "optim.lr is -0.001; give a number above 0"),
        ("optim.lr=NaN", "optim.lr is nan; give a number above 0"),
        ("seed=-1", "seed is -1; give 0 or more"),
        ("optim.clip=-1", "optim.clip is -1.0; give a number above 0"),
        ("optim.lr_batch=0", "optim.lr_batch is 0; give at least 1"),
        ("optim.warmup_steps=-1", "optim.warmup_steps is -1; give 0 or more"),
        ("optim.betas=0.9,1", "optim.betas are (0.9, 1.0); give two numbers from 0 to below 1"),
        ("data.workers=-1", "data.workers is -1; give 0 or more"),
        ("knn.temperature=0", "knn.temperature is 0.0; give a number above 0"),
        ("method.centre_momentum=2", "method.centre_momentum is 2.0; give a number from 0 to 1"),
        ("method.num_prototypes=0", "method.num_prototypes is 0; give at least 1"),
        ("method.local_scale=0.4,0.1", "scale (0.4, 0.1) is not a range of shares"),
    ],
)
def test_a_wrong_setting_is_answered_with_the_rule_or_the_nearest_name(setting: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        override(recipe(), [setting])


@pytest.mark.parametrize("text", ["true", "True"])
def test_a_flag_of_a_model_may_be_written_as_json_or_as_python(text: str) -> None:
    assert override(recipe(), [f"model.two_way={text}"]).model.fields["two_way"] is True


def test_every_recipe_survives_json() -> None:
    for name, recipe in RECIPES.items():
        assert train_config(json.loads(json.dumps(to_json(recipe())))) == recipe(), name


def test_json_with_an_unknown_field_is_refused_with_the_nearest() -> None:
    values = to_json(recipe())
    values["optim"]["beta"] = 1
    with pytest.raises(ValueError, match="settings.optim has no field 'beta'; did you mean betas"):
        train_config(values)


def test_differences_name_every_setting_that_changed_and_both_values() -> None:
    changed = override(recipe(), ["optim.lr=0.5", "method.num_local=3"])
    before = recipe()
    assert differences(to_json(before), to_json(changed)) == {
        "optim.lr": (before.optim.lr, 0.5),
        "method.num_local": (before.method.num_local, 3),  # type: ignore[attr-defined]
    }


def test_every_setting_has_a_dotted_name() -> None:
    names = setting_names(recipe())
    assert {"epochs", "optim.lr", "method.num_prototypes", "data.size", "checkpoint.keep"} <= set(names)


def test_an_unknown_recipe_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean dino_dinovim_tiny"):
        find_recipe("dino_dinovm_tiny")


def test_another_model_keeps_those_fields_of_the_recipe_that_it_has_and_all_that_are_set() -> None:
    own = recipe().model.fields
    assert "state" in own and "dim" in own
    attention = override(recipe(), ["model.name=vit_tiny"]).model
    assert attention.fields["dim"] == own["dim"] and "state" not in attention.fields
    timm = override(recipe(), ["model.drop_rate=0.1", "model.name=timm/resnet18"]).model
    assert timm.fields == {"drop_rate": 0.1}
    assert timm.build().name == "timm/resnet18"
    smaller = RECIPES["supervised_mambaout_femto64"]()
    assert override(smaller, ["model.name=mambaout_tiny"]).model.fields == smaller.model.fields


@pytest.mark.parametrize(
    ("field", "says"), [("patch=8", "timm's resnet18 has no field 'patch'"), ("layers=3", "resnet18 .* layers=3")]
)
def test_a_field_that_a_model_of_timm_cannot_take_is_named(field: str, says: str) -> None:
    config = override(recipe(), ["model.name=timm/resnet18", f"model.{field}"])
    with pytest.raises(ValueError, match=says):
        config.model.build()


def test_our_own_names_are_not_suggested_as_models_of_timm() -> None:
    with pytest.raises(ValueError, match="did you mean") as error:
        create_model("vit_tinny")
    assert "vit_tiny" in str(error.value) and "timm/vit_tiny," not in f"{error.value},".replace("?", ",")
    with pytest.raises(ValueError, match="write vit_tiny, without timm/"):
        create_model("timm/vit_tiny")
    with pytest.raises(ValueError, match="has no model 'dinovim_huge'") as error:
        create_model("timm/dinovim_huge")
    assert "timm/dinovim" not in str(error.value)


def test_settings_that_only_fit_together_may_come_in_any_order() -> None:
    both = ["epochs=3", "optim.warmup_epochs=2"]
    small = replace(RECIPES["dino_vit_tiny64"](), epochs=1)
    for settings in (both, both[::-1]):
        changed = override(small, settings)
        assert (changed.epochs, changed.optim.warmup_epochs) == (3, 2)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["epochs=1"], r"epochs has no effect: this recipe counts steps \(steps=\d+\); set steps, or steps=none"),
        (["optim.warmup_epochs=1"], "this recipe warms up for a number of steps"),
        (["knn.k=3", "data.size=64"], "knn.k has no effect: this recipe has no live kNN|data.size has no effect on"),
    ],
)
def test_settings_without_an_effect_are_refused(settings: list[str], words: str) -> None:
    recipe = RECIPES["detect_vit_tiny64"]()
    assert recipe.steps is not None
    with pytest.raises(ValueError, match=words):
        override(recipe, settings)


def test_a_setting_that_is_overruled_in_the_same_call_was_meant() -> None:
    recipe = RECIPES["detect_vit_tiny64"]()
    assert override(recipe, ["epochs=3", "steps=none", "optim.warmup_steps=0"]).total_steps(5) == 15
    assert override(recipe, ["epochs=3", "steps=2"]).total_steps(5) == 2
