"""The files that COPY and ADD of a Dockerfile can name: those of its folder."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from polar.tasks import ignore_rules
from polar.tasks.dockerfile_instructions import DockerfileError, Instruction
from polar.tasks.harbor_folder import inside
from polar.tasks.ignore_rules import LeftOut
from topics.types.errors import InputError

MAGIC = ((0, b"\x1f\x8b"), (0, b"BZh"), (0, b"\xfd7zXZ\0"), (0, b"\x28\xb5\x2f\xfd"), (257, b"ustar"))
"""Places and first bytes of what ADD unpacks: gzip, bzip2, xz, zstandard, tar."""
MAGIC_BYTES = 262


@dataclass(frozen=True)
class Context:
    """The folder of a Dockerfile."""

    folder: Path

    def sources(self, one: Instruction, name: str) -> list[Path]:
        """The files and folders that a source names, in order. Raises DockerfileError."""
        if one.name == "ADD" and ("://" in name or name.startswith("git@")):
            raise one.error(f"{name} is fetched by nobody; use RUN with a program that fetches it")
        path = posixpath.normpath(name.lstrip("/") or ".")
        if any(sign in path for sign in ("[", "\\", "**")):
            raise one.error(f"of patterns only * and ? are translated, and no {name}")
        is_pattern = "*" in path or "?" in path
        if path.split("/")[0] == "..":
            raise one.error(f"{name} leads out of the Dockerfile's folder")
        found = sorted(self.folder.glob(path)) if is_pattern else [self.folder / path]
        try:
            if not found or not all(source.exists() for source in found):
                raise one.error(f"there is no {name} in the Dockerfile's folder")
            kept = [source for source in found if self._is_kept(one, source)]
            if not kept:
                raise one.error(f"{name} is left out by the .dockerignore of the Dockerfile's folder")
            for source in kept:
                self._check(one, source)
        except OSError as error:
            raise one.error(f"{name} can't be read: {error.strerror}") from None
        return kept

    def uploads(self, one: Instruction, source: Path, target: str, cwd: str | None) -> list[dict[str, Any]]:
        """The actions, as JSON, that bring one of `sources` to `target`. Raises DockerfileError."""
        with self._reading(one):
            return ignore_rules.uploads(source, target, self._rules, cwd)

    def _is_kept(self, one: Instruction, source: Path) -> bool:
        """Also if only something in it is."""
        with self._reading(one):
            rules = self._rules
        if rules is None or source == self.folder or not rules(source):
            return True
        return not all(map(rules, source.rglob("*")))

    @contextmanager
    def _reading(self, one: Instruction) -> Iterator[None]:
        """Make a DockerfileError of what is wrong with the rules."""
        try:
            yield
        except DockerfileError:
            raise
        except ValueError as error:
            raise one.error(str(error)) from None

    @cached_property
    def _rules(self) -> LeftOut | None:
        return ignore_rules.docker_rules(self.folder)

    def _check(self, one: Instruction, source: Path) -> None:
        name = source.relative_to(self.folder).as_posix()
        try:
            inside(self.folder, name)
        except InputError:
            raise one.error(f"{name} leads out of the Dockerfile's folder") from None
        if not source.is_dir() and not source.is_file():
            raise one.error(f"{name} is neither a file nor a folder")
        if one.name == "ADD" and source.is_file() and _is_archive(source):
            raise one.error(f"{name} is packed, and ADD would unpack it; use COPY, and RUN to unpack it")


def _is_archive(path: Path) -> bool:
    with path.open("rb") as file:
        start = file.read(MAGIC_BYTES)
    return any(start[place:].startswith(magic) for place, magic in MAGIC)
