"""What others add to mixlab: tables that code from outside can add to, and how that code is loaded.

A plugin is a module that registers something when it is imported: `mixlab.register_mixer` and the like write to a
`Registry`, which notes who wrote. So a run can say which plugins it needs. Code is imported where a user asks for it
and nowhere else: `mixlab --import MODULE`, the environment variable MIXLAB_IMPORT (which `--import` sets for processes
that this one starts), or an installed package with an entry point in the group `mixlab.plugins`. A file that names a
plugin is never a reason to import it.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections import UserDict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import import_module, invalidate_caches, metadata
from importlib.util import module_from_spec, spec_from_file_location
from inspect import isabstract, signature
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from mixlab.errors import InputError

T = TypeVar("T")
Used = tuple[str, str]  # a table and a name in it: ("mixer", "pool")
Needed = dict[str, Any]  # one plugin in a config.json or a file of weights
GROUP, VARIABLE = "mixlab.plugins", "MIXLAB_IMPORT"
REGISTRIES: dict[str, Registry[Any]] = {}  # by the word for what they hold
_FILES: dict[str, Path] = {}  # plugins that were given as files, by the name of their module


class Registry(UserDict[str, T]):
    """Everything of one kind by its name: ours, and what is registered later. `registry[name] = thing` registers."""

    def __init__(self, word: str, own: Mapping[str, T]) -> None:
        super().__init__()
        self.word = word  # for one entry, in messages and in config.json: "mixer"
        self.data.update(own)
        self._origins: dict[str, str] = {}  # the modules that registered what is not ours
        self._derived: set[str] = set()  # entries that another may replace
        self._followers: list[Callable[[str, T], None]] = []
        REGISTRIES[word] = self

    def __setitem__(self, name: str, thing: T) -> None:
        origin = _caller()
        if not isinstance(name, str) or not name or set(name) & set(" =:"):
            raise InputError(f"{name!r} is no name for a {self.word}; give a word without spaces, = and :")
        again = origin == self._origins.get(name) and _is_interactive(origin)
        if name in self.data and name not in self._derived and not again:
            first = self._origins.get(name, "mixlab")
            raise InputError(
                f"{origin} registers the {self.word} {name!r}, already registered by {first}; choose another name"
            )
        self._derived.discard(name)
        self._add(name, thing, origin)

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self._origins.pop(name, None)
        self._derived.discard(name)

    def derive(self, name: str, thing: T, origin: str | None) -> None:
        """Add what follows from something that `origin` registered; whoever registers that name itself replaces it."""
        if name not in self.data or name in self._derived:
            self._derived.add(name)
            self._add(name, thing, origin)

    def follow(self, tell: Callable[[str, T], None]) -> None:
        """Call for every entry, now and whenever one is registered: what comes late is known everywhere."""
        for name, thing in list(self.data.items()):
            tell(name, thing)
        self._followers.append(tell)

    def origin(self, name: str) -> str | None:
        """The module that registered it; None of ours, and of what is not there."""
        return self._origins.get(name)

    @property
    def origins(self) -> set[str]:
        """All modules that registered something."""
        return {*self._origins.values()}

    def _add(self, name: str, thing: T, origin: str | None) -> None:
        self.data[name] = thing
        if origin is not None:
            self._origins[name] = origin
        for tell in self._followers:
            tell(name, thing)


def check_class(word: str, given: Any, base: type[Any]) -> None:
    """Refuse what is no complete subclass with a `kind` and defaults for all fields, and say what is missing."""
    if not isinstance(given, type) or not issubclass(given, base):
        kind = given.__name__ if isinstance(given, type) else f"a {type(given).__name__}"
        raise InputError(f"a {word} is registered as its class, a subclass of {base.__name__}; got {kind}")
    if isabstract(given):
        missing = ", ".join(sorted(getattr(given, "__abstractmethods__", ())))
        raise InputError(f"{given.__name__} lacks {missing}, which every {word} defines")
    if not isinstance(getattr(given, "kind", None), str):
        raise InputError(f'{given.__name__} has no kind; add a line such as `kind: ClassVar[str] = "my_{word}"`')
    if "__dataclass_fields__" not in vars(given):
        raise InputError(f"{given.__name__} is not a dataclass; put @dataclass(frozen=True, kw_only=True) above it")
    try:
        given()
    except TypeError as error:
        raise InputError(f"{given.__name__}() cannot be made: {error}; give every field a default") from error


def named(word: str, given: Any, add: Callable[[str, Any], None]) -> Any:
    """A decorator of functions, with or without a name: `@register_map` or `@register_map("another_name")`."""

    def register(function: Any, name: str = "") -> Any:
        name = name or getattr(function, "__name__", type(function).__name__)
        if not callable(function):
            raise InputError(f"a {word} is registered as a function; got a {type(function).__name__}")
        if not name.isidentifier():
            raise InputError(f"a {word} cannot be called {name!r}: use letters, digits and _")
        add(name, function)
        return function

    return partial(register, name=given) if isinstance(given, str) else register(given)


def takes(function: Callable[..., Any], *arguments: str) -> bool:
    """Whether a function can be called with these, in this order."""
    try:
        signature(function).bind(*arguments)
    except TypeError:
        return False
    return True


def load_plugin(text: str) -> ModuleType:
    """Import a plugin: the name of a module, on Python's path or in the current folder, or a file."""
    try:
        return _load_file(_as_file(text)) if _is_file(text) else _load_module(text)
    except InputError as error:
        raise InputError(f"the plugin {text}: {error}") from error
    except Exception as error:  # whatever the plugin's own code raises
        raise InputError(f"the plugin {text} cannot be imported: {in_words(error)}") from error


