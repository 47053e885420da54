"""The names that the released visual Mambas give their parameters."""

import re
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

NUM_SCANS = 4  # of every released model in stages

# Parameters of one Mamba-1 branch: Vim's forward and backward (`_b`), LocalVim's by number.
_BRANCH = {
    "conv1d{}.weight": "conv_weight",
    "conv1d{}.bias": "conv_bias",
    "x_proj{}.weight": "selection.x_proj",
    "dt_proj{}.weight": "selection.dt_weight",
    "dt_proj{}.bias": "selection.dt_bias",
    "A_log{}": "selection.A_log",
    "D{}": "selection.skip",
}
_GATE = {"norm": "norm", "global_reduce": "reduce", "channel_select": "select"}  # of a gate per channel


def branches(*ends: str) -> dict[str, tuple[str, int]]:
    """The parameters of branches whose names end so, as slices of ours."""
    names = {
        f"mixer.{theirs.format(end)}": (f"mixer.{ours}", number)
        for number, end in enumerate(ends)
        for theirs, ours in _BRANCH.items()
    }
    if "_b" in ends:
        names["mixer.A_b_log"] = names.pop("mixer.A_log_b")  # Vim's own spelling
    return names


def channel_gate(theirs: str, ours: str) -> dict[str, str]:
    return {f"{theirs}.{a}.{p}": f"{ours}.{b}.{p}" for a, b in _GATE.items() for p in ("weight", "bias")}


def class_row_first(table: Tensor) -> Tensor:
    """A position table (1, M + 1, D) whose class token stands in the middle, with that row in front."""
    middle = (table.shape[1] - 1) // 2
    return torch.cat([table[:, middle : middle + 1], table[:, :middle], table[:, middle + 1 :]], dim=1)


Rename = Callable[[re.Match[str]], str]
_STEM = {
    "patch": {"0": "project", "2": "norm", "proj": "project", "norm": "norm"},
    "overlap": {"0": "first", "2": "first_norm", "5": "project", "7": "norm"},
}
_OP = {
    "in_proj": "in_proj",
    "conv2d": "conv",
    "out_norm": "out_norm",
    "out_proj": "out_proj",
    "x_proj_weight": "selection.x_proj",
    "x_proj.weight": "selection.x_proj",
    "dt_projs_weight": "selection.dt_weight",
    "dt_projs.weight": "selection.dt_weight",
    "dt_projs_bias": "selection.dt_bias",
    "A_logs": "selection.A_log",
    "Ds": "selection.skip",
}
_BLOCK = {"norm": "norm", "ln_1": "norm", "norm2": "mlp_norm", "mlp.fc1": "mlp.up", "mlp.fc2": "mlp.down"}
_DOWN = {
    "patch": {"reduction": "project", "norm": "norm", "1": "norm", "2": "project"},  # by number in VMamba's one file
    "overlap": {"1": "conv", "3": "norm"},
}
_INVERTED = {
    "conv_pw.0": "up",
    "conv_pw.1": "up_norm",
    "conv_dw.0": "conv",
    "conv_dw.1": "conv_norm",
    "se.conv_reduce": "reduce",
    "se.conv_expand": "select",
    "conv_pw2.0": "down",
    "conv_pw2.1": "down_norm",
}


def staged_names(entries: Mapping[str, Tensor], *, stem: str, mixer: str) -> dict[str, Tensor]:
    """VMamba's names, those of its first files, LocalVMamba's and EfficientVMamba's, as ours."""
    ours: dict[str, Tensor] = {}
    for key, entry in entries.items():
        name = _staged_name(key, stem, "mixer.scan" if mixer == "skip_scan" else "mixer")
        ours[name] = _as_ours(name, entry)
    return ours


_MAMBA2D = {
    "pos_embed": "stem.positions.table",
    **{f"patch_embed.projection.{part}": f"stem.project.{part}" for part in ("weight", "bias")},
    **{f"{theirs}.{part}": f"{ours}.{part}" for theirs, ours in {"ln1": "final_norm", "ln2": "summary_norm"}.items()
       for part in ("weight", "bias")},
}  # fmt: skip
_MAMBA2D_BLOCK = {
    **{f"norm.{part}": f"norm.{part}" for part in ("weight", "bias")},
    **{f"mixer.{side}_proj.weight": f"mixer.{side}_proj.weight" for side in ("in", "out")},
    **{theirs: ours for theirs, (ours, _) in branches("").items()},
}
_MERGE = "down_sample_layer."


