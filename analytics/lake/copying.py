"""Copies a lake into a folder, while writers go on: for a backup, and for DuckDB by itself on a lake in a bucket.

A copy is a lake whose only writer is this. Each time it gets the files that it lacks, then a manifest that names those of the source's
newest manifest. So a reader sees one state of the source, and a copy that was cut short is continued.
"""

from __future__ import annotations

import os
import uuid
from typing import Any, NamedTuple

import msgspec

from analytics.lake import locks
from analytics.lake.compaction import GRACE_S, LOCK, prune
from analytics.lake.manifest import File, Lake, Manifest
from analytics.lake.schema import TABLES
from topics.types.errors import InputError, NotReadyError

FIELD = "FOLDER"
MARK = "copy-of"
"""File of a copy with its source's place: no lake with a writer of its own is overwritten."""
CHUNK = 1024 * 1024


class Copied(NamedTuple):
    """A copy, with the files and bytes that were new to it."""

    manifest: Manifest
    files: int
    bytes: int


def copy(source: Lake, target: Lake) -> Copied:
    """Make `target`, a folder, show the newest state of `source`.

    Raises InputError if the folder holds anything else, NotReadyError if there is no lake or another process copies, and OSError.
    """
    with source.pin() as newest:
        _claim(source, target)
        with locks.alone(target.folder / LOCK) as is_alone:
            if not is_alone:
                raise NotReadyError(f"another process copies a lake to {target.store.place}")
            new = [
                (table, file)
                for table, files in newest.files.items()
                for file in files
                if _copy(source, target, table, file)
            ]
            target.publish({table: [file.name for of, file in new if of == table] for table, _ in new})
            base = target.newest()
            shown = msgspec.structs.replace(newest, sweeps=base.sweeps)
            if msgspec.structs.replace(shown, version=base.version, committed_at=base.committed_at) != base:
                base = target.commit(base, shown)
            prune(target, GRACE_S)
            _remove_strays(target)
    return Copied(base, len(new), sum(file.bytes for _, file in new))


def _claim(source: Lake, target: Lake) -> None:
    """Make the folder a copy of this source. Raises InputError if it is anything else."""
    mark = target.folder / MARK
    known = mark.read_text() if mark.exists() else None
    if known not in (None, source.store.place):
        raise InputError(FIELD, str(target.folder), f"holds a copy of {known}; name another folder, or delete this one")
    if known is None:
        if target.folder.exists() and any(target.folder.iterdir()):
            raise InputError(FIELD, str(target.folder), "is no copy of a lake; name an empty folder or a new one")
        target.folder.mkdir(parents=True, exist_ok=True)
        mark.write_text(source.store.place)
    target.prepare()


def _copy(source: Lake, target: Lake, table: str, file: File) -> bool:
    """Whether the target lacked the file."""
    path = target.path(table, file)
    path.parent.mkdir(exist_ok=True)
    if path.exists():
        return False
    draft = path.with_name(f".{uuid.uuid4().hex}")
    try:
        with draft.open("xb") as out:
            with source.open(table, file) as opened:
                _stream(opened, out)
            if out.tell() != file.bytes:
                raise OSError(
                    f"{file.name} of {source.store.place} has {out.tell()} bytes, its manifest says {file.bytes}"
                )
            out.flush()
            os.fsync(out.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return True


def _stream(opened: Any, out: Any) -> None:
    while chunk := opened.read(CHUNK):
        out.write(chunk)


def _remove_strays(target: Lake) -> None:
    """Remove what copies that were cut short have left, and no later one needed."""
    versions = [target.read(version) for version in target.versions()]
    for table in TABLES:
        named = {file.name for one in versions for file in one.files.get(table, ())}
        for path in (target.folder / table).iterdir():
            if path.name not in named:
                path.unlink(missing_ok=True)