def load_for_all(text: str) -> None:
    """`load_plugin`, also in processes that this one starts."""
    load_plugin(text)
    given = str(_as_file(text)) if _is_file(text) else text
    known = [name for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name]
    os.environ[VARIABLE] = os.pathsep.join([*known, *({given} - {*known})])


def load_at_start() -> None:
    """Plugins of installed packages and of MIXLAB_IMPORT. One that fails is a warning: the others are still there."""
    for point in metadata.entry_points(group=GROUP):
        package = point.dist.name if point.dist else point.name
        try:
            point.load()
        except Exception as error:
            warnings.warn(
                f"the plugin {point.value} of the package {package} is left out: {in_words(error)}; update or "
                "uninstall it",
                stacklevel=2,
            )
    for text in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        try:
            load_plugin(text)
        except InputError as error:
            warnings.warn(f"{VARIABLE}: {error}", stacklevel=2)


def needed_plugins(used: Iterable[Used]) -> list[Needed]:
    """The plugins that registered any of these, for `missing_plugins` to read again."""
    found: dict[str, Needed] = {}
    for word, name in used:
        origin = REGISTRIES[word].origin(name) if word in REGISTRIES else None
        if origin is not None:
            plugin = found.setdefault(origin.partition(".")[0], {})
            names = plugin.setdefault("adds", {}).setdefault(word, [])
            names += [name] if name not in names else []
    return [{"module": module, **_about(module), **plugin} for module, plugin in sorted(found.items())]


def missing_plugins(needed: object) -> str:
    """One sentence on the plugins of a record that are not loaded; empty where none is missing."""
    sentences = []
    for plugin in needed if isinstance(needed, list) else ():
        adds = plugin.get("adds") if isinstance(plugin, dict) else None
        every = [
            (word, name)
            for word, names in (adds.items() if isinstance(adds, dict) else ())
            for name in (names if isinstance(names, list) else ())
        ]
        lacking = [f"{word} {name}" for word, name in every if name not in REGISTRIES.get(word, ())]
        if lacking:
            package, file = plugin.get("package"), plugin.get("file")
            install = f"install {package}, or " if package else ""
            sentences.append(
                f"needs the plugin {plugin.get('module')} ({', '.join(lacking)}), which is not loaded; {install}write "
                f"`mixlab --import {file or plugin.get('module')} ...`, in Python `import` it"
            )
    return "; it also ".join(sentences)


def check_plugins(needed: object, place: str | Path) -> None:
    """Refuse what needs a plugin that is not loaded."""
    if missing := missing_plugins(needed):
        raise InputError(f"{place} {missing}")


def is_ours(thing: Any) -> bool:
    """Whether a class or a function is mixlab's own, not a plugin's."""
    return bool(thing.__module__.startswith("mixlab."))


def plugin_at_fault(error: Exception) -> str:
    """One sentence on the line of a plugin where an error came up; empty where our code was the last before others'."""
    known = {origin.partition(".")[0] for table in REGISTRIES.values() for origin in table.origins} | {*_FILES}
    trace, said = error.__traceback__, ""
    while trace is not None:
        code, module = trace.tb_frame.f_code, str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0]
        if module in known:
            said = f"the plugin {module} failed in {code.co_qualname}, {code.co_filename}:{trace.tb_lineno}"
        elif module == "mixlab":
            said = ""
        trace = trace.tb_next
    what = " ".join(str(error).split())
    return said and f"{said}: {type(error).__name__}{': ' * bool(what)}{what}; MIXLAB_DEBUG=1 shows the traceback"


def _is_file(text: str) -> bool:
    return text.endswith(".py") or os.sep in text


def _as_file(text: str) -> Path:
    return Path(text).expanduser().resolve()


def _load_file(file: Path) -> ModuleType:
    name = file.stem
    if not file.is_file():
        raise InputError(f"there is no file {file}; give a Python file, or the name of a module")
    if name in sys.modules:
        module = sys.modules[name]
        if Path(getattr(module, "__file__", None) or "").resolve() == file:
            return module
        raise InputError(f"a module {name!r} is imported already; give the file another name")
    spec = spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise InputError(f"{file} is not a Python file; its name must end in .py")
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))  # as for a script: it may import the files beside it
    _FILES[name] = file
    sys.modules[name] = module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _load_module(name: str) -> ModuleType:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)  # `python -m` has it too
    invalidate_caches()
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise InputError(
            f"there is no module {error.name!r} on Python's path or in {folder}; install it, or give a file such as "
            f"./{error.name}.py"
        ) from error


def _about(module: str) -> dict[str, str]:
    """Where somebody finds a plugin: its package with the version, or its file."""
    names = metadata.packages_distributions().get(module, [])
    if names:
        return {"package": f"{names[0]}=={metadata.version(names[0])}"}
    file = _FILES.get(module) or getattr(sys.modules.get(module), "__file__", None)
    return {"file": str(Path(file).resolve())} if file else {}


def _caller() -> str:
    """The module that registers something: the first outside of mixlab that called us."""
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "mixlab":
        frame = frame.f_back
    return str(frame.f_globals.get("__name__"))


def _is_interactive(module: str) -> bool:
    """Whether it is a notebook or a prompt, where a cell that runs again replaces what it registered."""
    return module == "__main__" and getattr(sys.modules.get(module), "__file__", None) is None


def in_words(error: Exception) -> str:
    """An error, and the line of the plugin where it came up."""
    trace, line = error.__traceback__, ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if "importlib" not in file and Path(file).parent != Path(__file__).parent:
            line = f" ({file}:{trace.tb_lineno})"
        trace = trace.tb_next
    return f"{type(error).__name__}: {error}{line}" if str(error) else f"{type(error).__name__}{line}"
