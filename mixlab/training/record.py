"""config.json of a training run: written at every start, checked when the run resumes, restored where it was lost."""

from collections.abc import Callable
from typing import Any

from mixlab.backbones.weights import parts_of
from mixlab.data.given import Data, GivenData
from mixlab.data.listed import ListedSource
from mixlab.data.source import Source
from mixlab.data.source_names import is_built_in
from mixlab.errors import InputError
from mixlab.plugins import needed_plugins
from mixlab.run import RunDirectory, provenance
from mixlab.run.codec import to_json
from mixlab.training.checkpoint import Checkpoints
from mixlab.training.config import TrainConfig
from mixlab.training.distributed import World, from_first, once_per_machine
from mixlab.training.image_list import FILE, as_listed, changed_list, has_same_list, write_list
from mixlab.training.stored_settings import (
    check_settings,
    first_change,
    folder_was_moved,
    has_begun,
    note_changes,
    same_data,
)

Warn = Callable[[str], None]


class RunRecord:
    """What the directory of a run says about it. The first rank reads and writes it."""

    def __init__(self, folder: RunDirectory, *, config: TrainConfig, data: Data, world: World) -> None:
        self.folder, self.config, self.world = folder, config, world
        self.data, self._given = str(data), data
        self.content: dict[str, Any] = {}  # as written at this start
        self._stored: dict[str, Any] = {}  # as found
        self._opened: Source[Any] | None = None  # with the numbers and classes that the data has now
        self._known_as: str | None = None  # the name of the data at the start, where its folder was moved

    @property
    def _source_name(self) -> str:
        return self.data.partition(":")[0]

    @property
    def changes(self) -> list[dict[str, Any]]:
        """Of settings in the course of the run."""
        return list(self.content.get("changes", []))

    def open_source(self, warn: Warn) -> Source[Any]:
        """The data. Where a run resumes and images were removed, or added, the others keep their numbers."""
        self._opened = source = once_per_machine(self.world, lambda: self.config.method.open(self._given))
        listed = None
        if self.world.is_first and has_begun(self.folder) and not is_built_in(self.data):
            known = self._known_data()
            if known is not None and same_data(known, self.data):
                listed = changed_list(self.folder.path, source)
                self._check_fingerprint(changed=listed is not None and source.names_are_numbers)
            elif known is not None and folder_was_moved(known, self.data) and has_same_list(self.folder.path, source):
                self._known_as = known
                warn(
                    f"{known}, where the run was started, is gone; it resumes on {self.data}, which has the same files"
                )
        if (listed := from_first(listed)) is not None:
            source, note = as_listed(source, listed, name=self.data)
            warn(note)
        return source

    def check(self, checkpoints: Checkpoints, warn: Warn) -> None:
        """Refuse to resume another run."""
        copy = None
        if not (self.folder.path / "config.json").is_file():
            found = checkpoints.newest(warn)
            copy = found.state.get("config") if found else None
            if copy is not None:
                warn(f"{self.folder.path / 'config.json'} is gone; it is restored from the checkpoint")
        data = self.data if self._known_as is None else self._known_as
        self._stored = check_settings(self.folder, data=data, config=self.config, copy=copy)
        self._check_classes()

    def write(self, about: dict[str, Any], source: Source[Any], *, step: int) -> None:
        """Everything needed to repeat the run; `about` is what the loop knows of it. Every start adds a session."""
        stored, settings = self._stored, to_json(self.config)
        origin = provenance(seed=self.config.seed, device=str(self.world.device))
        session = {**origin, "world_size": self.world.size, "from_step": step}
        if isinstance(source, ListedSource):
            session["num_removed_images"] = source.num_removed
        elif not is_built_in(self.data) and self._wants_list(len(source)):
            write_list(self.folder.path, source)
        changes = note_changes(stored, settings, step=step)
        failed, sessions = stored.get("failed"), stored.get("sessions")
        still_failed = isinstance(failed, dict) and failed.get("step", 0) > step
        self.content = {
            **{key: stored.get(key, value) for key, value in origin.items()},
            "data": self.data,
            **({"fingerprint": self._given.fingerprint} if isinstance(self._given, GivenData) else {}),
            "num_images": len(source),
            "classes": list(source.classes),
            "settings": settings,
            **about,
            **({"plugins": plugins} if (plugins := self._plugins(about)) else {}),
            **({"changes": changes} if changes else {}),
            **({"failed": failed} if still_failed else {}),
            "sessions": [*(sessions if isinstance(sessions, list) else []), session],
        }
        self.folder.write_config(self.content)

    def _plugins(self, about: dict[str, Any]) -> list[dict[str, Any]]:
        """Those that registered what the run is made of."""
        used = [
            ("recipe", str(about.get("recipe"))),
            ("method", self.config.method.kind),
            ("source", self._source_name),
            ("optimizer", self.config.optim.name),
            ("schedule", self.config.optim.decay),
        ]
        return needed_plugins([*used, ("backbone", self.config.model.name), *parts_of(about.get("architecture", {}))])

    def note_failure(self, step: int) -> None:
        """The loss was not finite: until it is beyond the step, the run may resume with other settings (`CURES`)."""
        if self.world.is_first:
            failed = {"step": step, "why": "the loss or its gradient is not finite"}
            self.folder.write_config({**self.content, "failed": failed})

    def _wants_list(self, num_images: int) -> bool:
        """At the start; later, only for a run that an older version started, and with as many images as it had."""
        if not has_begun(self.folder):
            return True
        return not (self.folder.path / FILE).is_file() and self._stored.get("num_images") == num_images

    def _check_fingerprint(self, *, changed: bool) -> None:
        """Refuse a data set under the name of another: its samples have numbers alone, so none can be matched."""
        if not isinstance(self._given, GivenData) or not self._given.train.names_are_numbers:
            return
        known = self.folder.read_config().get("fingerprint")
        if changed or known not in (None, self._given.fingerprint):
            raise InputError(
                f"{self.data} is not the data set that {self.folder.path} was started on: its number of samples, "
                "labels or pixels differ; give the same one, or another run directory"
            )

    def _check_classes(self) -> None:
        """Refuse other classes of pixels or objects. Those of whole images are in the list of images, with their names,
        and keep their numbers; these are in the samples alone.
        """
        known, source = self._stored.get("classes"), self._opened
        if not isinstance(known, list) or source is None or not source.classes or known == list(source.classes):
            return
        if bool((source.labels() >= 0).any()):
            return
        place, change = self.folder.path, first_change(known, source.classes)
        raise InputError(
            f"{self.data} has other classes than {place} was started with ({change}); put them back in the order of "
            f"{place / 'config.json'}, with labels to match, or give another --run directory"
        )

    def _known_data(self) -> str | None:
        """The data that the run was started on; None where its record does not say."""
        try:
            known = self.folder.read_config().get("data")
        except (OSError, InputError):
            return None
        return known if isinstance(known, str) else None
