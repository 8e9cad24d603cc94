"""Files that lie in layers of a cell, read and written by programs inside, which see them as all others do.

What was removed or replaced is only right in the mounted overlay: the folders of its layers, which lie on the host, also hold the marks of
what is gone and the links that the run left. Each function but `read_image` runs one program, which starts where the agent never was.
`script`: the arguments that run a script inside.
"""

from __future__ import annotations

import secrets
import stat
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from consumers.runtimes import session_folder
from consumers.runtimes.base import Exec, ExecResult, Runtime
from consumers.runtimes.cell.bubblewrap import TMP
from consumers.runtimes.images import merged
from consumers.runtimes.upload import Upload
from topics.types.errors import InputError

Script = Callable[[str], tuple[str, ...]]

_NO_FILE, _NOT_REGULAR = 3, 4
"""Exit codes of `_READ`, which no program in it has."""
_READ = f"""\
[ -e "$FILE" ] || exit {_NO_FILE}
[ -f "$FILE" ] || exit {_NOT_REGULAR}
exec head -c "$LIMIT" -- "$FILE"
"""
_PLACE = """\
if [ -n "$NAME" ] && [ -d "$TARGET" ] && [ ! -d "$SOURCE" ]; then TARGET=$TARGET/$NAME; fi
mkdir -p -- "$(dirname -- "$TARGET")" && cp --archive --no-target-directory --remove-destination -- "$SOURCE" "$TARGET"
code=$?
rm -rf -- "$SOURCE"
exit $code
"""
"""Links at the target are replaced, and not followed."""


async def read(runtime: Runtime, script: Script, path: PurePosixPath, limit: int) -> bytes:
    """As `Runtime.read_file`. InputError for anything but a readable file."""
    result = await _run(runtime, script(_READ), limit, FILE=path, LIMIT=limit)
    if result.exit_code == _NO_FILE:
        raise FileNotFoundError(f"no file {path} in the sandbox")
    if result.exit_code == _NOT_REGULAR:
        raise InputError("path", str(path), "is no regular file")
    if result.exit_code != 0:
        raise InputError("path", str(path), f"can't be read: {result.output_end}")
    return session_folder.read(result.log, limit)


def read_image(layers: Sequence[Path], path: PurePosixPath, limit: int) -> bytes:
    """As `Runtime.read_file`, for a file of the image that lies in no other mount, while nothing runs inside. Blocks. `layers`: the lowest
    first.

    No program inside takes part: what the tests ran of the agent's could have replaced the one that reads their reward.
    """
    found = merged.resolved(layers, str(path))
    if found is None:
        raise FileNotFoundError(f"no file {path} in the sandbox")
    if isinstance(found, list) or not stat.S_ISREG(found.lstat().st_mode):
        raise InputError("path", str(path), "is no regular file")
    return session_folder.read(found, limit)


async def is_folder(runtime: Runtime, script: Script, path: PurePosixPath) -> bool:
    """Whether programs can start there."""
    return (await _run(runtime, script('cd -- "$FILE"'), FILE=path)).exit_code == 0


async def write(runtime: Runtime, script: Script, path: PurePosixPath, data: bytes, mode: int) -> None:
    """As `Runtime.write_file`. InputError if what lies there is in the way."""
    staged = _staged()
    await runtime.write_file(staged, data, mode)
    await _place(runtime, script, staged, path, name="")


async def upload(runtime: Runtime, script: Script, files: Upload, path: PurePosixPath) -> None:
    """As `Runtime.upload`. InputError if what lies there is in the way."""
    staged = _staged()
    await runtime.upload(files, staged)
    await _place(runtime, script, staged, path, name=files.file_name)


async def _place(runtime: Runtime, script: Script, staged: PurePosixPath, path: PurePosixPath, *, name: str) -> None:
    """`name`: of a file that is put into the folder at `path`, if one is there; empty: the file takes its place or fails."""
    result = await _run(runtime, script(_PLACE), SOURCE=staged, TARGET=path, NAME=name)
    if result.exit_code != 0:
        raise InputError("path", str(path), f"can't be written: {result.output_end}")


def _staged() -> PurePosixPath:
    return TMP / f"staged-{secrets.token_hex(16)}"


async def _run(runtime: Runtime, command: tuple[str, ...], limit: int | None = None, **variables: object) -> ExecResult:
    """`limit`: the most bytes that the command writes."""
    env = {"LC_ALL": "C"} | {name: str(value) for name, value in variables.items()}
    what = Exec(command, cwd=str(TMP), env=env, log="layered.log", is_ours=True)
    return await runtime.exec(what if limit is None else replace(what, log_limit=limit))
