"""Reads one task of Harbor's format: a folder with `task.toml`, `instruction.md`, `environment/`, `tests/` and `solution/`.

Invariant: nothing outside of the task's folder is read, wherever its symbolic links lead. Every error is an InputError whose field is the
file, for a field of `task.toml` followed by its dotted name.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from polar.tasks.harbor_schema import Config
from topics.types import field_errors
from topics.types.errors import InputError
from topics.types.task import INSTRUCTION_LIMIT

CONFIG = "task.toml"
INSTRUCTION = "instruction.md"
ENVIRONMENTS = ("environment/Dockerfile", "environment/docker-compose.yaml")
CONFIG_LIMIT = 1024 * 1024
"""Bytes of a `task.toml`."""
DOCUMENT_LIMIT = 256 * 1024 * 1024
"""Bytes of a set's document, like `registry.json`."""
CANARY = re.compile(r"<!--.*canary.*-->|#.*canary.*", re.IGNORECASE)
"""A line at the beginning of an instruction that marks benchmark data; agents don't get it."""
Model = TypeVar("Model")


@dataclass(frozen=True)
class HarborTask:
    """A task, read and valid."""

    folder: Path
    config: Config
    instruction: str
    """Without marks of benchmark data; empty for a task with steps, which have one each."""

    @property
    def name(self) -> str:
        """As Harbor has it: `task.name`, or the folder's name."""
        return self.config.task.name if self.config.task else self.folder.name

    def has(self, path: str) -> bool:
        """Whether the folder has this file, or anything below this folder; also if that can't be known."""
        try:
            found = inside(self.folder, path)
            return any(found.iterdir()) if found.is_dir() else found.exists()
        except (InputError, OSError):
            return True


def read_task(folder: Path) -> HarborTask:
    """Raises InputError."""
    config = decoded(Config, _toml(folder, CONFIG), folder / CONFIG)
    if config.environment.docker_image is None and not any((folder / name).is_file() for name in ENVIRONMENTS):
        raise InputError(
            f"{folder / CONFIG}: environment.docker_image", None, f"is needed without {' or '.join(ENVIRONMENTS)}"
        )
    if config.steps:
        return HarborTask(folder, config, "")
    text = read_text(folder, INSTRUCTION, INSTRUCTION_LIMIT)
    if not config.verifier.is_separate and config.environment.os == "linux":
        _file_in(folder, "tests/test.sh")
    return HarborTask(folder, config, without_canary(text))


def without_canary(text: str) -> str:
    """The text without the lines at its beginning that mark benchmark data, and without empty lines after them."""
    lines = text.split("\n")
    start = 0
    while start < len(lines) and CANARY.fullmatch(lines[start].strip()):
        start += 1
    while start < len(lines) and not lines[start].strip():
        start += 1
    return "\n".join(lines[start:])


def _toml(folder: Path, name: str) -> object:
    return parse_toml(read_text(folder, name, CONFIG_LIMIT), folder / name)


def parse_toml(text: str, place: Path) -> object:
    """Raises InputError that names the line."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise InputError(str(place), text[:40], f"not TOML: {reason}") from None


def read_text(folder: Path, name: str, limit: int) -> str:
    """A file below `folder`, of at most `limit` bytes. Raises InputError."""
    data = read_bytes(folder, name, limit)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        wrong = data[error.start : error.start + 8]
        raise InputError(str(folder / name), wrong, f"not UTF-8 at byte {error.start}") from None


def read_bytes(folder: Path, name: str, limit: int) -> bytes:
    """As `read_text`."""
    path = _file_in(folder, name)
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise InputError(str(path), name, f"can't be read: {error.strerror}") from None
    if len(data) > limit:
        raise InputError(str(path), f"{path.stat().st_size} bytes", f"at most {limit} bytes")
    return data


def _file_in(folder: Path, name: str) -> Path:
    path = inside(folder, name)
    if not path.is_file():
        raise InputError(str(path), name, "no such file, and Harbor's format needs it")
    return path


def inside(folder: Path, name: str) -> Path:
    """A path below `folder`. Raises InputError if it leads elsewhere, also by a symbolic link."""
    path = folder / name
    try:
        is_inside = path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):  # a loop of links; a zero byte
        is_inside = False
    if not is_inside:
        raise InputError(str(path), name, f"leads out of {folder}; copy the file or folder there")
    return path


def decoded(model: type[Model], data: object, place: Path) -> Model:
    """A document as its type. Raises InputError for the first error: unknown fields first."""
    try:
        return TypeAdapter(model).validate_python(data)
    except ValidationError as error:
        first = field_errors.first_error(error)
        where = ".".join(map(str, first["loc"]))
        reason = field_errors.reason(first)
        if first["type"] == "extra_forbidden":
            reason += f"; {field_errors.meant(str(first['loc'][-1]), field_errors.fields_at(model, first['loc']))}"
        raise InputError(f"{place}: {where}" if where else str(place), first["input"], reason) from None
