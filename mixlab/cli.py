"""One table: command -> function. `mixlab COMMAND --help` explains each."""

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.text import Text
from safetensors import SafetensorError

from mixlab.console import console
from mixlab.errors import InputError, MissingExtraError, WorkError, naming_extras

COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("mixlab.commands.demo", "both papers in miniature on drawn images, and a report"),
    "study": ("mixlab.commands.study", "both papers on your own photographs, in parts of a few minutes on one GPU"),
    "reproduce": (
        "mixlab.commands.reproduce",
        "every table and figure of both papers: data, cost, commands, ours beside theirs",
    ),
    "models": ("mixlab.commands.models", "backbones with parameters, GMACs and mixer"),
    "advise": ("mixlab.commands.advise", "is this a long-sequence task? which mixer?"),
    "pretrain": ("mixlab.commands.pretrain", "DINO on any images; the same run again resumes"),
    "train": ("mixlab.commands.train", "supervised training; the same run again resumes"),
    "probe": ("mixlab.commands.probe", "linear probes on frozen features, the whole ablation at once"),
    "knn": ("mixlab.commands.knn", "nearest neighbours in feature space"),
    "segment": ("mixlab.commands.segment", "semantic segmentation: UperNet on any backbone"),
    "detect": ("mixlab.commands.detect", "detection and instance masks: Mask R-CNN, Cascade Mask R-CNN"),
    "robust": ("mixlab.commands.robust", "accuracy on ImageNet-V2, Sketch, A, R and ReaL, or on corrupted images"),
    "rank": ("mixlab.commands.rank", "ranks of the blocks of mixing matrices"),
    "maps": ("mixlab.commands.maps", "activation maps and principal components as pictures"),
    "auc": ("mixlab.commands.auc", "Binary-AUC of activation maps, with its baselines"),
    "claims": ("mixlab.commands.claims", "what the papers claim, what was measured, the verdict"),
    "report": ("mixlab.commands.report", "runs as one self-contained page"),
    "app": ("mixlab.commands.app", "a local page to look inside models, live"),
    "bench": ("mixlab.commands.bench", "speed, side by side with peers"),
    "export": ("mixlab.commands.export", "a backbone as safetensors or ONNX"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 1 failed, 2 wrong call.

    Errors that users can fix are printed as one sentence (MIXLAB_DEBUG=1: as a traceback); bugs are always tracebacks.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(overview())
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        console.print(Text.assemble((f"unknown command {name!r}", "red"), f"; mixlab knows {', '.join(COMMANDS)}"))
        return 2
    warnings.formatwarning = plain_warning
    import tyro  # late, as are the commands: an overview needs none of them

    try:
        with naming_extras():
            function: Callable[..., Any] = getattr(import_module(COMMANDS[name][0]), name)
            tyro.cli(function, prog=f"mixlab {name}", args=rest)
    except KeyboardInterrupt:
        console.print("stopped")
        return 1
    except Exception as error:
        if not is_for_users(error) or os.environ.get("MIXLAB_DEBUG") == "1":
            raise
        console.print(Text.assemble(("error:", "red"), f" {error}"))
        return 1
    return 0


def is_for_users(error: Exception) -> bool:
    """Whether users can fix it: not a bug of ours."""
    if isinstance(error, InputError | WorkError | MissingExtraError | OSError | SafetensorError):
        return True
    torch = sys.modules.get("torch")  # where nothing imported it, no GPU ran out of memory
    return torch is not None and isinstance(error, torch.OutOfMemoryError)


def plain_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Our warnings without a line of code; others as Python prints them."""
    if Path(__file__).parent in Path(filename).parents:
        return f"warning: {message}\n"
    return f"{filename}:{lineno}: {category.__name__}: {message}\n"


def overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {line}" for name, (_, line) in COMMANDS.items()]
    return "mixlab: a laboratory for vision token mixers\n\n" + "\n".join(lines) + "\n\nmixlab COMMAND --help"


if __name__ == "__main__":
    sys.exit(main())
