"""Where the manifests and Parquet files of a lake lie: a folder, or a bucket (`bucket.py`). `manifest.py` decides which of them count.

A store creates each manifest once: of several processes that create the same number, one succeeds. That is all that a commit relies on.
"""

from __future__ import annotations

import os
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

DRAFT = ".draft"
DRAFT_S = 3600.0
"""An older draft was left by a killed process: writing one takes milliseconds."""
MANIFESTS = "manifest"


class UnknownOutcomeError(OSError):
    """A manifest may or may not have been created, and may still appear: the files that it names must stay."""


class Store(ABC):
    """Methods raise OSError if the store can't be read or written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        """On this host, with a folder of Parquet files for each table: those of the lake, or drafts and copies of them."""

    @property
    @abstractmethod
    def place(self) -> str:
        """Where the lake is, for people."""

    @property
    @abstractmethod
    def database(self) -> Path | None:
        """The DuckDB file that shows the newest manifest; None: nobody writes one."""

    @abstractmethod
    def check(self) -> None:
        """Raises InputError if a writer can never use the store as it is set, OSError if that can't be decided now."""

    @abstractmethod
    def exists(self) -> bool:
        """Whether there is a lake. Raises InputError as `check`."""

    @abstractmethod
    def prepare(self) -> None:
        """Make what a writer needs."""

    @abstractmethod
    def versions(self) -> list[int]:
        """Numbers of all manifests, ascending."""

    @abstractmethod
    def newest_version(self) -> int:
        """The largest number of a manifest; 0: there is none."""

    @abstractmethod
    def has(self, version: int) -> bool:
        """Whether there is a manifest of this number."""

    @abstractmethod
    def read(self, version: int) -> bytes:
        """A manifest. Raises FileNotFoundError."""

    @abstractmethod
    def create(self, version: int, manifest: bytes) -> None:
        """Create a manifest, whole and durable. Raises FileExistsError, UnknownOutcomeError."""

    @abstractmethod
    def remove_version(self, version: int) -> None:
        """Remove a manifest, if it is there."""

    @abstractmethod
    def name_of(self, version: int) -> str:
        """A manifest's path or address, for people."""

    @abstractmethod
    def publish(self, written: Mapping[str, Iterable[str]]) -> None:
        """Make files durable that this process has written, closed and synced in `folder`, for all readers. By table: their names."""

    @abstractmethod
    def fetch(self, table: str, sizes: Mapping[str, int]) -> None:
        """Have files of a table in `folder`, for as long as the caller's mark as a reader lasts. By name: their sizes in bytes.

        Raises OSError also if one was removed, and NotReadyError if they don't fit on the disk.
        """

    @abstractmethod
    def open(self, table: str, name: str, size: int) -> Any:
        """A file of a table, of `size` bytes, for pyarrow; a context. Raises FileNotFoundError."""

    @abstractmethod
    def remove(self, table: str, names: Iterable[str]) -> None:
        """Remove files of a table, if they are there."""

    @abstractmethod
    def drop_drafts(self, table: str, names: Iterable[str]) -> None:
        """Remove drafts of files of a table from this host, if the lake itself is elsewhere."""

    @abstractmethod
    def unclaimed(self) -> set[tuple[str, str]]:
        """Tables and names of files whose writer may be dead, though no mark says so. Some are in manifests."""

    @abstractmethod
    def clean(self) -> None:
        """Remove what dead processes have left beside manifests and files, and copies beyond their bound."""


class FolderStore(Store):
    """A folder that all writers and readers of the lake share."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._manifests = folder / MANIFESTS

    @property
    def place(self) -> str:
        return str(self.folder)

    @property
    def database(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.duckdb")

    def check(self) -> None:
        """Any folder may become writable."""

    def exists(self) -> bool:
        return self._manifests.is_dir()

    def prepare(self) -> None:
        self._manifests.mkdir(parents=True, exist_ok=True)

    def versions(self) -> list[int]:
        try:
            there = [path for path in self._manifests.iterdir() if path.suffix == ".json"]
        except FileNotFoundError:
            return []
        return sorted(int(path.stem) for path in there if path.stem.isdecimal())

    def newest_version(self) -> int:
        return max(self.versions(), default=0)

    def has(self, version: int) -> bool:
        return self._path(version).exists()

    def read(self, version: int) -> bytes:
        return self._path(version).read_bytes()

    def create(self, version: int, manifest: bytes) -> None:
        draft = self._manifests / f"{uuid.uuid4().hex}{DRAFT}"
        try:
            with draft.open("xb") as file:
                file.write(manifest)
                file.flush()
                os.fsync(file.fileno())
            os.link(draft, self._path(version))
        finally:
            draft.unlink(missing_ok=True)
        sync(self._manifests)

    def remove_version(self, version: int) -> None:
        self._path(version).unlink(missing_ok=True)

    def name_of(self, version: int) -> str:
        return str(self._path(version))

    def publish(self, written: Mapping[str, Iterable[str]]) -> None:
        for table in written:
            sync(self.folder / table)

    def fetch(self, table: str, sizes: Mapping[str, int]) -> None:
        """They are there."""

    def open(self, table: str, name: str, size: int) -> Any:  # noqa: ARG002 - others need it
        return pa.OSFile(str(self.folder / table / name))

    def remove(self, table: str, names: Iterable[str]) -> None:
        for name in names:
            (self.folder / table / name).unlink(missing_ok=True)

    def drop_drafts(self, table: str, names: Iterable[str]) -> None:
        """There are none: a written file is the lake's."""

    def unclaimed(self) -> set[tuple[str, str]]:
        """None: each writer has a mark, whose lock ends with it."""
        return set()

    def clean(self) -> None:
        for draft in self._manifests.glob(f"*{DRAFT}"):
            with suppress(FileNotFoundError):
                if time.time() - draft.stat().st_mtime > DRAFT_S:
                    draft.unlink()

    def _path(self, version: int) -> Path:
        return self._manifests / f"{version:020}.json"


def sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
