"""Copies a file or a folder from the sandbox that a run left to the same path of another sandbox.

Nothing in the run's sandbox is trusted: not the files, and not the programs that read them there, which the agent may have replaced. So
what they write is untrusted bytes for one path. Files are written, never links, devices or pipes, and nothing outside of that path. A link
in the place of an artifact is followed in the run's sandbox, where it leads to nothing that the run couldn't copy itself.

As in Harbor (0.26, trial/artifact_handler.py): a path that isn't there is left out, a folder replaces the other sandbox's, and what in it
can't be carried safely is left out. Harbor keeps links that stay inside of the folder; here all links are left out.

What `exclude` leaves out is decided here, by GNU tar's rules. The sandbox's tar gets the patterns as well, but only to pack less.
"""

from __future__ import annotations

import asyncio
import errno
import fnmatch
import os
import re
import shlex
import shutil
import tarfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

from consumers.runtimes.base import HOST_DISK_FULL, Exec, Runtime, SandboxError, is_broken_inside
from consumers.runtimes.images import layer_tar
from consumers.runtimes.images.layer_tar import LayerError
from consumers.runtimes.upload import Upload
from topics.environment import archive
from topics.environment.archive import BYTES_LIMIT, ENTRIES_LIMIT, Entry
from topics.environment.blobs import FolderBlobs
from topics.types.errors import InputError
from topics.types.runtime import ArtifactSpec

_FOLDER, _FILE, _PROGRAM, _MISSING, _NO_TAR, _EMPTY = 10, 11, 12, 13, 14, 15
"""Exit codes of `_PACK`."""
_PACK = f"""\
exec 2>/dev/null
if [ -d "$SOURCE" ]; then
  cd -- "$SOURCE" || exit
  is_empty=1
  for entry in ./* ./.[!.]* ./..?*; do if [ -e "$entry" ] || [ -L "$entry" ]; then is_empty=; break; fi; done
  [ -z "$is_empty" ] || exit {_EMPTY}
  command -v tar >/dev/null || exit {_NO_TAR}
  tar -cf - EXCLUDE . | head -c "$LIMIT"
  exit {_FOLDER}
fi
[ -f "$SOURCE" ] || exit {_MISSING}
head -c "$LIMIT" -- "$SOURCE" || exit
[ -x "$SOURCE" ] && exit {_PROGRAM}
exit {_FILE}
"""
"""With `EXCLUDE` for the options of tar."""
_CLEAR = """\
if [ "$IS_FOLDER" = 1 ] && [ -d "$TARGET" ]; then cd -- "$TARGET" && rm -rf -- ./* ./.[!.]* ./..?*; else rm -rf -- "$TARGET"; fi
"""
"""A folder itself stays: it may be the workspace, which can't be removed."""
_STORE = "artifacts"
"""A folder beside the logs of the target, for one artifact on its way."""
NAME_LIMIT = 16 * 1024
"""Bytes of a name or of a link's target in a tar, which bounds memory. Longer names than `archive.NAME_LIMIT` are refused later, unless
`exclude` drops them."""
_LONG = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_READ = (
    *(tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE),
    *(tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, *_LONG),
)
"""Types of headers that are read: those of the GNU format, without sparse files."""
_WAY_OUT = "only the GNU format is read; install GNU tar or BusyBox in the run's image"


class _Header(layer_tar.Entry):
    """A header that is refused if reading it could fill this process's memory, or keep it busy. No tar writes such headers for `_PACK`.

    Headers of the pax format are refused unread: Python reads them by a regular expression that takes quadratic time and stops the whole
    process meanwhile (3.11 before 3.11.10), and the sizes in them may be negative.
    """

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type not in _READ:
            raise LayerError(f"its tar has a header of the type {self.type!r}, and {_WAY_OUT}")
        if self.type in _LONG and self.size > NAME_LIMIT:
            raise LayerError(f"its tar has a name of more than {NAME_LIMIT} bytes")
        return super()._proc_member(tar)


async def carry(source: Runtime, target: Runtime, artifact: ArtifactSpec) -> str | None:
    """Copy an artifact, whose path is relative to the workspace of each sandbox or absolute. No program may run in `source`.

    None if it was copied, or isn't there. Otherwise the reason why it can't be, which what the run left can cause. Raises SandboxError.
    """
    path = artifact.path
    place = source.workspace / path
    # TAR_OPTIONS: where GNU tar is built to write the pax format.
    env = {"SOURCE": str(place), "LIMIT": str(BYTES_LIMIT + 1), "LC_ALL": "C", "TAR_OPTIONS": "--format=gnu"}
    options = shlex.join(f"--exclude={pattern}" for pattern in artifact.exclude)
    command = _PACK.replace("EXCLUDE", options)
    packing = Exec(command, cwd=str(source.home), env=env, log="artifact.log", log_limit=BYTES_LIMIT + 1, is_ours=True)
    try:
        packed = await source.exec(packing)
    except (SandboxError, InputError) as error:
        if isinstance(error, SandboxError) and not await is_broken_inside(source, error):
            raise
        return f"the artifact {path} can't be read, since no program starts after the run: {error}"
    try:
        if packed.exit_code == _MISSING:
            return None
        if packed.exit_code == _NO_TAR:
            return f"the artifact {path} is a folder, and the run's sandbox has no program tar to read it with"
        if packed.exit_code not in (_FOLDER, _FILE, _PROGRAM, _EMPTY):
            return f"the artifact {path} can't be read: {packed.exceeded or f'exit code {packed.exit_code}'}"
        return await _put(packed.log, target, artifact, packed.exit_code)
    finally:
        packed.log.unlink(missing_ok=True)


