"""The released visual Mambas as configurations: Vim, Mamba-Reg, PlainMamba, Mamba-2D, LocalVim, VMamba and its
descendants."""

from dataclasses import replace

from mixlab.backbones.isotropic import IsotropicConfig
from mixlab.backbones.staged import StagedConfig
from mixlab.backbones.tokens import TokenLayout
from mixlab.mixers import CrossScanConfig, InvertedResidualConfig, Mamba1Config, PlainMambaConfig, SkipScanConfig

Scans = tuple[tuple[str, ...], ...]


def _scans(table: str) -> Scans:
    """`h vf w7` -> ("h", "v_flip", "w7"); a line for each layer, or several between bars."""
    kinds = [layer.split() for line in table.strip().splitlines() for layer in line.strip(" |").split("|")]
    return tuple(tuple(kind[:-1] + "_flip" if kind.endswith("f") else kind for kind in layer) for layer in kinds)


# Found by LocalMamba's search, as released.
LOCALVIM_TINY = _scans("""
    h vf w7 w7f | hf w2f w7 w7f | h hf v w7 | h hf v vf | h hf v vf | h hf v vf | hf v vf w7 | hf v vf w2f |
    h hf v vf | h hf v vf | h v vf w2 | h v vf w2f | h hf vf w7 | hf v vf w2 | h hf v vf | h v w2 w2f |
    v vf w2 w7 | h hf v w2 | h hf w2f w7 | v vf w2 w2f""")
LOCALVIM_SMALL = _scans("h hf w2 w2f")  # of the two tables in the released code, the one that takes effect
LOCALVMAMBA_TINY = _scans("""
    h hf w7 w7f | hf vf w2 w2f | hf vf w2f w7 | hf v vf w2 | h hf vf w2f | hf vf w2 w2f | h w2f w7 w7f | h hf v vf |
    h vf w7 w7f | hf v w2 w7f | v vf w2 w7f | h hf vf w2f | vf w2f w7 w7f | hf vf w2f w7f | hf v w7 w7f""")
LOCALVMAMBA_SMALL = _scans("""
    h v vf w7f | h hf v w7 | hf v vf w7 | hf v w2f w7 | hf v w2f w7 | hf vf w2 w7f | hf v vf w7 | h v vf w7 |
    h v vf w7 | h v vf w7f | h hf v vf | h v vf w2 | v vf w2f w7 | h hf v w2 | hf v vf w7f | h hf v vf | h v vf w7f |
    h v vf w7f | h hf vf w7 | hf vf w2f w7 | hf v vf w7f | v vf w7 w7f | h v vf w7f | hf v vf w2 | h v vf w2f |
    h hf v w7 | h hf w7 w7f | h vf w2 w2f | h vf w2 w7 | h v vf w7f | hf v w2f w7 | hf vf w7 w7f | h v w7 w7f""")

_CLASS_TOKEN = TokenLayout(place="middle", front_copy=False, class_position=True)


def _vim(dim: int, layout: TokenLayout = _CLASS_TOKEN, *, depth: int = 24) -> IsotropicConfig:
    return IsotropicConfig(
        dim=dim, depth=depth, mixer=Mamba1Config(), layout=layout, norm="rms", position_resize="exact"
    )


def _mambareg(dim: int, *, depth: int = 24, registers: int = 12, neck: int) -> IsotropicConfig:
    config = _vim(dim, TokenLayout(place="spread", num_registers=registers), depth=depth)
    return replace(config, neck=neck, crop_share=1.0)  # as released: evaluated without a margin


def _localvim(dim: int, scans: Scans, *, class_token: bool = False) -> IsotropicConfig:
    layout = _CLASS_TOKEN if class_token else TokenLayout(place="none")
    mixer = Mamba1Config(scans=scans[0], combine="gated_sum")
    return replace(_vim(dim, layout, depth=20), mixer=mixer, layer_scans=scans, rotary=not class_token)


def _plainmamba(dim: int, depth: int, *, stem_convs: int, local_layers: tuple[int, ...] = ()) -> IsotropicConfig:
    return IsotropicConfig(
        dim=dim,
        depth=depth,
        mixer=PlainMambaConfig(),
        layout=TokenLayout(place="none"),
        norm="layer",
        norm_eps=1e-5,
        position_resize="exact",
        stem_convs=stem_convs,
        local_layers=local_layers,
    )


def _doubling(dim: int) -> tuple[int, int, int, int]:
    return (dim, 2 * dim, 4 * dim, 8 * dim)


