"""The names that released models give their parameters, and ours."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mixlab.backbones.weights.mamba_formats import (
    branches,
    channel_gate,
    class_row_first,
    mamba2d_names,
    staged_names,
)


@dataclass(frozen=True)
class Format:
    """How one family of files names what our backbones hold.

    A target `(name, direction)` is one slice of a parameter that we stack over directions. Backbones in stages have a
    `stem`, and names of `mamba_formats.staged_names`.
    """

    title: str
    marks: frozenset[str]  # keys that identify it, also half a file of it
    mixer: str | None = None  # the kind of mixer and the token layout these weights were trained with
    place: str | None = None
    names: dict[str, str] = field(default_factory=dict)
    layer_names: dict[str, str | tuple[str, int]] = field(default_factory=dict)
    heads: tuple[str, ...] = ()  # prefixes of classifiers, which a backbone has no use for
    class_row: bool = False  # whether the position of the class token is the middle row of the table
    stem: str | None = None

    @property
    def is_ours(self) -> bool:
        return self.title == "mixlab"

    @property
    def described(self) -> str:
        """What the weights were trained with, in words."""
        return describe(self.mixer, self.place, self.stem)


def describe(mixer: str | None, place: str | None, stem: str | None) -> str:
    """What a model of ours is made of, as far as formats differ in it."""
    if stem is not None:
        return f"{mixer} in stages behind a stem of kind {stem}"
    return f"{mixer} and {_TOKENS_AT[place or 'none']}"


_TOKENS_AT = {
    "none": "no extra tokens",
    "front": "a class token in front",
    "middle": "a class token in the middle",
    "back": "a class token at the end",
    "spread": "registers spread among the patches",
}


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

_VIM_LAYER: dict[str, str | tuple[str, int]] = {
    "norm.weight": "norm.weight",
    "mixer.in_proj.weight": "mixer.in_proj.weight",
    "mixer.out_proj.weight": "mixer.out_proj.weight",
    **branches("", "_b"),
}
_LOCALVIM_LAYER: dict[str, str | tuple[str, int]] = {
    "norm.weight": "norm.weight",
    "mixer.in_proj.weight": "mixer.in_proj.weight",
    "mixer.out_proj.weight": "mixer.out_proj.weight",
    **branches("_0", "_1", "_2", "_3"),
    **channel_gate("mixer.attn", "mixer.channel_gate"),
}
_PLAINMAMBA_LAYER: dict[str, str | tuple[str, int]] = {
    **{f"norm.{part}": f"norm.{part}" for part in ("weight", "bias")},
    "mamba.A_log": "mixer.A_log",
    "mamba.D": "mixer.skip",
    "mamba.direction_Bs": "mixer.moves",
    "mamba.x_proj.weight": "mixer.x_proj.weight",
    **{
        f"mamba.{theirs}.{part}": f"mixer.{ours}.{part}"
        for theirs, ours in {
            "in_proj": "in_proj",
            "conv2d": "conv",
            "dt_proj": "dt_proj",
            "out_proj": "out_proj",
        }.items()
        for part in ("weight", "bias")
    },
    "dw.0.weight": "local_conv.conv.weight",
    **{
        f"dw.1.{part}": f"local_conv.norm.{part}"
        for part in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    },
}
_PLAINMAMBA_STEM = {
    f"patch_embed.{theirs}.{part}": f"embed.{ours}.{part}"
    for theirs, ours in {
        "stem.0": "stem.0",
        "stem.1": "stem.1",
        "convs.0": "stem.3",
        "convs.1": "stem.4",
        "convs.3": "stem.6",
        "convs.4": "stem.7",
        "projection": "project",
    }.items()
    for part in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
}
_VIM_NAMES = {**_PATCHES, **_TOKENS, "norm_f.weight": "final_norm.weight"}

MIXLAB = Format("mixlab", frozenset({"embed.project.weight", "final_norm.weight"}))
FORMATS = (
    MIXLAB,
    Format("mixlab", frozenset({"stem.project.weight", "final_norm.weight"})),
    Format(
        "Mamba-Reg",
        frozenset({"pos_embed_cls", "layers.0.mixer.A_b_log"}),
        mixer="mamba1",
        place="spread",
        names={
            **_VIM_NAMES,
            "pos_embed_cls": "embed.token_positions",
            "neck.weight": "neck.project.weight",
            "norm_neck.weight": "neck.norm.weight",
        },
        layer_names=_VIM_LAYER,
        heads=("head.",),
    ),
    Format(
        "Vim",
        frozenset({"layers.0.mixer.A_b_log"}),
        mixer="mamba1",
        place="middle",
        names=_VIM_NAMES,
        layer_names=_VIM_LAYER,
        heads=("head.",),
        class_row=True,
    ),
    Format(
        "LocalVim with a class token",
        frozenset({"cls_token", "layers.0.mixer.A_log_0"}),
        mixer="mamba1",
        place="middle",
        names=_VIM_NAMES,
        layer_names=_LOCALVIM_LAYER,
        heads=("head.",),
        class_row=True,
    ),
    Format(
        "LocalVim",
        frozenset({"layers.0.mixer.A_log_0"}),
        mixer="mamba1",
        place="none",
        names={**_VIM_NAMES, "rope.freqs_cos": "rotary.cos", "rope.freqs_sin": "rotary.sin"},
        layer_names=_LOCALVIM_LAYER,
        heads=("head.",),
    ),
    Format(
        "PlainMamba",
        frozenset({"layers.0.mamba.A_log"}),
        mixer="plain_mamba",
        place="none",
        names={
            "pos_embed": "embed.positions.table",
            **_PLAINMAMBA_STEM,
            "ln1.weight": "final_norm.weight",
            "ln1.bias": "final_norm.bias",
        },
        layer_names=_PLAINMAMBA_LAYER,
        heads=("head.", "ema_"),  # the copies that its training keeps as buffers
    ),
    Format(
        "Mamba-2D",
        frozenset({"ln2.weight", "layers.0.mixer.A_log"}),
        mixer="mamba1",
        stem="positions",
        heads=("head.",),
    ),
    Format(
        "EfficientVMamba",
        frozenset({"patch_embed.0.weight", "layers.0.blocks.0.conv_branch.0.weight"}),
        mixer="skip_scan",
        stem="patch",
        heads=("classifier.head.",),
    ),
    Format(
        "VMamba, current form",
        frozenset({"patch_embed.5.weight", "layers.0.blocks.0.op.A_logs"}),
        mixer="cross_scan",
        stem="overlap",
        heads=("classifier.head.",),
    ),
    Format(
        "LocalVMamba",
        frozenset({"patch_embed.0.weight", "layers.0.blocks.0.op.multi_scan.attn.norm.weight"}),
        mixer="cross_scan",
        stem="patch",
        heads=("classifier.head.",),
    ),
    Format(
        "VMamba, first form",
        frozenset({"patch_embed.0.weight", "layers.0.blocks.0.op.A_logs"}),
        mixer="cross_scan",
        stem="patch",
        heads=("classifier.head.",),
    ),
    Format(
        "VMamba, first form, old names",
        frozenset({"patch_embed.proj.weight", "layers.0.blocks.0.self_attention.A_logs"}),
        mixer="cross_scan",
        stem="patch",
        heads=("head.",),
    ),
    Format(
        "Dino-Mamba's DinoMamba-Reg",
        frozenset({"norm_f.weight", "pos_embed_cls", "layers.0.mixer.dt_bias"}),
        mixer="mamba2",
        place="spread",
        names={**_PATCHES, **_TOKENS, "pos_embed_cls": "embed.token_positions", "norm_f.weight": "final_norm.weight"},
        layer_names=_MAMBA_LAYER,
        heads=("head.", "head_final."),
    ),
    Format(
        "Dino-Mamba's DinoVim",
        frozenset({"norm_f.weight", "layers.0.mixer.dt_bias"}),
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
    if known.is_ours:
        return dict(entries), []
    heads = [key for key in entries if key.startswith(known.heads)]
    if known.stem is not None:
        rest = {key: entry for key, entry in entries.items() if key not in heads}
        if known.stem == "positions":
            return mamba2d_names(rest), heads
        return staged_names(rest, stem=known.stem, mixer=known.mixer or ""), heads
    ours: dict[str, Tensor] = {}
    stacks: dict[str, dict[int, Tensor]] = {}
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
    table = ours.get("embed.positions.table")
    if known.class_row and table is not None and table.ndim == 3:
        ours["embed.positions.table"] = class_row_first(table)
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


def sizes_of(entries: dict[str, Tensor]) -> dict[str, int | tuple[int, ...]]:
    """The sizes that entries under our names show: fields of a config; `depth` counts the blocks of all stages."""
    layers = [re.match(r"layers\.(\d+)\.|stages\.\d+\.blocks\.\d+\.", key) for key in entries]
    depth = len({match[0] for match in layers if match})
    stages = [re.match(r"stages\.(\d+)\.blocks\.(\d+)\.", key) for key in entries]
    blocks = {(int(match[1]), int(match[2])) for match in stages if match}
    if blocks:
        num_stages = max(stage for stage, _ in blocks) + 1
        depths = tuple(sum(stage == number for stage, _ in blocks) for number in range(num_stages))
        return {"depths": depths, "dims": _stage_widths(entries, num_stages), "depth": len(blocks)}
    patches = entries.get("embed.project.weight")
    if patches is None or patches.ndim != 4:
        return {"depth": depth}
    halved = 2 if "embed.stem.0.weight" in entries else 1
    return {"dim": patches.shape[0], "patch": halved * patches.shape[-1], "depth": depth}


def _stage_widths(entries: dict[str, Tensor], num_stages: int) -> tuple[int, ...]:
    first = "stem.norm.weight" if "stem.norm.weight" in entries else "stem.project.weight"
    names = [first, *(f"stages.{number}.down" for number in range(1, num_stages))]
    found = [
        next((entries[key] for key in (name, f"{name}.conv.weight", f"{name}.project.weight") if key in entries), None)
        for name in names
    ]
    return tuple(0 if each is None else each.shape[0] for each in found)
