"""One table: command -> function. `mixlab COMMAND --help` explains each.

Imports of others are late: an overview needs none, and Ctrl-C may come before they are done.
"""

import errno
import io
import os
import signal
import sys
import textwrap
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

from mixlab import __version__
from mixlab.errors import InputError, MissingExtraError, WorkError, did_you_mean, is_out_of_memory, naming_extras
from mixlab.plugins import is_ours, load_for_all, plugin_at_fault
from mixlab.signals import STOP_SIGNALS, raising, say_stopped

COMMANDS: dict[str, tuple[str, str]] = {
    "demo": (
        "mixlab.commands.demo",
        "look inside trained networks, fine-tune one, write a report: minutes on two cores",
    ),
    "study": (
        "mixlab.commands.study",
        "the papers' comparisons on your own photographs, in parts of a few minutes on one GPU",
    ),
    "reproduce": (
        "mixlab.commands.reproduce",
        "every table and figure of the papers: data, cost, commands, our results beside theirs",
    ),
    "models": ("mixlab.commands.models", "list the backbones with parameters, GMACs and mixer"),
    "advise": ("mixlab.commands.advise", "is this a long-sequence task? which mixer?"),
    "pretrain": (
        "mixlab.commands.pretrain",
        "self-supervised training on any images: DINO, LeJEPA or your own method",
    ),
    "speedrun": ("mixlab.commands.speedrun", "train a recipe, score it, record the time"),
    "train": ("mixlab.commands.train", "supervised training of a classifier"),
    "probe": ("mixlab.commands.probe", "linear probes on frozen features: the paper's whole ablation in one run"),
    "knn": ("mixlab.commands.knn", "kNN accuracy of frozen features"),
    "segment": ("mixlab.commands.segment", "semantic segmentation: UperNet on any backbone"),
    "detect": ("mixlab.commands.detect", "detection and instance masks: Mask R-CNN, Cascade Mask R-CNN"),
    "robust": ("mixlab.commands.robust", "accuracy on ImageNet-V2, Sketch, A, R and ReaL, or on corrupted images"),
    "rank": ("mixlab.commands.rank", "measure the ranks of the blocks of mixing matrices"),
    "maps": ("mixlab.commands.maps", "draw activation maps and principal components"),
    "auc": ("mixlab.commands.auc", "Binary-AUC of activation maps against masks, with baselines"),
    "matrices": ("mixlab.commands.matrices", "draw the mixing matrices on one image: which token reads which"),
    "norms": ("mixlab.commands.norms", "high-norm tokens by layer: how many and where, against an untrained twin"),
    "claims": ("mixlab.commands.claims", "each claim of the papers, what was measured, and the verdict"),
    "report": ("mixlab.commands.report", "write one self-contained page about runs"),
    "look": ("mixlab.commands.look", "open a page with your photographs: what does each patch attend to?"),
    "app": ("mixlab.commands.app", "the same page with any models and images"),
    "bench": ("mixlab.commands.bench", "speed, compared with other implementations"),
    "ship": ("mixlab.commands.ship", "compress a trained network to few bits, with a model card"),
    "export": ("mixlab.commands.export", "write a backbone as safetensors or ONNX, or for transformers"),
}

