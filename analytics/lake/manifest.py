"""The lake's commits: numbered manifests, each with all files of all tables and the offsets up to which each partition was read.

The newest manifest is the lake; a file in no manifest isn't part of it. A commit creates the next number exclusively: of two writers that
read the same manifest, one gets `ConflictError`. So offsets and rows change together or not at all. The files of a pinned manifest are
kept while the process that pinned it lives. `analytics/lake/compaction.py` removes files. Where all of it lies is `store.py`'s.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from analytics.lake import locks
from analytics.lake.schema import TABLES
from analytics.lake.store import FolderStore, Store, UnknownOutcomeError
from topics.log.last_read import LastRead
from topics.types.errors import NotReadyError

Partition = tuple[str, int]
"""Topic without the namespace, number."""
T = TypeVar("T")


class ConflictError(Exception):
    """Another process has committed since the base was read: read the newest manifest and decide again."""


class OtherClusterError(NotReadyError):
    """The lake has the records of another Kafka cluster: offsets mean nothing there, and task ids may be used twice."""


class SweptError(OSError):
    """Files that were written for this commit may have been removed meanwhile: write them again, under new names."""


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
    sweeps: int = 0
    """Counts removals of files that were in no manifest. A file from before the last one may be gone, unless a manifest names it."""

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

    def swept(self) -> Manifest:
        """This manifest with one removal of files more."""
        return msgspec.structs.replace(self, sweeps=self.sweeps + 1)


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


def _merged(old: Mapping[str, Mapping[int, T]], new: Mapping[Partition, T]) -> dict[str, dict[int, T]]:
    """Values by topic and number."""
    merged = {topic: dict(numbers) for topic, numbers in old.items()}
    for (topic, number), value in new.items():
        merged.setdefault(topic, {})[number] = value
    return merged


class Lake:
    """Manifests and files in a store, and the marks of this host's live readers and writers (of a shared folder: of all hosts')."""

    def __init__(self, place: Path | Store) -> None:
        self.store = FolderStore(place) if isinstance(place, Path) else place
        self.folder = self.store.folder
        self.readers = self.folder / "readers"
        """Pins: the text is the pinned version, or empty while it is being chosen."""
        self.writers = self.folder / "writers"
        """Marks of writers: a live writer may still commit files whose names begin with its mark's name."""
        self._published: dict[str, int] = {}
        """Names of files that aren't committed yet, and `Manifest.sweeps` from before each was published."""
        self._in_doubt: set[str] = set()
        """Names of files that a commit of unknown outcome names."""

    def prepare(self) -> None:
        """Create what a writer needs. Raises OSError, InputError."""
        self.store.prepare()
        for folder in (self.readers, self.writers, *(self.folder / table for table in TABLES)):
            folder.mkdir(parents=True, exist_ok=True)

    def path(self, table: str, file: File) -> Path:
        """A file on this host, once it was fetched."""
        return self.folder / table / file.name

    def open(self, table: str, file: File) -> Any:
        """A file, for pyarrow, without a copy on this host. Raises OSError."""
        return self.store.open(table, file.name, file.bytes)

    def fetch(self, manifest: Manifest, tables: Iterable[str]) -> None:
        """Have all files of a pinned manifest's tables at their paths. Raises OSError, NotReadyError."""
        for table in tables:
            self.store.fetch(table, {file.name: file.bytes for file in manifest.files.get(table, ())})

    def publish(self, written: Mapping[str, Sequence[str]]) -> None:
        """Make new files, by table, ready to be committed. Raises OSError."""
        if not written:
            return
        sweeps = self.newest().sweeps
        self.store.publish(written)
        self._published |= {name: sweeps for names in written.values() for name in names}

    def versions(self) -> list[int]:
        return self.store.versions()

    def newest(self) -> Manifest:
        """The newest manifest; an empty one if nothing was committed. Raises OSError."""
        while True:
            version = self.store.newest_version()
            if not version:
                return EMPTY
            try:
                return self.read(version)
            except FileNotFoundError:
                continue  # removed after many newer commits

    def read(self, version: int) -> Manifest:
        """A manifest. Raises FileNotFoundError if it doesn't exist, OSError if it is damaged."""
        try:
            return _decoder.decode(self.store.read(version))
        except msgspec.DecodeError as error:
            name = self.store.name_of(version)
            raise OSError(f"{name} is damaged ({error}); delete it to continue from the manifest before") from None

    def commit(self, base: Manifest, new: Manifest) -> Manifest:
        """Commit `new` durably as the successor of `base`, and return it as committed. Its files must be published.

        Raises OSError, SweptError, and ConflictError if `base` isn't the newest. After an OSError the files may be in the lake
        nevertheless, or come into it later: decide from the newest manifest.
        """
        version = base.version + 1
        if self.store.newest_version() not in (0, base.version):
            raise ConflictError
        names = [file.name for files in new.files.values() for file in files]
        if any(self._published.get(name, base.sweeps) != base.sweeps for name in names):
            raise SweptError("files in no manifest were removed while this commit was made")
        made = msgspec.structs.replace(new, version=version, committed_at=int(time.time() * 1000))
        try:
            self.store.create(version, msgspec.json.encode(made))
        except FileExistsError:
            raise ConflictError from None
        except UnknownOutcomeError:
            self._in_doubt |= self._published.keys() & set(names)
            raise
        # The oldest manifests are removed first: while the base exists, the next number was never used.
        if base.version and not self.store.has(base.version):
            if self.store.newest_version() > version:
                # Otherwise `prune` would remove its files, which the caller may commit after this conflict.
                self.store.remove_version(version)
            raise ConflictError
        for name in names:
            self._published.pop(name, None)
        return made

    def require_cluster(self, newest: Manifest, cluster: str) -> None:
        """Raises OtherClusterError if the newest manifest has the records of another Kafka cluster."""
        if newest.cluster not in ("", cluster):
            raise OtherClusterError(
                f"the lake in {self.store.place} has the records of the Kafka cluster {newest.cluster}, and this Kafka is {cluster}: set "
                "POLAR_LAKE to a place of its own, or move the lake away if the other Kafka is gone"
            )

    def discard(self, table: str, names: Iterable[str]) -> None:
        """Remove files that weren't committed, which matters on a full disk; files that are or may get in the newest manifest are kept."""
        names = set(names)
        with suppress(OSError):
            self.store.drop_drafts(table, names)
            named = {file.name for file in self.newest().files.get(table, ())}
            unused = names - named - self._in_doubt
            self.store.remove(table, unused)
            for name in unused:
                self._published.pop(name, None)

    def remove(self, version: int) -> None:
        """Remove a manifest, which must be the oldest."""
        self.store.remove_version(version)

    @contextmanager
    def writing(self) -> Iterator[Writing]:
        """Register this process as a writer: its uncommitted files are kept while the context lasts. Raises OSError, InputError."""
        self.prepare()
        with locks.locked_file(self.writers, leave=True) as mark:
            yield Writing(mark.name)

    @contextmanager
    def pin(self) -> Iterator[Manifest]:
        """The newest manifest, whose files are kept while the context lasts. Those in a bucket are kept for `GRACE_S` of `compaction.py`
        after a newer manifest, and copies of them while the context lasts. Raises NotReadyError if there is no lake, InputError, OSError.
        """
        if not self.store.exists():
            raise NotReadyError(
                f"no lake in {self.store.place}: `polar up` makes one (alone: `polar worker analytics`); --data names another folder"
            )
        self.readers.mkdir(parents=True, exist_ok=True)
        # A mark without a version keeps everything: nothing is removed before the version is written.
        with locks.locked_file(self.readers) as mark:
            manifest = self.newest()
            # On a full disk the mark stays empty and keeps more than necessary.
            with suppress(OSError):
                mark.write(str(manifest.version))
            yield manifest
