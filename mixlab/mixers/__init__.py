"""Token mixers: one file each, its mixing, then its module."""

from typing import TypeVar

from mixlab.mixers.attention import Attention, AttentionConfig, SoftmaxMixing
from mixlab.mixers.cross_scan import CrossScan, CrossScanConfig, SkipScan, SkipScanConfig
from mixlab.mixers.gated_conv import ConvMixing, GatedConv, GatedConvConfig
from mixlab.mixers.inverted_residual import InvertedResidual, InvertedResidualConfig
from mixlab.mixers.linear_attention import LinearAttention, LinearAttentionConfig, LinearMixing
from mixlab.mixers.mamba1 import Mamba1, Mamba1Config
from mixlab.mixers.mamba2 import Mamba2, Mamba2Config, SSDMixing
from mixlab.mixers.mixer import ALL, Grid, MixerConfig, Mixing, TokenMixer
from mixlab.mixers.plain_mamba import PlainMamba, PlainMambaConfig
from mixlab.mixers.selective import SelectiveMixing
from mixlab.plugins import Registry, check_class

MIXERS: Registry[type[MixerConfig]] = Registry(
    "mixer",
    {
        config.kind: config
        for config in (
            AttentionConfig,
            LinearAttentionConfig,
            Mamba2Config,
            GatedConvConfig,
            Mamba1Config,
            CrossScanConfig,
            SkipScanConfig,
            PlainMambaConfig,
            InvertedResidualConfig,
        )
    },
)
C = TypeVar("C", bound=type[MixerConfig])


def register_mixer(config: C) -> C:
    """Register a mixer under the `kind` of its config; a decorator of the config's class."""
    check_class("mixer", config, MixerConfig)
    MIXERS[config.kind] = config
    return config


__all__ = [
    "ALL",
    "MIXERS",
    "Attention",
    "AttentionConfig",
    "ConvMixing",
    "CrossScan",
    "CrossScanConfig",
    "GatedConv",
    "GatedConvConfig",
    "Grid",
    "InvertedResidual",
    "InvertedResidualConfig",
    "LinearAttention",
    "LinearAttentionConfig",
    "LinearMixing",
    "Mamba1",
    "Mamba1Config",
    "Mamba2",
    "Mamba2Config",
    "MixerConfig",
    "Mixing",
    "PlainMamba",
    "PlainMambaConfig",
    "SSDMixing",
    "SelectiveMixing",
    "SkipScan",
    "SkipScanConfig",
    "SoftmaxMixing",
    "TokenMixer",
    "register_mixer",
]