def _vmamba(dim: int, third: int, *, expand: int) -> StagedConfig:
    """The current form, `third` blocks in the third stage: s1l8 has width 1 and 8 of them."""
    mixer = CrossScanConfig(expand=expand)
    return StagedConfig(dims=_doubling(dim), depths=(2, 2, third, 2), mixer=mixer, mlp_ratio=4.0)


def _first_vmamba(dim: int, third: int, *, scans: Scans = ()) -> StagedConfig:
    """The first form, with gates and without MLPs; LocalVMamba gives every block scans of its own."""
    mixer = CrossScanConfig(expand=2, state=16, conv_bias=True, gate=True, channel_gate=bool(scans))
    return StagedConfig(
        dims=_doubling(dim), depths=(2, 2, third, 2), mixer=mixer, scans=scans, stem="patch", down="merge"
    )


def _efficientvmamba(dim: int, third: int) -> StagedConfig:
    return StagedConfig(
        dims=_doubling(dim),
        depths=(2, 2, third, 2),
        mixer=SkipScanConfig(),
        late_mixer=InvertedResidualConfig(),
        stem="patch",
        down="merge",
    )


def _mamba2d(dim: int) -> StagedConfig:
    """One scan for each block, in four orders by turns; blocks add to the norm of their input, as released."""
    return StagedConfig(
        dims=(dim, dim),
        depths=(10, 14),
        mixer=Mamba1Config(scans=("h",)),
        scans=_scans("h | hf | v | vf"),
        stem="positions",
        stem_stride=8,
        down="merge",
        normed_stream=True,
        final_norm_eps=1e-6,
        summary_norm=True,
    )


VISUAL_MAMBAS: dict[str, tuple[str, IsotropicConfig | StagedConfig]] = {
    "vim_tiny": ("Vim", _vim(192)),
    "vim_small": ("Vim", _vim(384)),
    "vim_base": ("Vim", _vim(768)),
    "vim_tiny_stride8": ("Vim", replace(_vim(192), stride=8)),  # Vim-Ti+
    "vim_small_stride8": ("Vim", replace(_vim(384), stride=8)),  # Vim-S+
    "mambareg_tiny": ("Mamba-Reg", _mambareg(192, neck=1)),
    "mambareg_small": ("Mamba-Reg", _mambareg(384, neck=2)),
    "mambareg_base": ("Mamba-Reg", _mambareg(768, neck=4)),
    "mambareg_large": ("Mamba-Reg", _mambareg(1024, depth=48, registers=16, neck=8)),
    "plainmamba_l1": ("PlainMamba", _plainmamba(192, 24, stem_convs=1, local_layers=(0,))),
    "plainmamba_l2": ("PlainMamba", _plainmamba(384, 24, stem_convs=2)),
    "plainmamba_l3": ("PlainMamba", _plainmamba(448, 36, stem_convs=2)),
    "mamba2d_small": ("Mamba-ND", _mamba2d(384)),
    "mamba2d_base": ("Mamba-ND", _mamba2d(768)),
    "localvim_tiny": ("LocalMamba", _localvim(192, LOCALVIM_TINY)),
    "localvim_small": ("LocalMamba", _localvim(384, LOCALVIM_SMALL)),
    "localvim_tiny_midclstok": ("LocalMamba", _localvim(192, LOCALVIM_TINY, class_token=True)),
    "vmamba_tiny": ("VMamba", _first_vmamba(96, 9)),
    "vmamba_small": ("VMamba", _first_vmamba(96, 27)),
    "vmamba_base": ("VMamba", _first_vmamba(128, 27)),
    "vmamba_tiny_s2l5": ("VMamba", _vmamba(96, 5, expand=2)),
    "vmamba_small_s2l15": ("VMamba", _vmamba(96, 15, expand=2)),
    "vmamba_base_s2l15": ("VMamba", _vmamba(128, 15, expand=2)),
    "vmamba_tiny_s1l8": ("VMamba", _vmamba(96, 8, expand=1)),
    "vmamba_small_s1l20": ("VMamba", _vmamba(96, 20, expand=1)),
    "vmamba_base_s1l20": ("VMamba", _vmamba(128, 20, expand=1)),
    "localvmamba_tiny": ("LocalMamba", _first_vmamba(96, 9, scans=LOCALVMAMBA_TINY)),
    "localvmamba_small": ("LocalMamba", _first_vmamba(96, 27, scans=LOCALVMAMBA_SMALL)),
    "efficientvmamba_tiny": ("EfficientVMamba", _efficientvmamba(48, 4)),
    "efficientvmamba_small": ("EfficientVMamba", _efficientvmamba(64, 4)),
    "efficientvmamba_base": ("EfficientVMamba", _efficientvmamba(96, 9)),
}
