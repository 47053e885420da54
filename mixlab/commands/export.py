"""`mixlab export`: a backbone as safetensors, as ONNX, or for transformers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from mixlab.commands.advise import parse_size
from mixlab.commands.answer import Answer
from mixlab.commands.options import Flat
from mixlab.console import console
from mixlab.errors import InputError, naming_extras
from mixlab.run.directory import is_kept, run_around

FileFormat = Literal["safetensors", "onnx", "transformers"]
_PARTS_OF_RUNS = ("weights", "classifier", "segmenter", "detector", "best_head")
ENDINGS: dict[str, FileFormat] = {".safetensors": "safetensors", ".onnx": "onnx"}
FILES_OF_RUNS = tuple(f"{part}.safetensors" for part in _PARTS_OF_RUNS)


def export(
    target: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TARGET")],
    answer: Flat[Answer] = Answer(),
    *,
    out: Path,
    format: FileFormat | None = None,
    weights: str | None = None,
    image: str | None = None,
    half: bool = False,
    force: bool = False,
    seed: int = 0,
) -> dict[str, Any]:
    """Write a backbone to one file, or to a folder for transformers.

    Args:
        target: a run (finished or stopped), an exported file, a zoo model (see `mixlab models`), shipped/NAME or
            timm/NAME.
        out: the file to write; its suffix, .safetensors or .onnx, chooses the format. For transformers, a folder.
        format: safetensors (mixlab's own, with the architecture inside), onnx (needs the extra `mixlab[onnx]`), or
            transformers (a folder for AutoModel, needs `mixlab[transformers]`).
        weights: a weight file, if TARGET is a zoo model or timm/NAME (FILE::PART chooses a model in it, such as
            teacher); without it the backbone is untrained.
        half: for safetensors: store matrices in 16 bits, half the size.
        image: fixed input size of an ONNX file, height x width, such as 224 or 160x256; default: any multiple of the
            backbone's stride, if it can be traced that way. The batch size is always free.
        force: replace --out if it exists; the files of a run are never replaced.
        seed: seed of an untrained target.
    """
    from mixlab.backbones.weights import save_weights
    from mixlab.evaluation.target import load_target

    chosen = file_format(out, format)
    check_folder(out) if chosen == "transformers" else check_out(out, force=force)
    if half and chosen != "safetensors":
        raise InputError(f"--half is for safetensors; {chosen} keeps 32 bits")
    if image is not None and chosen != "onnx":
        raise InputError(f"--image is for ONNX; {chosen} takes any size")
    size = None if image is None else parse_size(image)
    answer.check()
    loaded = load_target(target, weights=weights, seed=seed, device="cpu")
    model = loaded.backbone
    takes = ""
    if chosen == "safetensors":
        save_weights(model, out, half=half)
    elif chosen == "transformers":
        with naming_extras():
            from mixlab.backbones.transformers_models import export_transformers
        export_transformers(model, out)
    else:
        from mixlab.backbones.onnx_file import export_onnx

        height, width = size or (None, None)
        multiple = export_onnx(model, out, height=height, width=width)
        sides = f"{height or model.image} x {width or model.image} px"
        takes = f"; it takes images {f'whose sides are multiples of {multiple} px' if multiple else f'of {sides}'}"
    size_of = sum(file.stat().st_size for file in (out.iterdir() if out.is_dir() else [out]))
    answer.line(f"{loaded.label} written to {out} ({size_of / 2**20:.1f} MiB){takes}")
    if chosen == "transformers":
        console.print(f'to load it: mixlab.register_with_transformers(), then AutoModel.from_pretrained("{out}")')
    return answer.emit({"model": model.name, "format": chosen, "file": str(out), "bytes": size_of})


def file_format(out: Path, asked: FileFormat | None) -> FileFormat:
    """The format that the ending of a file says, or that was asked for; they may not differ."""
    said = ENDINGS.get(out.suffix, asked)
    if asked == "transformers" and out.suffix in ENDINGS:
        raise InputError(f"--out {out} must be a folder for transformers; name it {out.with_suffix('')}")
    if asked and said != asked:
        raise InputError(f"--out {out} is not a .{asked} file; name it {out.with_suffix(f'.{asked}')}")
    if said is None:
        raise InputError(f"--out {out} has no known suffix; end it in .safetensors or .onnx, or give --format")
    return said


def check_folder(out: Path) -> None:
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise InputError(f"--out {out} is not an empty folder; name a new one")


def check_out(out: Path, *, force: bool) -> None:
    """Refuse to replace what may not be made again."""
    place = out.resolve()  # a link to a run's weights is these weights
    parent = next(folder for folder in place.parents if folder.exists())
    if not os.access(parent, os.W_OK):
        raise PermissionError(f"--out {out}: {parent} is not writable; name another file")
    if not place.exists():
        return
    if place.is_dir():
        raise InputError(f"--out {out} is a folder; give a file in it, such as {out / 'model.safetensors'}")
    if not place.is_file():
        raise InputError(f"--out {out} is a device or a pipe; name a file")
    run = run_around(place)
    if run and (place.name in FILES_OF_RUNS or place.suffix not in ENDINGS or is_kept(place, run)):
        raise InputError(f"--out {out} belongs to the run {run} and cannot be replaced; name another file")
    if not force:
        raise InputError(f"--out {out} exists; name another file, or add --force to replace it")
