"""A backbone as an ONNX file, made of ONNX's own operators."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

from mixlab.backbones.backbone import Backbone
from mixlab.backbones.room import check_room
from mixlab.backbones.timm_backbone import TimmBackbone
from mixlab.errors import InputError, naming_extras
from mixlab.ops.operator import operators_kept_whole
from mixlab.run.aside import written_aside
from mixlab.run.disk import naming_file

MAX_BATCH, MAX_CELLS = 4096, 512  # the largest sizes that a file is traced for; nothing in it depends on them


def export_onnx(model: Backbone, path: Path, *, height: int | None = None, width: int | None = None) -> int | None:
    """images (B, C, height, width) -> summary (B, D), with a free batch size.

    Without `height` and `width` the sides of images are free, too, where the model can be traced so: returns what they
    must be multiples of, its largest stride, or None where the file takes one size alone. The file's metadata has mean
    and std of the pixels (in [0, 1]) and the size of images that it was traced for: a side, or [height, width].
    """
    with naming_extras():
        import onnxscript  # noqa: F401
    free = height is None and width is None
    height, width = height or model.image, width or model.image
    check_room(model, min(height, width))
    images = torch.zeros(2, model.channels, height, width)
    with torch.no_grad():
        model.cpu().eval()(images[:1])  # a size that does not fit is refused here, in a sentence
    multiple: int | None = max(shape.stride for shape in model.layer_shapes())
    program = None
    if free and multiple and height % multiple == 0 and height >= 2 * multiple and not _pads_windows(model):
        sides = {axis: multiple * Dim(name, min=2, max=MAX_CELLS) for axis, name in ((2, "rows"), (3, "columns"))}
        with suppress(Exception):  # each model is bound to its size in its own way
            program = _translated(model, images, sides)
    if program is None:
        multiple = None
        try:
            program = _translated(model, images, {})
        except Exception as error:  # torch.export has many kinds
            what = str(error).strip().partition("\n")[0] or type(error).__name__
            raise InputError(
                f"{model.name} cannot be written as ONNX: {what}; in the code of the model write x.shape[0] for "
                "len(x) and decide nothing by the values of tensors, or export safetensors"
            ) from error
    program.model.metadata_props.update(_metadata(model, multiple, height, width))
    path.parent.mkdir(parents=True, exist_ok=True)
    with naming_file(path), written_aside(path) as aside:
        program.save(aside)
    return multiple


def _translated(model: Backbone, images: Tensor, sides: dict[int, Any]) -> Any:
    """The program for any batch, and for any size of these axes."""
    from mixlab.ops.onnx_scan import TRANSLATIONS  # needs onnxscript

    batch = {0: Dim("batch", min=1, max=MAX_BATCH)}
    with operators_kept_whole():
        traced = torch.export.export(model, (images,), dynamic_shapes=({**batch, **sides},))
        if sides and isinstance(model, TimmBackbone):
            _check_at_another_size(traced, model, images)
        return torch.onnx.export(
            traced,
            input_names=["images"],
            output_names=["summary"],
            custom_translation_table=TRANSLATIONS,
            external_data=False,
            optimize=False,
            verbose=False,
        )


def _pads_windows(model: Backbone) -> bool:
    """Whether scans walk windows: how far they pad a grid is decided while they are traced."""
    configs = [getattr(getattr(block, "mixer", None), "config", None) for block in model.layer_modules]
    return any(kind.startswith("w") for config in configs for kind in getattr(config, "scans", ()))


def _check_at_another_size(traced: ExportedProgram, model: TimmBackbone, images: Tensor) -> None:
    """Some of timm's models are traced for any size, and keep the positions of one."""
    step = max(shape.stride for shape in model.layer_shapes())
    larger = torch.randn(1, images.shape[1], images.shape[2] + step, images.shape[3] + 2 * step)
    with torch.no_grad():
        torch.testing.assert_close(traced.module()(larger), model(larger), rtol=1e-3, atol=1e-3)


def _metadata(model: Backbone, multiple: int | None, height: int, width: int) -> dict[str, str]:
    mean, std = model.pixel_mean, model.pixel_std
    if model.channels != len(mean):  # as `Backbone.preprocess`
        mean, std = ((sum(each) / len(each),) * model.channels for each in (mean, std))
    image = height if height == width else [height, width]
    size = {"image": image, "crop_share": model.crop_share, "multiple": multiple}
    values = {"model": model.name, "mean": mean, "std": std, **size}
    return {key: json.dumps(value) for key, value in values.items() if value is not None}
