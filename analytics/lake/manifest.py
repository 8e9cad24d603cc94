"""The lake's commits: numbered manifests, each with all files of all tables and the offsets up to which each partition was read.

The newest manifest is the lake; a file in no manifest isn't part of it. A commit creates the next number exclusively: of two writers that
read the same manifest, one gets `ConflictError`. So offsets and rows change together or not at all. The files of a pinned manifest are
kept while the process that pinned it lives. `analytics/lake/compaction.py` removes files.
"""

from __future__ import annotations

import itertools
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import msgspec

from analytics.lake import locks
from analytics.lake.schema import TABLES
from topics.log.last_read import LastRead
from topics.types.errors import NotReadyError

Partition = tuple[str, int]
"""Topic without the namespace, number."""
T = TypeVar("T")


class ConflictError(Exception):
    """Another process has committed since the base was read: read the newest manifest and decide again."""


class OtherClusterError(NotReadyError):
    """The lake has the records of another Kafka cluster: offsets mean nothing there, and task ids may be used twice."""


class File(msgspec.Struct, frozen=True):
    """One Parquet file of a table, in the table's folder."""

    name: str
    rows: int
    bytes: int


class Manifest(msgspec.Struct, frozen=True):
    """The lake as of one commit."""

    version: int = 0
    """Counts from 1; 0: nothing was committed yet."""
    committed_at: int = 0
    """Unix ms on the writer's clock, before the manifest is synced and readers see it."""
    offsets: dict[str, dict[int, int]] = {}
    """The next offsets to read."""
    last: dict[str, dict[int, LastRead]] = {}
    """The newest record read: a log without it was created anew, or restored from an older copy."""
    cluster: str = ""
    """Id of the Kafka cluster that the records come from; empty: an older Polar wrote them."""
    files: dict[str, list[File]] = {}
    """By table; a table without rows may be missing."""

    def offset(self, partition: Partition) -> int | None:
        """The next offset to read; None: the partition was never read."""
        return self.offsets.get(partition[0], {}).get(partition[1])

    def last_read(self, partition: Partition) -> LastRead | None:
        """The newest record read; None: none was, or an older Polar read it."""
        return self.last.get(partition[0], {}).get(partition[1])

    def advanced(
        self,
        offsets: Mapping[Partition, int],
        added: Mapping[str, Sequence[File]],
        last: Mapping[Partition, LastRead] = MappingProxyType({}),
        cluster: str = "",
    ) -> Manifest:
        """This manifest with new offsets and more files, of this cluster's records; an empty `cluster` leaves it as it is."""
        files = dict(self.files)
        for table, more in added.items():
            files[table] = [*files.get(table, ()), *more]
        return msgspec.structs.replace(
            self,
            offsets=_merged(self.offsets, offsets),
            last=_merged(self.last, last),
            files=files,
            cluster=cluster or self.cluster,
        )

    def replaced(self, table: str, old: Sequence[File], new: Sequence[File]) -> Manifest:
        """This manifest with some files of a table replaced; it must contain all of them."""
        kept = [file for file in self.files.get(table, ()) if file not in old]
        assert len(kept) + len(old) == len(self.files.get(table, ())), "files are replaced once"
        return msgspec.structs.replace(self, files={**self.files, table: [*kept, *new]})


class Writing:
    """Names the files of one writing process; thread-safe."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._numbers = itertools.count()

    def new_name(self) -> str:
        """A new file name, which begins with the writer's name, so that files of a dead writer are recognised."""
        return f"{self._name}-{next(self._numbers):06}.parquet"


_decoder = msgspec.json.Decoder(Manifest)
EMPTY = Manifest()
DRAFT = ".draft"


def _merged(old: Mapping[str, Mapping[int, T]], new: Mapping[Partition, T]) -> dict[str, dict[int, T]]:
    """Values by topic and number."""
    merged = {topic: dict(numbers) for topic, numbers in old.items()}
    for (topic, number), value in new.items():
        merged.setdefault(topic, {})[number] = value
    return merged


