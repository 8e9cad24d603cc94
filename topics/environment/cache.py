"""The user's cache: downloads that outlive a data folder, shared by all of them (Kafka's jars, harness CLIs).

Invariant: an entry under its own name is whole or it is replaced. It is built in a folder beside it, by one process at
a time, and renamed into place. What an entry holds and what makes it whole is its caller's to say.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import filelock
import platformdirs

WAIT_S = 900.0
"""How long one process waits for another's build: an npm install over a slow line takes minutes."""


class CacheError(RuntimeError):
    """The cache could not give an entry; the message names the folder and the way out."""


def root() -> Path:
    """The cache's folder: `POLAR_CACHE`, else the platform's own place for caches."""
    chosen = os.environ.get("POLAR_CACHE")
    return Path(chosen).expanduser().absolute() if chosen else platformdirs.user_cache_path("polar")


def installed(
    name: str,
    build: Callable[[Path], None],
    *,
    whole: Callable[[Path], bool],
    announce: Callable[[str], None],
) -> Path:
    """Return the folder of entry `name`, built now if it isn't there or isn't whole.

    `build` fills an empty folder that is moved afterwards, so it must not write that folder's path into a file.
    `whole` judges a folder and runs at every call. `announce` is told, a line each, what takes the user's time.
    Raises CacheError, and whatever `build` raises.
    """
    entry = root() / name
    if _is_whole(entry, whole):
        return entry
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        lock = _locked(entry, announce)
    except OSError as error:
        raise CacheError(
            f"cannot write to the cache {entry.parent}: {error}; set POLAR_CACHE to a folder that you can write to"
        ) from error
    try:
        if not _is_whole(entry, whole):
            _rebuild(entry, build, whole, announce)
    finally:
        lock.release()
    return entry


def _is_whole(entry: Path, whole: Callable[[Path], bool]) -> bool:
    return entry.is_dir() and whole(entry)


def _locked(entry: Path, announce: Callable[[str], None]) -> filelock.BaseFileLock:
    """Hold the entry's lock, which dies with its process."""
    lock = filelock.FileLock(entry.with_name(f".{entry.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        announce(f"waiting for another process that installs {entry.name} into {entry.parent}")
        try:
            lock.acquire(timeout=WAIT_S)
        except filelock.Timeout:
            raise CacheError(
                f"{lock.lock_file} was held by another process for {WAIT_S:.0f} s; end that process and try again"
            ) from None
    return lock


def _rebuild(
    entry: Path, build: Callable[[Path], None], whole: Callable[[Path], bool], announce: Callable[[str], None]
) -> None:
    """Build beside the entry and rename; the caller holds the lock, so leftovers belong to builders that died."""
    partial = entry.with_name(f".{entry.name}.partial")
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir()
    try:
        build(partial)
        if not whole(partial):
            raise CacheError(f"{entry.name} came out incomplete; nothing was kept in {entry.parent}; try again")
        if entry.exists():
            announce(f"{entry} was broken and is replaced")
            shutil.rmtree(entry)
        partial.rename(entry)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
