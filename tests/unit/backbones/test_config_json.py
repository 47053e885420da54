"""Configs survive JSON, whatever is registered; what they do not know is refused."""

import json

import pytest

from mixlab.backbones.isotropic import IsotropicConfig, config_from_json
from mixlab.backbones.tokens import TokenLayout
from mixlab.backbones.zoo import ZOO
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