async def _put(packed: Path, target: Runtime, artifact: ArtifactSpec, kind: int) -> str | None:
    """As `carry`. `packed`: a file, or a folder's tar."""
    path = artifact.path
    place = target.workspace / path
    store = target.logs / _STORE
    is_folder = kind in (_FOLDER, _EMPTY)
    try:
        blobs = FolderBlobs(store)
        stored = await asyncio.to_thread(blobs.put_chunks, partial(_chunks, packed, kind, artifact.exclude))
        if not await _clear(target, place, is_folder=is_folder):
            return f"the artifact {path} can't take the place of what the verifier's sandbox has there"
        await target.upload(Upload(blobs, stored.ref, "" if is_folder else place.name), place)
    except archive.ArchiveError as error:
        return f"the artifact {path} {error}"
    except InputError as error:
        return f"the artifact {path} can't be copied: {error.reason}"
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise SandboxError(HOST_DISK_FULL, f"the disk of {store} has no room for the artifact {path}") from error
    finally:
        await asyncio.to_thread(shutil.rmtree, store, ignore_errors=True)
    return None


async def _clear(target: Runtime, place: PurePosixPath, *, is_folder: bool) -> bool:
    env = {"TARGET": str(place), "IS_FOLDER": "1" if is_folder else ""}
    cleared = await target.exec(Exec(_CLEAR, cwd=str(target.home), env=env, log="artifact-clear.log", is_ours=True))
    return cleared.exit_code == 0


def _chunks(packed: Path, kind: int, exclude: Sequence[str] = ()) -> Iterator[bytes]:
    """An archive of what was packed. Raises ArchiveError for what is too large, or isn't what it says it is."""
    with packed.open("rb") as file:
        if kind == _EMPTY:
            yield from archive.packed(())
            return
        if os.fstat(file.fileno()).st_size > BYTES_LIMIT:
            raise archive.ArchiveError(f"holds more than {BYTES_LIMIT // 1024**2} MiB")
        if kind != _FOLDER:
            size = os.fstat(file.fileno()).st_size
            yield from archive.packed([(Entry("file", size, is_executable=kind == _PROGRAM), file)])
            return
        try:
            with tarfile.open(
                fileobj=file, mode="r|", tarinfo=_Header, encoding="utf-8", errors="surrogateescape"
            ) as tar:
                yield from archive.packed(_entries(tar, excluding(exclude)))
        except (tarfile.TarError, LayerError, ValueError, OverflowError, RecursionError) as error:
            raise archive.ArchiveError(f"can't be read as the run left it: {error}") from None


def excluding(patterns: Sequence[str]) -> re.Pattern[str]:
    """Matches the names, beginning with `./`, that tar leaves out: a pattern is the name of an entry, or of a folder around it, whole or
    after a slash."""
    globs = (f"{before}{pattern}{after}" for pattern in patterns for before in ("", "*/") for after in ("", "/*"))
    # Each glob takes linear time; a search at every slash would take quadratic time on names that the run chooses.
    return re.compile("|".join(map(fnmatch.translate, globs)) or r"(?!)")


def _entries(tar: tarfile.TarFile, excluded: re.Pattern[str]) -> Iterator[tuple[Entry, IO[bytes] | None]]:
    """The files and folders of an untrusted tar. Raises ArchiveError for too many entries: those that are left out take time as well."""
    count = 0
    while (header := tar.next()) is not None:
        tar.members.clear()  # type: ignore[attr-defined] # a list that would hold every entry
        count += 1
        if count > ENTRIES_LIMIT:
            raise archive.ArchiveError(f"holds more than {ENTRIES_LIMIT} files, folders and links")
        name = "/".join(part for part in header.name.split("/") if part not in ("", "."))
        if excluded.match(f"./{name}"):
            continue
        if name and header.isdir():
            yield Entry(name, None), None
        elif name and header.isreg() and not header.issparse():
            yield Entry(name, header.size, bool(header.mode & 0o100)), tar.extractfile(header)
