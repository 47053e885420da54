"""The reference, from docstrings: commands with their options, and the public names of the package."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from dataclasses import MISSING, fields, is_dataclass
from functools import partial
from importlib import import_module
from itertools import pairwise
from typing import Any, get_args, get_type_hints

import mixlab
from mixlab.cli import COMMANDS, find_command

# Module: its title, and the names to explain; without names all of its own, or its __all__.
MODULES = {
    "mixlab.backbones.zoo": ("Models by name", "create_model list_models register_backbone register_family"),
    "mixlab.backbones.wrapped": ("Any module as a backbone", "wrap"),
    "mixlab.backbones.backbone": ("The contract of backbones", "Backbone LayerShape"),
    "mixlab.backbones.tokens": ("Tokens and features", "TokenLayout Features"),
    "mixlab.backbones.preprocess": ("Images for a model", "preprocess"),
    "mixlab.backbones.weights": ("Weights", ""),
    "mixlab.mixers.mixer": ("The contract of mixers", "Mixing TokenMixer MixerConfig"),
    "mixlab.backbones.transformers_registry": ("transformers", "register_with_transformers"),
    "mixlab.mixers": ("Mixers by name", "register_mixer"),
    "mixlab.data": (
        "Data sources and crops",
        "Source Subset split evenly_spaced at_most parse_source parse_masks parse_label_maps parse_objects"
        " labelled_splits LabelledSplits Shapes DrawnScene ImageFolder TarShards MaskedImage UnreadableImage",
    ),
    "mixlab.data.dataset_source": ("Data sets of one's own", "DatasetSource"),
    "mixlab.data.registered": ("Sources by name", "register_source"),
    "mixlab.data.given": ("Data given in Python", "as_data GivenData fingerprint"),
    "mixlab.data.crops": ("Crops", "MultiCrop CropKind dino_crops CropParameters draw_parameters make_crops normalise"),
    "mixlab.data.packed": (
        "Images of any sizes in one batch",
        "pack_images PackedImages PackedBatch PackedReader PackedLoader",
    ),
    "mixlab.data.loader": ("Batches", "BatchLoader ImageReader Batch SampleReader"),
    "mixlab.recipes": ("Recipes", "find_recipe register_recipe with_method"),
    "mixlab.training.config": (
        "Training configurations",
        "TrainConfig ModelConfig DataConfig OptimConfig CheckpointConfig LogConfig KnnConfig MethodConfig",
    ),
    "mixlab.training.loop": ("The training loop", "train Outcome Trainer"),
    "mixlab.training.settings": ("Settings of a run", "override"),
    "mixlab.training.recipe": ("The contract of training methods", "Recipe BatchPart"),
    "mixlab.training.dino_parts": ("DINO's parts", ""),
    "mixlab.training.views": ("Methods that learn from views", ""),
    "mixlab.training.optim": (
        "Optimisers",
        "register_optimizer build_optimizer parameter_groups set_rates gradients clip_each_ move_towards_",
    ),
    "mixlab.training.schedules": (
        "Schedules",
        "register_schedule Course learning_rate cosine linear_by_epoch",
    ),
    "mixlab.training.augment": (
        "Augmentation of supervised training",
        "rand_augment Blend draw_blends draw_erasures erase soft_targets",
    ),
    "mixlab.training.live_scores": ("Scores while a network trains", "Scores KnnScores"),
    "mixlab.training.knn": ("The vote of nearest neighbours", ""),
    "mixlab.evaluation.methods": ("Methods by name", "register_method"),
    "mixlab.evaluation.target": ("Networks to measure", "Target load_target load_targets as_target"),
    "mixlab.evaluation.settings": ("Settings of kNN and probes", "KnnSettings ProbeSettings FrozenSettings"),
    "mixlab.evaluation.knn": ("kNN accuracy", ""),
    "mixlab.evaluation.probe": ("Linear probes", ""),
    "mixlab.evaluation.in_memory": ("Features and linear probes in memory", ""),
    "mixlab.evaluation.features": ("Which features a head reads", "FeaturePlan FeatureTable HeadInput STRATEGIES"),
    "mixlab.evaluation.accuracy": ("Accuracy", ""),
    "mixlab.evaluation.own_classifier": ("The classifier of a network", "load_classifier"),
    "mixlab.evaluation.classifier": ("Classifiers", "NamedClassifier"),
    "mixlab.evaluation.robustness": ("Shifted sets", "evaluate_robustness RobustnessResult"),
    "mixlab.evaluation.shifts": ("Corrupted images", "evaluate_shifts ShiftResult"),
    "mixlab.evaluation.segmentation.task": ("Segmentation", ""),
    "mixlab.evaluation.detection.task": ("Detection", ""),
    "mixlab.evaluation.machine": ("Where an evaluation runs", "Machine CentreView"),
    "mixlab.analysis.viewed_images": ("Images of an analysis", ""),
    "mixlab.analysis.maps": ("Activation maps", "activation_map default_map"),
    "mixlab.analysis.activation_maps": ("Activation maps of several networks", "activation_maps MapsResult"),
    "mixlab.analysis.registered_maps": ("Maps of one's own", "register_map"),
    "mixlab.analysis.binary_auc": ("Binary-AUC", ""),
    "mixlab.analysis.binary_auc_metric": ("Binary-AUC as a torchmetrics metric", ""),
    "mixlab.analysis.auc": ("Maps scored against masks", "score_maps"),
    "mixlab.analysis.rank": ("Ranks of mixing matrices", "measure_ranks RankResult"),
    "mixlab.analysis.blocks": ("Blocks of matrices", "rank_measures numerical_rank Span"),
    "mixlab.analysis.exhibit": ("Results that name their own pictures", ""),
    "mixlab.analysis.registry": ("Analyses of one's own", "register_analysis Analysis"),
    "mixlab.analysis.norms": ("High-norm tokens", "measure_norms norms_by_layer LayerNorms"),
    "mixlab.analysis.pca": ("Principal components", ""),
    "mixlab.analysis.claims": ("The ledger", ""),
    "mixlab.statistics": ("Statistics", ""),
    "mixlab.run": ("Run directories and measurements", ""),
    "mixlab.run.protocols": ("Protocols of measurements", ""),
    "mixlab.report": ("The report", ""),
    "mixlab.errors": ("Errors", "InputError MissingPartError WorkError MissingExtraError"),
}


def reference_page() -> str:
    """The page as Markdown."""
    commands = [_command(name) for name in COMMANDS]
    modules = [_module(name, title, names.split()) for name, (title, names) in MODULES.items()]
    return "\n\n".join(["# Reference", "## Commands", *commands, "## Python", _public_names(), *modules])


def _public_names() -> str:
    """The names of `mixlab.__all__`, each with a link to its entry below."""
    entries = {name: _first_sentence(_own_doc(getattr(mixlab, name))) for name in mixlab.__all__}
    listed = [f"- [`mixlab.{name}`](#{name.lower()}): {about}" for name, about in entries.items()]
    return "\n".join(["### Public names: `mixlab`\n", *listed])


def _command(name: str) -> str:
    function = find_command(name)
    about, explained = _split(inspect.getdoc(function) or COMMANDS[name][1])
    hints = get_type_hints(function, include_extras=True)
    rows: list[tuple[str, str]] = []
    for parameter in inspect.signature(function).parameters.values():
        kind, *notes = _parts(hints[parameter.name])
        if is_dataclass(kind):
            rows += _group(kind)
            continue
        positional = parameter.kind is parameter.POSITIONAL_OR_KEYWORD  # all options come after a `*`
        meaning = explained.get(parameter.name) or _help(notes)
        rows.append(_option(parameter.name, parameter.default, meaning, positional=positional))
    rows.sort(key=lambda row: row[0].startswith("--"))  # positional ones first
    lines = [f"| `{flag}` | {rest} |" for flag, rest in rows]
    table = "\n".join(["| option | default | meaning |", "|---|---|---|", *lines])
    return f"### mixlab {name}\n\n{_prose(about)}\n\n{table}"


def _group(kind: type[Any], prefix: str = "") -> list[tuple[str, str]]:
    """The fields of a dataclass as options, explained by what is written beside or below them."""
    explained: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        source = textwrap.dedent(inspect.getsource(base))
        body = ast.parse(source).body[0].body  # type: ignore[attr-defined]
        for node, after in pairwise([*body, None]):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                beside = source.splitlines()[node.end_lineno - 1].partition("  # ")[2]  # type: ignore[operator]
                below = isinstance(after, ast.Expr) and ast.literal_eval(after.value)
                explained[node.target.id] = " ".join(str(below or beside).split())
    rows: list[tuple[str, str]] = []
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        own, *notes = _parts(hints[field.name])
        if is_dataclass(own):
            rows += _group(own, f"{prefix}{field.name}.")  # type: ignore[arg-type]
            continue
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        positional = any("Positional" in repr(note).title() for note in notes)
        meaning = explained[field.name] or _help(notes)
        rows.append(_option(f"{prefix}{field.name}", default, meaning, positional=positional))
    return rows


def _parts(hint: Any) -> tuple[Any, ...]:
    """A type, and what `Annotated` notes beside it."""
    return get_args(hint) if hasattr(hint, "__metadata__") else (hint,)


def _help(notes: list[Any]) -> str:
    return next((note.help for note in notes if getattr(note, "help", None)), "")


def _option(name: str, default: Any, meaning: str, *, positional: bool) -> tuple[str, str]:
    flag = name.upper() if positional else f"--{name.replace('_', '-')}"
    said = "required" if default is inspect.Parameter.empty else f"`{_short(default)}`"
    if default is None or default is False or default == ():
        said = ""  # off, or as its meaning says
    return flag, f"{said} | {_cell(meaning)}"


def _module(name: str, title: str, names: list[str]) -> str:
    module = import_module(name)
    own = [key for key, value in vars(module).items() if _is_own(value, name, key)]
    names = names or getattr(module, "__all__", None) or own
    parts = [_entry(key, getattr(module, key)) for key in names]
    return "\n\n".join([f"### {title}: `{name}`", _prose(inspect.getdoc(module) or ""), *filter(None, parts)])


def _is_own(value: Any, module: str, key: str) -> bool:
    if key.startswith("_") or isinstance(value, partial):
        return not key.startswith("_")
    return (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__ == module


def _entry(name: str, value: Any) -> str:
    if not (inspect.isclass(value) or inspect.isfunction(value) or isinstance(value, partial)):
        return ""
    lines = [f"#### `{name}`", _signature(name, value), _prose(_own_doc(value))]
    if inspect.isclass(value):
        lines += [
            f"- `{key}`: {_first_sentence(_own_doc(member))}"
            for key, member in vars(value).items()
            if not key.startswith("_") and _own_doc(member) and callable(getattr(value, key))
        ]
    head = "\n\n".join(filter(None, lines[:3]))
    return head + ("\n\n" + "\n".join(lines[3:]) if lines[3:] else "")


def _signature(name: str, value: Any) -> str:
    """How it is called; nothing for classes that are only inherited from."""
    if inspect.isclass(value) and issubclass(value, Exception):
        return ""
    function = value.func if isinstance(value, partial) else value
    try:
        found = inspect.signature(function, eval_str=True)
    except (NameError, TypeError):  # a name that is imported for type checkers only
        found = inspect.signature(function)
    bound = value.keywords if isinstance(value, partial) else {}
    found = found.replace(parameters=[_shown(given) for name, given in found.parameters.items() if name not in bound])
    signature = str(found).removesuffix(" -> None") if inspect.isclass(value) else str(found)
    if "**kwargs" in signature:
        return ""
    return f"```python\n{_wrapped(name + _readable(signature))}\n```"


class _Left:
    """Stands for a default that is too long to show."""

    def __repr__(self) -> str:
        return "..."


def _shown(parameter: inspect.Parameter) -> inspect.Parameter:
    text = repr(parameter.default)
    return parameter.replace(default=_Left()) if " at 0x" in text or len(text) > 60 else parameter


def _own_doc(value: Any) -> str:
    """A written docstring; not the one that a dataclass generates, nor one inherited. Of a partial, its function's."""
    value = value.func if isinstance(value, partial) else value
    doc = inspect.cleandoc(getattr(value, "__doc__", None) or "")
    return "" if doc.startswith(f"{getattr(value, '__name__', '')}(") else doc


