"""`mixlab export`: a backbone as safetensors or ONNX."""

from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro

from mixlab.backbones.backbone import Backbone
from mixlab.backbones.weights import save_weights
from mixlab.commands.advise import parse_size
from mixlab.commands.output import console, emit
from mixlab.commands.targets import load_target


def export(
    target: Annotated[str, tyro.conf.Positional],
    *,
    out: Path,
    format: Literal["safetensors", "onnx"] = "safetensors",
    weights: str | None = None,
    image: str = "224",
    half: bool = False,
    json: str | None = None,
) -> dict[str, Any]:
    """Write a backbone to one file.

    Args:
        target: a run, a name of the zoo, or timm/NAME.
        out: the file to write.
        format: safetensors (ours, with the architecture inside) or onnx (needs the extra `mixlab[onnx]`).
        weights: a weight file for a name; without it the backbone is untrained.
        half: matrices in 16 bits, for safetensors: half the size.
        image: height x width that an ONNX file takes, such as 224 or 160x256; any batch size.
        json: also write a summary as JSON to this file, or to stdout for "-".
    """
    if half and format == "onnx":
        raise ValueError("--half is for safetensors; an ONNX file keeps 32 bits")
    height, width = parse_size(image)
    model = load_target(target, weights=weights).model
    if format == "safetensors":
        save_weights(model, out, half=half)
    else:
        export_onnx(model, out, height=height, width=width)
    console.print(f"{model.name} written to {out} ({out.stat().st_size / 2**20:.1f} MiB)")
    return emit({"model": model.name, "format": format, "file": str(out), "bytes": out.stat().st_size}, json)


def export_onnx(model: Backbone, path: Path, *, height: int, width: int) -> None:
    """images (B, C, height, width) -> summary (B, D), with a free batch size."""
    try:
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ValueError("ONNX export needs onnx and onnxscript: install mixlab[onnx]") from error
    images = torch.zeros(2, model.channels, height, width)
    program = torch.onnx.export(
        model.cpu().eval(),
        (images,),
        dynamo=True,
        input_names=["images"],
        output_names=["summary"],
        dynamic_shapes={"images": {0: torch.export.Dim("batch", min=1, max=4096)}},
        external_data=False,
        verbose=False,
    )
    assert program is not None
    program.save(path)
