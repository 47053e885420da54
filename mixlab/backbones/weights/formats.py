"""The names that released models give their parameters, and ours."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Format:
    """How one family of files names what our isotropic backbones hold.

    A target `(name, direction)` is one slice of a parameter that we stack over directions.
    """

    title: str
    marks: frozenset[str]  # keys that identify it
    mixer: str | None = None  # the kind of mixer and the token layout these weights were trained with
    place: str | None = None
    names: dict[str, str] = field(default_factory=dict)
    layer_names: dict[str, str | tuple[str, int]] = field(default_factory=dict)
    heads: tuple[str, ...] = ()  # prefixes of classifiers, which a backbone has no use for


def _both_directions(forward: str, backward: str, ours: str) -> dict[str, str | tuple[str, int]]:
    return {f"mixer.{forward}": (f"mixer.{ours}", 0), f"mixer.{backward}": (f"mixer.{ours}", 1)}


_PATCHES = {"patch_embed.proj.weight": "embed.project.weight", "patch_embed.proj.bias": "embed.project.bias"}
_TOKENS = {"cls_token": "embed.tokens", "pos_embed": "embed.positions.table"}
_MAMBA_LAYER: dict[str, str | tuple[str, int]] = {
    "norm.weight": "norm.weight",
    "mixer.in_proj.weight": "mixer.in_proj.weight",
    "mixer.out_proj.weight": "mixer.out_proj.weight",
    **_both_directions("conv1d.weight", "conv1d_b.weight", "conv_weight"),
    **_both_directions("conv1d.bias", "conv1d_b.bias", "conv_bias"),
    **_both_directions("dt_bias", "dt_b_bias", "dt_bias"),
    **_both_directions("A_log", "A_log_b", "A_log"),
    **_both_directions("D", "D_b", "skip"),
    **_both_directions("norm.weight", "norm_b.weight", "norm_weight"),
}
_VIT_LAYER: dict[str, str | tuple[str, int]] = {
    f"{theirs}.{part}": f"{ours}.{part}"
    for theirs, ours in {
        "norm1": "norm",
        "attn.qkv": "mixer.qkv",
        "attn.proj": "mixer.out_proj",
        "norm2": "mlp_norm",
        "mlp.fc1": "mlp.up",
        "mlp.fc2": "mlp.down",
    }.items()
    for part in ("weight", "bias")
}

MIXLAB = Format("mixlab", frozenset({"embed.project.weight", "final_norm.weight"}))
FORMATS = (
    MIXLAB,
    Format(
        "Dino-Mamba's DinoMamba-Reg",
        frozenset({"norm_f.weight", "pos_embed_cls"}),
        mixer="mamba2",
        place="spread",
        names={**_PATCHES, **_TOKENS, "pos_embed_cls": "embed.token_positions", "norm_f.weight": "final_norm.weight"},
        layer_names=_MAMBA_LAYER,
        heads=("head.", "head_final."),
    ),
    Format(
        "Dino-Mamba's DinoVim",
        frozenset({"norm_f.weight"}),
        mixer="mamba2",
        place="middle",
        names={**_PATCHES, **_TOKENS, "norm_f.weight": "final_norm.weight"},
        layer_names=_MAMBA_LAYER,
        heads=("head.",),
    ),
    Format(
        "ViT (DINO's and timm's names)",
        frozenset({"patch_embed.proj.weight", "blocks.0.attn.qkv.weight"}),
        mixer="attention",
        place="front",
        names={**_PATCHES, **_TOKENS, "norm.weight": "final_norm.weight", "norm.bias": "final_norm.bias"},
        layer_names=_VIT_LAYER,
        heads=("head.",),
    ),
)


def recognise(keys: Iterable[str]) -> Format | None:
    """The format with these keys, by the names alone."""
    present = set(keys)
    return next((known for known in FORMATS if known.marks <= present), None)


def to_our_names(entries: dict[str, Tensor], known: Format) -> tuple[dict[str, Tensor], list[str]]:
    """Entries under our names, stacked over directions; and the keys of heads, which are left out.

    A key that the format does not know keeps its name, for the comparison with the model to report.
    """
    if known is MIXLAB:
        return dict(entries), []
    ours: dict[str, Tensor] = {}
    stacks: dict[str, dict[int, Tensor]] = {}
    heads = [key for key in entries if key.startswith(known.heads)]
    for key, entry in entries.items():
        target = _target(key, known)
        if key in heads:
            continue
        if isinstance(target, tuple):
            stacks.setdefault(target[0], {})[target[1]] = entry
        else:
            ours[target] = entry
    for name, slices in stacks.items():
        tensors = [slices[direction] for direction in sorted(slices)]
        if name.endswith("conv_weight"):
            tensors = [tensor.squeeze(1) for tensor in tensors]  # a depthwise Conv1d's (C, 1, W)
        if len({tensor.shape for tensor in tensors}) == 1 and sorted(slices) == list(range(len(slices))):
            ours[name] = torch.stack(tensors)
    return ours, heads


def _target(key: str, known: Format) -> str | tuple[str, int]:
    layer = re.fullmatch(r"(?:layers|blocks)\.(\d+)\.(.+)", key)
    if layer is None:
        return known.names.get(key, key)
    target = known.layer_names.get(layer[2])
    match target:
        case None:
            return key
        case str():
            return f"layers.{layer[1]}.{target}"
        case name, direction:
            return f"layers.{layer[1]}.{name}", direction


def sizes_of(entries: dict[str, Tensor]) -> dict[str, int]:
    """The sizes that entries under our names show: fields of a config."""
    patches = entries.get("embed.project.weight")
    sizes = {} if patches is None or patches.ndim != 4 else {"dim": patches.shape[0], "patch": patches.shape[-1]}
    layers = [re.match(r"layers\.(\d+)\.", key) for key in entries]
    return sizes | {"depth": len({match[1] for match in layers if match})}