def mamba2d_names(entries: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Mamba-2D's names as ours: layers after one that merges patches are the next stage."""
    layers = [re.fullmatch(r"layers\.(\d+)\.(.+)", key) for key in entries]
    ends = sorted({int(found[1]) for found in layers if found and found[2].startswith(_MERGE)})
    ours: dict[str, Tensor] = {}
    for (key, entry), found in zip(entries.items(), layers, strict=True):
        if found is None:
            ours[_MAMBA2D.get(key, key)] = entry
            continue
        layer, rest = int(found[1]), found[2]
        stage = sum(end < layer for end in ends)
        block = layer - (ends[stage - 1] + 1 if stage else 0)
        if rest.startswith(_MERGE):
            name = rest.removeprefix(_MERGE).replace("reduction", "project")
            ours[f"stages.{stage + 1}.down.{name}"] = _cells_first(entry)
        elif rest in _MAMBA2D_BLOCK:
            name = _MAMBA2D_BLOCK[rest]
            one_scan = name.startswith(("mixer.conv", "mixer.selection"))
            entry = entry.squeeze(1) if name == "mixer.conv_weight" else entry
            ours[f"stages.{stage}.blocks.{block}.{name}"] = entry.unsqueeze(0) if one_scan else entry
        else:
            ours[key] = entry
    return ours


def _cells_first(entry: Tensor) -> Tensor:
    """(..., 4C): theirs has the four cells of each channel side by side, row by row; ours all channels of each cell,
    column by column."""
    return (
        entry.unflatten(-1, (-1, 2, 2)).movedim(-3, -1).transpose(-3, -2).flatten(-3)
        if entry.shape[-1] % 4 == 0
        else entry
    )


def _staged_name(key: str, stem: str, scan: str) -> str:
    """Our name of one parameter; an unknown one keeps its own, for the comparison with the model to report."""
    parts: list[tuple[str, Rename]] = [
        (r"patch_embed\.(\w+)\.(\w+)", lambda m: f"stem.{_STEM[stem][m[1]]}.{m[2]}"),
        (r"(?:classifier\.)?norm\.(\w+)", lambda m: f"final_norm.{m[1]}"),
        (
            r"layers\.(\d)\.(?:downsample\.(\w+)|\d+\.(reduction|norm))\.(\w+)",
            lambda m: f"stages.{int(m[1]) + 1}.down.{_DOWN[stem][m[2] or m[3]]}.{m[4]}",
        ),
        (
            r"layers\.(\d)\.(\d+)\.(conv_\w+\.\d|se\.conv_\w+)\.(\w+)",
            lambda m: f"stages.{m[1]}.blocks.{int(m[2]) - 1}.mixer.{_INVERTED[m[3]]}.{m[4]}",
        ),
        (
            r"layers\.(\d)\.blocks\.(\d+)\.(?:op\.multi_scan\.attn|se)\.(\w+)\.(\w+)",
            lambda m: f"stages.{m[1]}.blocks.{m[2]}.mixer.channel_gate.{_GATE[m[3]]}.{m[4]}",
        ),
        (
            r"layers\.(\d)\.blocks\.(\d+)\.conv_branch\.(.+)",
            lambda m: f"stages.{m[1]}.blocks.{m[2]}.mixer.local.{m[3]}",
        ),
        (
            r"layers\.(\d)\.blocks\.(\d+)\.(?:op|self_attention)\.(x_proj\.weight|dt_projs\.weight|\w+)",
            lambda m: f"stages.{m[1]}.blocks.{m[2]}.{scan}.{_OP[m[3]]}",
        ),
        (
            r"layers\.(\d)\.blocks\.(\d+)\.(?:op|self_attention)\.(\w+)\.(\w+)",
            lambda m: f"stages.{m[1]}.blocks.{m[2]}.{scan}.{_OP[m[3]]}.{m[4]}",
        ),
        (
            r"layers\.(\d)\.blocks\.(\d+)\.(ln_1|norm2?|mlp\.fc\d)\.(\w+)",
            lambda m: f"stages.{m[1]}.blocks.{m[2]}.{_BLOCK[m[3]]}.{m[4]}",
        ),
    ]
    for pattern, rename in parts:
        found = re.fullmatch(pattern, key)
        if found:
            try:
                return rename(found)
            except KeyError:  # a part of another variant
                return key
    return key


def _as_ours(name: str, entry: Tensor) -> Tensor:
    """Scans side by side as a dimension of their own; 1 x 1 convolutions as linear layers."""
    if name.endswith(("A_log", "skip")) or ("selection" in name and entry.ndim == 2 and not name.endswith("dt_bias")):
        return entry.unflatten(0, (NUM_SCANS, -1)) if entry.shape[0] % NUM_SCANS == 0 else entry
    is_conv = name.startswith("stem.") or ".conv." in name or ".local." in name
    if entry.ndim == 4 and entry.shape[2:] == (1, 1) and not is_conv:
        return entry.flatten(1)
    return entry