class Lake:
    """A folder with `manifest/`, a folder for each table, and the marks of live readers and writers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.readers = folder / "readers"
        """Pins: the text is the pinned version, or empty while it is being chosen."""
        self.writers = folder / "writers"
        """Marks of writers: a live writer may still commit files whose names begin with its mark's name."""
        self._manifests = folder / "manifest"

    def prepare(self) -> None:
        """Create the folders. Raises OSError."""
        for folder in (self._manifests, self.readers, self.writers, *(self.folder / table for table in TABLES)):
            folder.mkdir(parents=True, exist_ok=True)

    def path(self, table: str, file: File) -> Path:
        return self.folder / table / file.name

    def versions(self) -> list[int]:
        try:
            there = [path for path in self._manifests.iterdir() if path.suffix == ".json"]
        except FileNotFoundError:
            return []
        return sorted(int(path.stem) for path in there if path.stem.isdecimal())

    def newest(self) -> Manifest:
        """The newest manifest; an empty one if nothing was committed. Raises OSError."""
        while True:
            versions = self.versions()
            if not versions:
                return EMPTY
            try:
                return self.read(versions[-1])
            except FileNotFoundError:
                continue  # removed after many newer commits

    def read(self, version: int) -> Manifest:
        """A manifest. Raises FileNotFoundError if it doesn't exist, OSError if it is damaged."""
        path = self._path(version)
        try:
            return _decoder.decode(path.read_bytes())
        except msgspec.DecodeError as error:
            raise OSError(f"{path} is damaged ({error}); delete it to continue from the manifest before") from None

    def commit(self, base: Manifest, new: Manifest) -> Manifest:
        """Commit `new` durably as the successor of `base`, and return it as committed. Its files must be synced in their folders.

        Raises OSError, and ConflictError if `base` isn't the newest. The files may then be in the lake nevertheless, if the caller was
        suspended between the last two steps for longer than manifests are kept: decide from the newest manifest.
        """
        version = base.version + 1
        if self.versions()[-1:] not in ([], [base.version]):
            raise ConflictError
        made = msgspec.structs.replace(new, version=version, committed_at=int(time.time() * 1000))
        draft = self._manifests / f"{uuid.uuid4().hex}{DRAFT}"
        try:
            with draft.open("xb") as file:
                file.write(msgspec.json.encode(made))
                file.flush()
                os.fsync(file.fileno())
            os.link(draft, self._path(version))
        except FileExistsError:
            raise ConflictError from None
        finally:
            draft.unlink(missing_ok=True)
        sync(self._manifests)
        # The oldest manifests are removed first: while the base exists, the next number was never used.
        if base.version and not self._path(base.version).exists():
            raise ConflictError
        return made

    def require_cluster(self, newest: Manifest, cluster: str) -> None:
        """Raises OtherClusterError if the newest manifest has the records of another Kafka cluster."""
        if newest.cluster not in ("", cluster):
            raise OtherClusterError(
                f"the lake in {self.folder} has the records of the Kafka cluster {newest.cluster}, and this Kafka is {cluster}: set "
                "POLAR_LAKE to a folder of its own, or move the lake away if the other Kafka is gone"
            )

    def discard(self, table: str, names: Iterable[str]) -> None:
        """Remove files that weren't committed, which matters on a full disk; files in the newest manifest are kept."""
        with suppress(OSError):
            named = {file.name for file in self.newest().files.get(table, ())}
            for name in set(names) - named:
                (self.folder / table / name).unlink(missing_ok=True)

    def remove(self, version: int) -> None:
        """Remove a manifest, which must be the oldest."""
        self._path(version).unlink(missing_ok=True)

    def drafts(self) -> list[Path]:
        """Manifests that are being written or whose writer died."""
        return [path for path in self._manifests.iterdir() if path.suffix == DRAFT]

    @contextmanager
    def writing(self) -> Iterator[Writing]:
        """Register this process as a writer: its uncommitted files are kept while the context lasts. Raises OSError."""
        self.prepare()
        with locks.locked_file(self.writers, leave=True) as mark:
            yield Writing(mark.name)

    @contextmanager
    def pin(self) -> Iterator[Manifest]:
        """The newest manifest, whose files are kept while the context lasts. Raises NotReadyError if there is no lake."""
        if not self.readers.is_dir():
            raise NotReadyError(
                f"no lake in {self.folder}: `polar up` makes one (alone: `polar worker analytics`); --data names another folder"
            )
        # A mark without a version keeps everything: nothing is removed before the version is written.
        with locks.locked_file(self.readers) as mark:
            manifest = self.newest()
            # On a full disk the mark stays empty and keeps more than necessary.
            with suppress(OSError):
                mark.write(str(manifest.version))
            yield manifest

    def _path(self, version: int) -> Path:
        return self._manifests / f"{version:020}.json"


def sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
