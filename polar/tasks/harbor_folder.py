"""Reads one task of Harbor's format: a folder with `task.toml`, `instruction.md`, `environment/`, `tests/` and `solution/`.

Invariant: nothing outside of the task's folder is read, wherever its symbolic links lead. Every error is an InputError whose field is the
file, for a field of `task.toml` followed by its dotted name.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
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
DIGESTED = (CONFIG, INSTRUCTION, "README.md", "trajectory.json", "environment", "tests", "solution", "steps")
"""Files and folders that a task's digest covers."""
IGNORED = ("__pycache__", "*.pyc", ".DS_Store", "*.swp", "*.swo", "*~")
"""Names of files and folders that it doesn't."""
IGNORE_RULES = (".gitignore", ".harborignore")
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


def digest(folder: Path) -> str:
    """The digest of a task's files, as Harbor's packages have it.

    Raises InputError if ignore rules decide which files count, for a link that leads out of the task, and for a name that isn't UTF-8.
    """
    lines = []
    for name in _digested(folder):
        if Path(name).name in IGNORE_RULES:
            raise InputError(
                str(folder / name), name, "a digest with ignore rules can't be verified; leave the digest out"
            )
        try:
            name.encode()
        except UnicodeEncodeError:
            raise InputError(
                str(folder), name, "a file's digest covers its name, and its name isn't UTF-8; rename it"
            ) from None
        content = read_bytes(folder, name, DOCUMENT_LIMIT)
        lines.append(f"{name}\0{hashlib.sha256(content).hexdigest()}\n")
    return f"sha256:{hashlib.sha256(''.join(lines).encode()).hexdigest()}"


def _digested(folder: Path) -> list[str]:
    """The relative paths of a digest's files, in order. Raises InputError before it lists a folder that a link puts elsewhere."""
    rules = [name for name in IGNORE_RULES if (folder / name).exists()]
    found = [path for name in DIGESTED for path in _files(inside(folder, name))]
    names = [path.relative_to(folder).as_posix() for path in found]
    counted = [name for name in names if not any(fnmatch(part, glob) for part in name.split("/") for glob in IGNORED)]
    return sorted([*rules, *counted])


def _files(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from (file for file in path.rglob("*") if file.is_file())
    elif path.exists():
        yield path


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