def _split(doc: str) -> tuple[str, dict[str, str]]:
    """A docstring as its text and the meanings of its arguments."""
    about, _, listed = doc.partition("\nArgs:\n")
    found = re.findall(r"^ {4}(\w+): (.*?)(?=^ {4}\w+: |\Z)", listed + "\n", flags=re.DOTALL | re.MULTILINE)
    return about, {name: re.sub(r"\s+", " ", text).strip() for name, text in found}


def _prose(text: str) -> str:
    """Docstrings are plain text: keep what looks like a table or an example as it stands."""
    blocks = []
    for block in re.split(r"\n{2,}", text.strip()):
        laid_out = ">>>" in block or re.search(r"\S {3,}\S", block)
        blocks.append(f"```text\n{block}\n```" if laid_out else html_safe(block))
    return "\n\n".join(blocks)


def html_safe(text: str) -> str:
    """Plain text for Markdown; what is between backticks stays as it is."""
    parts = text.split("`")
    return "`".join(part if index % 2 else _escaped(part) for index, part in enumerate(parts))


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("$", "&#36;").replace("*", "\\*").replace("_", "\\_")


def _cell(text: str) -> str:
    return html_safe(text).replace("|", "\\|")


def _first_sentence(doc: str) -> str:
    paragraph = re.sub(r"\s+", " ", doc.split("\n\n")[0])
    return html_safe(re.split(r"(?<=[.!?]) ", paragraph)[0])


def _short(value: Any) -> str:
    if isinstance(value, tuple | list):
        return " ".join(map(str, value)) or "none"
    text = str(value)
    return text if len(text) < 40 else type(value).__name__


def _readable(signature: str) -> str:
    signature = re.sub(r"<class '([\w.]+)'>", r"\1", signature)
    signature = re.sub(r"\b(?:torch|pathlib|collections\.abc|typing|numpy)\.(?=[A-Z])", "", signature)
    return re.sub(r"\bmixlab(?:\.\w+)*\.(?=[A-Z])", "", signature)


def _wrapped(signature: str) -> str:
    """A long signature over several lines, broken at commas outside brackets."""
    if len(signature) <= 100:
        return signature
    depth, parts, start = 0, [], signature.index("(") + 1
    head, last = signature[:start], start
    for place in range(start, len(signature)):
        depth += (signature[place] in "([{") - (signature[place] in ")]}")
        if depth < 0:
            parts.append(signature[last:place])
            return head + "\n" + ",\n".join(f"    {part.strip()}" for part in parts) + "\n" + signature[place:]
        if signature[place] == "," and depth == 0:
            parts.append(signature[last:place])
            last = place + 1
    return signature
