"""The user's cache of downloads, which all data folders share (Kafka's jars, harness CLIs; images by rules of their own,
`consumers/runtimes/images/store.py`).

Invariant: an entry is complete, or it is replaced. One process at a time builds it in a folder beside it and renames that into place.
Callers decide what an entry holds, when it is complete, and whether it is read-only.
"""

import errno
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import filelock
import platformdirs

WAIT_S = 900.0
"""Limit for waiting on another process's build; an npm install over a slow connection takes minutes."""

FULL = (errno.ENOSPC, errno.EDQUOT)
"""What the system reports of a disk, or a quota, that is full."""


class CacheError(RuntimeError):
    """An entry can't be provided; the message names the folder and the remedy."""


def root() -> Path:
    """The cache's folder: `POLAR_CACHE`, or by default the platform's cache folder."""
    chosen = os.environ.get("POLAR_CACHE")
    return Path(chosen).expanduser().absolute() if chosen else platformdirs.user_cache_path("polar")


def installed(
    name: str, build: Callable[[Path], None], *, whole: Callable[[Path], bool], announce: Callable[[str], None]
) -> Path:
    """The folder of entry `name`, which is built if it is missing or incomplete.

    `build` fills an empty folder that is moved afterwards, so it must not write that folder's path into a file. `whole` checks a folder,
    at every call. `announce` gets a line about each slow step. Raises CacheError, and the errors of `build`.
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
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise CacheError(
            f"{entry.name} was not installed: the disk of {entry.parent} is full ({error}); make room, "
            "or set POLAR_CACHE to a folder with room"
        ) from error
    finally:
        lock.release()
    return entry


def _is_whole(entry: Path, whole: Callable[[Path], bool]) -> bool:
    return entry.is_dir() and whole(entry)


def _locked(entry: Path, announce: Callable[[str], None]) -> filelock.BaseFileLock:
    """The entry's acquired lock, which ends with this process."""
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
    """Build beside the entry and rename. The caller has the lock, so leftovers come from builders that died."""
    partial = entry.with_name(f".{entry.name}.partial")
    if partial.exists():
        _remove(partial)
    partial.mkdir()
    try:
        build(partial)
        if not whole(partial):
            raise CacheError(f"{entry.name} came out incomplete; nothing was kept in {entry.parent}; try again")
        if entry.exists():
            announce(f"{entry} was broken and is replaced")
            _remove(entry)
        partial.rename(entry)
    finally:
        if partial.exists():
            _remove(partial)


def _remove(tree: Path) -> None:
    """Delete a tree whose folders may be read-only."""
    for parent, _, _ in os.walk(tree):
        folder = Path(parent)
        folder.chmod(stat.S_IMODE(folder.stat().st_mode) | stat.S_IRWXU)
    shutil.rmtree(tree)
