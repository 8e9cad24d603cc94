"""The lake's commits: numbered manifests, each naming every file of every table and how far each partition of the log was read.

The newest is the lake; a file that none names isn't part of it. A commit creates the next number exclusively, so of two writers that
read the same manifest one gets `Conflict`: offsets and rows move together, or not at all. A pinned manifest's files stay as long as the
process that pinned it lives. Which files are removed, and when, is `analytics/lake/compaction.py`'s.
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

import msgspec

from analytics.lake import locks
from analytics.lake.schema import TABLES
from topics.types.errors import NotReady

Partition = tuple[str, int]
"""Topic without the namespace, number."""
ByPartition = dict[str, dict[int, int]]
"""Values by topic and number."""


class Conflict(Exception):  # noqa: N818 - named for what happened
    """Another has committed since the base was read: read the newest manifest, and look whether the commit still makes sense."""


class File(msgspec.Struct, frozen=True):
    """One Parquet file of a table, in the table's folder."""

    name: str
    rows: int
    bytes: int


class Manifest(msgspec.Struct, frozen=True):
    """The lake as of one commit."""

    version: int = 0
    """Counts up from 1; 0: nothing was ever committed."""
    committed_at: int = 0
    """Unix ms on the writer's clock."""
    offsets: ByPartition = {}
    """What to read next."""
    times: ByPartition = {}
    """Kafka's time, Unix ms, of the newest record read: a log that begins after it isn't the one that was read."""
    files: dict[str, list[File]] = {}
    """By table; one without rows may be missing."""

    def offset(self, partition: Partition) -> int | None:
        """The next offset to read; None: never read."""
        return self.offsets.get(partition[0], {}).get(partition[1])

    def time(self, partition: Partition) -> int | None:
        """Of the newest record read; None: none was."""
        return self.times.get(partition[0], {}).get(partition[1])

    def advanced(
        self,
        offsets: Mapping[Partition, int],
        added: Mapping[str, Sequence[File]],
        times: Mapping[Partition, int] = MappingProxyType({}),
    ) -> Manifest:
        """This one with partitions read further, and more files."""
        files = dict(self.files)
        for table, more in added.items():
            files[table] = [*files.get(table, ()), *more]
        newer = {partition: max(time, self.time(partition) or time) for partition, time in times.items()}
        return msgspec.structs.replace(
            self, offsets=_merged(self.offsets, offsets), times=_merged(self.times, newer), files=files
        )

    def replaced(self, table: str, old: Sequence[File], new: Sequence[File]) -> Manifest:
        """This one with files of a table in the place of others, which must all be there."""
        kept = [file for file in self.files.get(table, ()) if file not in old]
        assert len(kept) + len(old) == len(self.files.get(table, ())), "files are replaced once"
        return msgspec.structs.replace(self, files={**self.files, table: [*kept, *new]})


class Writing:
    """A process that puts files into the lake; from any thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._numbers = itertools.count()

    def new_name(self) -> str:
        """A name that no file has; the writer's comes first, so that a dead one's leftovers are known."""
        return f"{self._name}-{next(self._numbers):06}.parquet"


_decoder = msgspec.json.Decoder(Manifest)
EMPTY = Manifest()
DRAFT = ".draft"


def _merged(old: ByPartition, new: Mapping[Partition, int]) -> ByPartition:
    merged = {topic: dict(numbers) for topic, numbers in old.items()}
    for (topic, number), value in new.items():
        merged.setdefault(topic, {})[number] = value
    return merged


class Lake:
    """A folder: `manifest/`, a folder for each table, and the marks of living readers and writers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.readers = folder / "readers"
        """Pins; the text is the version pinned, empty while it is being chosen."""
        self.writers = folder / "writers"
        """Processes that may be about to commit files whose names begin with theirs."""
        self._manifests = folder / "manifest"

    def prepare(self) -> None:
        """Make the folders. Raises OSError."""
        for folder in (self._manifests, self.readers, self.writers, *(self.folder / table for table in TABLES)):
            folder.mkdir(parents=True, exist_ok=True)

    def path(self, table: str, file: File) -> Path:
        """Where a table's file lies."""
        return self.folder / table / file.name

    def versions(self) -> list[int]:
        """Of the manifests that are kept, ascending."""
        try:
            there = [path for path in self._manifests.iterdir() if path.suffix == ".json"]
        except FileNotFoundError:
            return []
        return sorted(int(path.stem) for path in there if path.stem.isdecimal())

    def newest(self) -> Manifest:
        """The lake now; the empty manifest where nothing was committed. Raises OSError."""
        while True:
            versions = self.versions()
            if not versions:
                return EMPTY
            try:
                return self.read(versions[-1])
            except FileNotFoundError:
                continue  # so many commits since then that it was removed

    def read(self, version: int) -> Manifest:
        """Raises FileNotFoundError for one that was never made, or was removed; OSError for one that is damaged."""
        path = self._path(version)
        try:
            return _decoder.decode(path.read_bytes())
        except msgspec.DecodeError as error:
            raise OSError(f"{path} is damaged ({error}); without it the lake goes on from the one before") from None

    def commit(self, base: Manifest, new: Manifest) -> Manifest:
        """Make `new` the successor of `base`, durably, and return it as committed. Its files lie in their folders, synced.

        Raises Conflict where base isn't the newest; its files may then be part of the lake all the same, where the caller was asleep
        between the last two steps for longer than manifests are kept: so what to do is to be read from the newest. Raises OSError.
        """
        version = base.version + 1
        if self.versions()[-1:] not in ([], [base.version]):
            raise Conflict
        made = msgspec.structs.replace(new, version=version, committed_at=int(time.time() * 1000))
        draft = self._manifests / f"{uuid.uuid4().hex}{DRAFT}"
        try:
            with draft.open("xb") as file:
                file.write(msgspec.json.encode(made))
                file.flush()
                os.fsync(file.fileno())
            os.link(draft, self._path(version))
        except FileExistsError:
            raise Conflict from None
        finally:
            draft.unlink(missing_ok=True)
        sync(self._manifests)
        # Manifests are removed from the oldest on: with the base still there, the number was never used.
        if base.version and not self._path(base.version).exists():
            raise Conflict
        return made

    def discard(self, table: str, names: Iterable[str]) -> None:
        """Remove files that didn't get into the lake, so that a full disk isn't filled further; those that it names after all stay."""
        with suppress(OSError):
            named = {file.name for file in self.newest().files.get(table, ())}
            for name in set(names) - named:
                (self.folder / table / name).unlink(missing_ok=True)

    def remove(self, version: int) -> None:
        """Remove a manifest; only ever the oldest."""
        self._path(version).unlink(missing_ok=True)

    def drafts(self) -> list[Path]:
        """Manifests that are being written, or whose writer died."""
        return [path for path in self._manifests.iterdir() if path.suffix == DRAFT]

    @contextmanager
    def writing(self) -> Iterator[Writing]:
        """Be one whose uncommitted files stay, while this context and this process live. Raises OSError."""
        self.prepare()
        with locks.held(self.writers, leave=True) as mark:
            yield Writing(mark.name)

    @contextmanager
    def pin(self) -> Iterator[Manifest]:
        """The newest manifest, whose files stay while this context, and this process, live. Raises NotReady where there is no lake."""
        if not self.readers.is_dir():
            raise NotReady(
                f"no lake in {self.folder}: `polar up` makes one (alone: `polar worker analytics`); --data names another folder"
            )
        # A mark without a version keeps everything, so that nothing is removed between reading and saying which.
        with locks.held(self.readers) as mark:
            manifest = self.newest()
            # On a full disk it stays without, and keeps more than it needs to.
            with suppress(OSError):
                mark.write(str(manifest.version))
            yield manifest

    def _path(self, version: int) -> Path:
        return self._manifests / f"{version:020}.json"


def sync(folder: Path) -> None:
    """Make a folder's entries durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
