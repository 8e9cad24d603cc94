"""The files that COPY and ADD of a Dockerfile can name: those of its folder."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from pathlib import Path

from polar.tasks.dockerfile_instructions import Instruction
from polar.tasks.harbor_folder import inside
from topics.types.errors import InputError

IGNORING = (".dockerignore", "Dockerfile.dockerignore")
MAGIC = ((0, b"\x1f\x8b"), (0, b"BZh"), (0, b"\xfd7zXZ\0"), (0, b"\x28\xb5\x2f\xfd"), (257, b"ustar"))
"""Places and first bytes of what ADD unpacks: gzip, bzip2, xz, zstandard, tar."""
MAGIC_BYTES = 262


@dataclass(frozen=True)
class Context:
    """The folder of a Dockerfile."""

    folder: Path

    def sources(self, one: Instruction, name: str) -> list[Path]:
        """The files and folders that a source names, absolute, in order. Raises DockerfileError."""
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
            for source in found:
                self._check(one, source, is_pattern=is_pattern)
        except OSError as error:
            raise one.error(f"{name} can't be read: {error.strerror}") from None
        return [source.absolute() for source in found]

    def _check(self, one: Instruction, source: Path, *, is_pattern: bool) -> None:
        name = source.relative_to(self.folder).as_posix()
        try:
            inside(self.folder, name)
        except InputError:
            raise one.error(f"{name} leads out of the Dockerfile's folder") from None
        if (is_pattern or source.is_dir()) and (rules := [rule for rule in IGNORING if (self.folder / rule).exists()]):
            raise one.error(f"the rules of {rules[0]} aren't applied; delete the files that it names, and itself")
        if not source.is_dir() and not source.is_file():
            raise one.error(f"{name} is neither a file nor a folder")
        if one.name == "ADD" and source.is_file() and _is_archive(source):
            raise one.error(f"{name} is packed, and ADD would unpack it; use COPY, and RUN to unpack it")


def _is_archive(path: Path) -> bool:
    with path.open("rb") as file:
        start = file.read(MAGIC_BYTES)
    return any(start[place:].startswith(magic) for place, magic in MAGIC)
