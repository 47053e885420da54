"""Configs survive JSON, whatever is registered; what they do not know is refused."""

import json

import numpy as np
import pytest

from mixlab.backbones.isotropic import IsotropicConfig, config_from_json
from mixlab.backbones.tokens import TokenLayout
from mixlab.backbones.zoo import ZOO, create_model, known_fields
from mixlab.errors import InputError
from mixlab.mixers import MIXERS, AttentionConfig
from mixlab.run.codec import to_json

CONFIGS = {name: entry.config for name, entry in ZOO.items() if isinstance(entry.config, IsotropicConfig)}


def test_every_config_of_the_zoo_survives_json():
    for config in CONFIGS.values():
        assert config_from_json(json.loads(json.dumps(to_json(config)))) == config


@pytest.mark.parametrize("kind", MIXERS)
def test_every_mixer_is_found_again_by_its_kind(kind):
    config = IsotropicConfig(dim=64, depth=1, mixer=MIXERS[kind](), layout=TokenLayout(), norm="rms")
    again = config_from_json(json.loads(json.dumps(to_json(config))))
    assert type(again.mixer) is MIXERS[kind] and again == config


def values(**changes: object) -> dict[str, object]:
    config = IsotropicConfig(dim=64, depth=1, mixer=AttentionConfig(), layout=TokenLayout(), norm="layer")
    return to_json(config) | changes


def test_fields_left_out_take_their_defaults():
    short = {"dim": 64, "depth": 1, "mixer": {"kind": "attention"}, "layout": {}, "norm": "layer"}
    assert config_from_json(short) == config_from_json(values())


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"dept": 3}, "config has no field 'dept'; did you mean depth"),
        ({"mixer": {"kind": "attention", "heads": 3}}, "config.mixer has no field 'heads'"),
        ({"mixer": {"head_dim": 64}}, "config.mixer.kind is None; choose one of attention"),
        ({"mixer": "attention"}, "config.mixer must be an object with fields, got 'attention'"),
        ({"layout": {"num_registers": 1.5}}, "config.layout.num_registers is 1.5; expected int"),
        ({"position_image": "112"}, "config.position_image is '112'; expected int or None"),
        ({"norm": "batch"}, "config.norm is 'batch'; expected one of rms, layer"),
        ({"mlp_ratio": True}, "config.mlp_ratio is True; expected float"),
        ({"patch": 0}, "patch must be at least 1"),
        ({"stem_convs": 2**31}, "stem_convs is 0 .* to 64, got 2147483648"),
    ],
)
def test_wrong_values_are_named_with_their_rule(changes, match):
    with pytest.raises(ValueError, match=match):
        config_from_json(values(**changes))


def test_missing_fields_are_named():
    short = values()
    del short["dim"], short["norm"]
    with pytest.raises(ValueError, match="config lacks dim, norm"):
        config_from_json(short)


@pytest.mark.parametrize("name", [name for name, entry in ZOO.items() if not isinstance(entry.config, str)])
def test_every_field_of_every_model_refuses_a_wrong_type_by_its_name(name):
    for field in known_fields(name) or ():
        with pytest.raises(InputError, match=f"^{field} "):
            create_model(name, **{field: {"wrong"}})


@pytest.mark.parametrize(
    ("name", "fields", "says"),
    [
        ("vit_tiny", {"dim": "64"}, "dim is '64'; expected int"),
        ("vit_tiny", {"dim": 64.0}, "dim is 64.0; expected int"),
        ("vit_tiny", {"head_dim": "a"}, "head_dim is 'a'; expected int"),
        ("vit_tiny", {"norm": "batch"}, "norm is 'batch'; expected one of rms, layer"),
        ("vmamba_tiny", {"dims": [8, "a"]}, "dims is [8, 'a']; expected a list of int"),
        ("timm/vit_tiny_patch16_224", {"embed_dim": 65}, "embed_dim=65: dim should be divisible by num_heads; check"),
        ("timm/vit_tiny_patch16_224", {"global_pool": 3}, "global_pool=3: refused; check them against timm's own"),
    ],
)
def test_a_value_of_a_wrong_type_is_named_with_what_is_expected(name, fields, says):
    with pytest.raises(InputError) as refused:
        create_model(name, **fields)
    assert says in str(refused.value)


def test_fields_are_values_as_python_numpy_or_json_has_them():
    fields = {"dim": np.int64(32), "depth": 1, "mlp_ratio": 2, "layer_scans": []}
    configs = AttentionConfig(head_dim=16), {"kind": "attention", "head_dim": 16}
    made = [create_model("vit_tiny", mixer=m, **fields) for m in configs]
    assert made[0].config == made[1].config
    assert made[0].config.mlp_ratio == 2.0 and made[0].config.layer_scans == ()
