"""Files with mode 0600 from their first byte on, so that no other user ever reads one: secrets, and tasks' data; and their folders."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

OTHERS = 0o077
"""Permissions of everybody but the owner."""


def make_folder(path: Path) -> None:
    """Make a folder that only its owner can enter (mode 0700). An existing one stays as it is: it may be shared on purpose, like /tmp."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def open_to_others(path: Path) -> str | None:
    """The mode of a folder that others may enter or list, and what to do about it, for people; None if they may not."""
    mode = stat.S_IMODE(path.stat().st_mode)
    return f"other users can enter {path} (mode {mode:04o}); chmod 700 {path}" if mode & OTHERS else None


def create(path: Path, text: str) -> None:
    """Make a file and its folder, unless the file exists: of several processes, one writes it. A write that fails leaves no file."""
    make_folder(path.parent)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    try:
        with _naming(path), os.fdopen(descriptor, "w") as file:
            file.write(text)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def replace(path: Path, content: str | bytes, mode: int = 0o600, *, is_durable: bool = False) -> None:
    """Write a file, or replace one; see `replacing`."""
    with replacing(path, mode, is_durable=is_durable) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing(path: Path, mode: int = 0o600, *, is_durable: bool = False) -> Iterator[IO[bytes]]:
    """A file to write, which appears at `path` at the end of the block: a reader sees the old content or the new one, whole.

    After an exception nothing has changed. `mode`: its permissions. `is_durable`: sync the content before the file appears.
    """
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
    try:
        with _naming(path), os.fdopen(descriptor, "wb") as file:
            yield file
            os.fchmod(descriptor, mode)
            if is_durable:
                file.flush()
                os.fsync(descriptor)
        os.replace(temporary, path)  # noqa: PTH105 - mkstemp returns a string
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name the file in an OSError of a write to it, such as that of a full disk: the system's own names none."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise
