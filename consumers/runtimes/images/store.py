"""The images that this host has, which all workers of one user share.

    layers/<hex of diff_id>/    one layer, as overlayfs reads it; complete, or not there
    images/<hex of digest>.json an image's configuration and its layers
    names/<hex of the source>.json the digest that a source had when it was first asked
    work/<random>/              a pull under way; its owner holds the lock in it
    locks/                      one for each name and layer, empty

A name that this host has resolved once stays: a tag isn't asked again, so all sessions of a run see one image. To get a newer one, use
another tag or a digest, or delete its file in `names`. Invariants: a name's file is written after its image's, and that after its layers.
Everything is on the disk before it gets its name.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import filelock
import msgspec

from consumers.runtimes import file_locks, session_folder
from consumers.runtimes.base import HOST_DISK_FULL, IMAGE_UNAVAILABLE, SandboxError
from consumers.runtimes.images import fetch, layers, layout, merged, source
from consumers.runtimes.images.source import Source
from topics.environment import private_files
from topics.environment.cache import FULL
from topics.types.errors import InputError

PULLS = 2
"""At a time in one process."""
_LOCK = ".lock"


@dataclass(frozen=True)
class Image:
    """An image on this host, ready to be mounted."""

    digest: str
    """Of its configuration: `sha256:` and 64 hexadecimal digits."""
    layers: tuple[Path, ...]
    """Folders, lowest first, for overlayfs with the option `userxattr`. Each is there once: a layer that an image has twice counts where it
    is uppermost, which shows the same files."""
    environment: Mapping[str, str]
    workdir: PurePosixPath
    """Absolute; `/` where the image names none."""
    user: str
    """As the image writes it: a name or a number, perhaps with a group behind a colon; empty for root."""
    user_id: int
    shell: str
    """Path of its bash, or else of its sh, in /bin or /usr/bin; empty without one."""


class _Record(msgspec.Struct, frozen=True):
    """A file in `images`."""

    layers: list[str]
    """Their diff_ids, lowest first."""
    environment: dict[str, str]
    workdir: str
    user: str
    user_id: int
    shell: str


class _Name(msgspec.Struct, frozen=True):
    """A file in `names`."""

    source: str
    digest: str


class ImageStore:
    """The images below `folder`."""

    def __init__(self, folder: Path, names: Mapping[str, str], *, trusts_tasks: bool) -> None:
        """`names`: the worker's `[images]`. Raises InputError for one of them."""
        source.check(names)
        self.folder = folder.absolute()
        self._names = names
        self._trusts_tasks = trusts_tasks
        self._pulls = asyncio.Semaphore(PULLS)

    async def get(self, name: str) -> Image:
        """The image that a task names, pulled and unpacked if this host doesn't have it.

        Raises InputError if no attempt can get it, NotReadyError without skopeo, and SandboxError `image_unavailable` and HOST_DISK_FULL.
        The caller's cancellation ends a pull; if others wait for the same name, one of them begins it again.
        """
        wanted = self._source(name)
        if found := self._resolved(wanted):
            return found
        with storing(name):
            self._make_folders()
            async with self._locked(f"name-{_hex(wanted.key)}"):
                if found := self._resolved(wanted):
                    return found
                async with self._copied(name, wanted) as work:
                    return await self._pull(name, wanted, work)

    def key(self, name: str) -> str:
        """A file's name for the source of the image that a task names, which no other source has. Raises InputError."""
        return _hex(self._source(name).key)

    @asynccontextmanager
    async def copied(self, name: str) -> AsyncIterator[Path]:
        """A folder with a new copy of the image that a task names, `fetch.LAYOUT`; both are deleted at the end. Raises as `get`."""
        with storing(name):
            self._make_folders()
            async with self._copied(name, self._source(name)) as work:
                yield work

    def _make_folders(self) -> None:
        for folder in ("", "layers", "images", "names", "work", "locks"):
            private_files.make_folder(self.folder / folder)

    def _source(self, name: str) -> Source:
        return source.resolve(name, self._names, trusts_tasks=self._trusts_tasks)

    @asynccontextmanager
    async def _copied(self, name: str, wanted: Source) -> AsyncIterator[Path]:
        async with self._pulls, self._work() as work:
            await fetch.fetch(name, wanted, work)
            yield work

    def known(self, digest: str) -> Image:
        """An image that this host has, by its digest. Raises SandboxError `runtime_gone` if it isn't there, whole."""
        if layout.DIGEST.fullmatch(digest):
            try:
                data = (self.folder / "images" / f"{_digits(digest)}.json").read_bytes()
                record = msgspec.json.decode(data, type=_Record)
            except (OSError, msgspec.DecodeError):
                record = None
            if record is not None:
                folders = tuple(self._layer(diff_id) for diff_id in record.layers)
                if all(folder.is_dir() for folder in folders):
                    workdir = PurePosixPath(record.workdir)
                    return Image(
                        digest, folders, record.environment, workdir, record.user, record.user_id, record.shell
                    )
        raise SandboxError("runtime_gone", f"the image {digest!r:.100} isn't in {self.folder}, or lacks a layer")

    def _resolved(self, wanted: Source) -> Image | None:
        try:
            name = msgspec.json.decode(self._name_file(wanted).read_bytes(), type=_Name)
            return self.known(name.digest)
        except (OSError, msgspec.DecodeError, SandboxError):
            return None

    async def _pull(self, name: str, wanted: Source, work: Path) -> Image:
        fetched = await asyncio.to_thread(layout.read, name, work / fetch.LAYOUT)
        budget = layers.Budget()
        for layer in fetched.layers:
            await self._unpack(name, layer, work, budget)
        # The kernel refuses a folder that is there twice.
        diff_ids = list(dict.fromkeys(layer.diff_id for layer in reversed(fetched.layers)))[::-1]
        folders = [self._layer(diff_id) for diff_id in diff_ids]
        user_id = await asyncio.to_thread(merged.user_id, folders, fetched.user)
        if user_id is None:
            raise InputError(source.FIELD, name, f"its user {fetched.user!r:.100} isn't in its /etc/passwd")
        shell = await asyncio.to_thread(merged.shell, folders)
        record = _Record(diff_ids, dict(fetched.environment), str(fetched.workdir), fetched.user, user_id, shell)
        self._write(self.folder / "images" / f"{_digits(fetched.digest)}.json", record)
        self._write(self._name_file(wanted), _Name(wanted.location, fetched.digest))
        return self.known(fetched.digest)

    async def _unpack(self, name: str, layer: layout.LayerBlob, work: Path, budget: layers.Budget) -> None:
        """Unpack a layer, unless this host has it or another pull brings it."""
        target = self._layer(layer.diff_id)
        if target.is_dir():
            return
        async with self._locked(f"layer-{target.name}"):
            if target.is_dir():
                return
            partial = work / target.name
            partial.mkdir(mode=0o700)
            blob = layout.open_blob(layer.file)
            try:
                await layers.unpack(name, blob, partial, layer.diff_id, budget)
            finally:
                os.close(blob)
            partial.rename(target)
            _sync(target.parent)

    @asynccontextmanager
    async def _work(self) -> AsyncIterator[Path]:
        """A folder for a pull, deleted at the end. What dead processes have left is deleted before."""
        async with self._locked("work"):
            dead = self._abandoned()
            work = self.folder / "work" / secrets.token_hex(16)
            work.mkdir(mode=0o700)
            lock = file_locks.lock(work / _LOCK)
            lock.acquire(timeout=0)
        try:
            await asyncio.to_thread(_delete, dead)
            yield work
        finally:
            await asyncio.to_thread(_delete, {work: lock})

    def _abandoned(self) -> dict[Path, filelock.BaseFileLock]:
        """Folders in `work` whose owners have died, with their locks, which are ours now."""
        found = {}
        for folder in (self.folder / "work").iterdir():
            lock = file_locks.lock(folder / _LOCK)
            try:
                lock.acquire(timeout=0)
            except (filelock.Timeout, OSError):
                continue
            found[folder] = lock
        return found

    def _locked(self, name: str) -> AbstractAsyncContextManager[None]:
        return file_locks.held(self.folder / "locks" / name)

    def _layer(self, diff_id: str) -> Path:
        return self.folder / "layers" / _digits(diff_id)

    def _name_file(self, wanted: Source) -> Path:
        return self.folder / "names" / f"{_hex(wanted.key)}.json"

    def _write(self, file: Path, record: msgspec.Struct) -> None:
        private_files.replace(file, msgspec.json.encode(record), is_durable=True)
        _sync(file.parent)


@contextmanager
def storing(name: str) -> Iterator[None]:
    """Make a SandboxError, IMAGE_UNAVAILABLE or HOST_DISK_FULL, of an OSError that keeps the image `name` from this host."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise SandboxError(HOST_DISK_FULL, f"the disk is full: {error} (getting the image {name})") from error
        raise SandboxError(IMAGE_UNAVAILABLE, f"the image {name} could not be stored: {error}") from error


def _delete(folders: Mapping[Path, filelock.BaseFileLock]) -> None:
    """Delete folders, then give up their locks. One that can't be deleted is left to the next pull."""
    for folder, lock in folders.items():
        try:
            session_folder.delete(folder)
        except SandboxError:
            pass
        finally:
            lock.release()


def _sync(folder: Path) -> None:
    """Write a folder's names to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digits(digest: str) -> str:
    return digest.removeprefix("sha256:")


def _hex(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
