"""Which files of a folder are ours: publishing replaces and removes those alone.

manifest.json lists them with their digests. A file that is not listed, or that was changed since, belongs to somebody
else: it stays, and is named.
"""

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

from mixlab.errors import InputError
from mixlab.run.files import read_json, write_json

NAME = "manifest.json"
ABOUT = "files of `mixlab study --publish`"  # other programs have a manifest.json, too
SHA256 = re.compile("[0-9a-f]{64}")


class Manifest:
    """The files that were published in a folder; of each, the digests that it may have."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, list[str]] = {}
        if (folder / NAME).is_file() and not (folder / NAME).is_symlink():
            try:
                content = read_json(folder / NAME)
                files = content["files"] if content.get("about") == ABOUT else {}
                if all(SHA256.fullmatch(digest) for digests in files.values() for digest in digests):
                    self.files = {name: list(digests) for name, digests in files.items()}
            except (ValueError, KeyError, TypeError, AttributeError):
                self.files = {}  # not our manifest, or a damaged one: then nothing here is known to be ours

    def foreign(self) -> list[str]:
        """What lies in the folder and is not ours, by name, sorted; of folders, only their own names."""
        if not self.folder.is_dir():
            return []
        return sorted(entry.name for entry in self.folder.iterdir() if not self.owns(entry.name))

    def owns(self, name: str) -> bool:
        file = self.folder / name
        if name == NAME:
            return bool(self.files)
        return name in self.files and file.is_file() and not file.is_symlink() and _digest(file) in self.files[name]

    def check_free(self, names: Iterable[str]) -> None:
        """Refuse where a file of somebody else has one of these names."""
        others = self.foreign()
        if taken := [name for name in (*names, NAME) if name in others]:
            raise InputError(
                f"{self.folder} holds {', '.join(taken)}, which was not published from here, or was changed since; "
                "move it away, or give another folder"
            )

    def replace_by(self, made: Path) -> None:
        """Move the files of the folder `made` to the place of ours. If anything fails, all is as before.

        While they move, the manifest lists the old and the new ones: a killed process leaves nothing that is unknown.
        """
        new = {file.name: _digest(file) for file in sorted(made.iterdir())}
        self.check_free(new)
        known = {name: digests for name, digests in self.files.items() if self.owns(name)}
        before = made.with_name("before")
        before.mkdir()
        self.folder.mkdir(exist_ok=True)
        self._write(known | {name: [*known.get(name, []), digest] for name, digest in new.items()})
        moves = [(self.folder / name, before / name) for name in known]
        moves += [(made / name, self.folder / name) for name in new]
        done: list[tuple[Path, Path]] = []
        try:
            for source, target in moves:
                source.replace(target)
                done.append((source, target))
        except BaseException:
            for source, target in reversed(done):
                target.replace(source)
            self._write(known)
            raise
        self._write({name: [digest] for name, digest in new.items()})

    def _write(self, files: dict[str, list[str]]) -> None:
        self.files = dict(sorted(files.items()))
        if self.files:
            write_json(self.folder / NAME, {"about": ABOUT, "files": self.files})
        else:
            (self.folder / NAME).unlink(missing_ok=True)


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