GROUPS: dict[str, tuple[str, ...]] = {
    "start here": ("demo", "look", "app"),
    "look inside a network": ("maps", "matrices", "auc", "rank", "norms"),
    "measure a network": ("knn", "probe", "robust", "segment", "detect"),
    "train a network": ("pretrain", "train", "speedrun"),
    "choose a network": ("models", "advise", "bench"),
    "the two papers, Dino-Mamba and MambaOut": ("study", "reproduce", "claims"),
    "share": ("report", "export", "ship"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 1 failed, 2 wrong call, 130 and 143 stopped by Ctrl-C and by SIGTERM.

    Errors that users can fix are printed as one sentence (MIXLAB_DEBUG=1: as a traceback); bugs are always tracebacks.
    """
    if arguments is not None:
        return run_command(list(arguments))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # labels may have letters that the terminal's encoding lacks
            stream.reconfigure(errors="backslashreplace")
    leave_on_signals()  # imports: nothing was begun, and some libraries turn an exception into another there
    code: int | None = 1
    try:
        code = run_command(sys.argv[1:], even_ignored=True)
    except SystemExit as stopped:
        code = stopped.code if isinstance(stopped.code, int) else None
        raise
    finally:
        with suppress(OSError):  # Python says so itself
            sys.stdout.flush()
        leave_on_signals(code)  # all is done: a signal while Python tidies up only shortens that
    return code


def run_command(arguments: list[str], *, even_ignored: bool = False) -> int:
    """What `main` does, for a command within a program; `even_ignored` as in `signals.raising`."""
    from rich.text import Text

    from mixlab.console import console, put

    try:
        arguments = import_plugins(arguments)
    except InputError as error:
        if os.environ.get("MIXLAB_DEBUG") == "1":
            raise
        console.print(Text.assemble(("error:", "red"), f" {error}"))
        return 1
    if arguments[:1] == ["--version"]:
        put(f"mixlab {__version__}")
        return 0
    if arguments[:1] == ["help"] and len(arguments) > 1:
        arguments = [arguments[1], "--help"]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        put(overview())
        return 0
    name, *rest = arguments
    known = {**COMMANDS, **registered_analyses()}
    if name not in known:
        hint = did_you_mean(name, known, otherwise=f"mixlab knows {', '.join(known)}")
        console.print(Text.assemble((f"unknown command {name!r}", "red"), f"; {hint}"))
        return 2
    if any(part.partition("=")[0] == "--import" for part in rest):
        console.print(
            Text.assemble(
                ("error:", "red"), f" --import must come before the command: mixlab --import PLUGIN {name} ..."
            )
        )
        return 2
    warnings.formatwarning = plain_warning
    from mixlab.commands.help import run_parsed, what_to_make_smaller

    number: int | None = None
    function: Callable[..., Any] | None = None
    try:
        with naming_extras():
            function = find_command(name)
            with raising(even_ignored=even_ignored) as handler:
                try:
                    run_parsed(function, name, rest)
                finally:
                    number = handler.number
    except KeyboardInterrupt as stopped:
        if os.environ.get("RANK", "0") == "0":
            console.print(str(stopped) or "stopped")
        return int(getattr(stopped, "exit_code", 128 + signal.SIGINT))
    except Exception as error:
        if number is not None:  # a library turned the signal's exception into this one, or another rank left first
            say_stopped(number)
            return 128 + number
        if is_out_of_memory(error):
            said = what_to_make_smaller(error, function)
        else:
            said = sentence_of(error) if is_for_users(error) else plugin_at_fault(error)
        if not said or os.environ.get("MIXLAB_DEBUG") == "1":
            raise
        console.print(Text.assemble(("error:", "red"), f" {said}"))
        return 1
    return 0


def registered_analyses() -> dict[str, Any]:
    """Those that were registered before this command began: without any, what they are is not even imported."""
    registry = sys.modules.get("mixlab.analysis.registry")
    return {} if registry is None else dict(registry.ANALYSES)


def find_command(name: str) -> Callable[..., Any]:
    """The function of a command; of an analysis, the command that follows from it."""
    module = import_module(COMMANDS[name][0]) if name in COMMANDS else None
    analysis = registered_analyses().get(name)
    if analysis is None or (module is not None and is_ours(analysis.function)):
        return getattr(module, name)
    if module is not None:
        raise InputError(
            f"{analysis.function.__module__} registers an analysis {name!r}, which is a command already; rename it"
        )
    from mixlab.commands.analysis import command_of

    return command_of(analysis)


def import_plugins(arguments: list[str]) -> list[str]:
    """Load each `--import MODULE` before the command, in this process and in those that it starts; the other arguments.

    Code is imported because a user names it here, never because a file does.
    """
    while arguments and arguments[0].partition("=")[0] == "--import":
        _, equals, name = arguments[0].partition("=")
        rest = arguments[1:] if equals else arguments[2:]
        name = name if equals else (arguments[1] if len(arguments) > 1 else "")
        if not name:
            raise InputError("--import needs the name of a module, or a file: mixlab --import my_mixer.py COMMAND ...")
        load_for_all(name)
        arguments = rest
    return arguments


def leave_on_signals(code: int | None = None) -> None:
    """Signals end the process at once, with this exit code, or with a line and their own."""

    def leave(number: int, frame: FrameType | None) -> None:
        if code is None:
            say_stopped(number)
        os._exit(128 + number if code is None else code)

    for number in STOP_SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, leave)


def is_for_users(error: Exception) -> bool:
    """Whether users can fix it: not a bug of ours."""
    if isinstance(error, InputError | WorkError | MissingExtraError | OSError):
        return True
    safetensors = sys.modules.get("safetensors")  # where nothing imported it, it did not fail
    return safetensors is not None and isinstance(error, safetensors.SafetensorError)


def sentence_of(error: Exception) -> str:
    """Its message; of an error of the operating system the file and the reason, without a number."""
    if not isinstance(error, OSError) or error.filename is None or error.strerror is None:
        return str(error)
    forbidden = error.errno in (errno.EROFS, errno.EACCES, errno.EPERM)
    advice = "; name another place, or change its permissions" if forbidden else ""
    return f"{error.filename}: {error.strerror}{advice}"


def plain_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Our warnings without a line of code; others as Python prints them."""
    if Path(__file__).parent in Path(filename).parents:
        return f"warning: {message}\n"
    return f"{filename}:{lineno}: {category.__name__}: {message}\n"


def overview() -> str:
    known = {name: line for name, (_, line) in COMMANDS.items()}
    known |= {name: analysis.about for name, analysis in registered_analyses().items() if name not in known}
    width = max(map(len, known))
    plugins = tuple(name for name in known if name not in COMMANDS)
    lines = []
    for group, names in {**GROUPS, **({"plugins": plugins} if plugins else {})}.items():
        lines += ["", f"{group}:"]
        for name in names:
            first, *rest = textwrap.wrap(known[name], 76 - width)  # of 80 columns
            lines += [f"  {name:<{width}}  {first}", *(f"  {'':<{width}}  {part}" for part in rest)]
    return (
        "mixlab: see what an image model looks at; compare attention, Mamba, convolution\n"
        + "\n".join(lines)
        + "\n\nmixlab COMMAND --help explains a command; to begin: mixlab look photo.jpg"
        + "\nmixlab --import MODULE_OR_FILE COMMAND ... loads a plugin first"
    )


if __name__ == "__main__":
    sys.exit(main())
