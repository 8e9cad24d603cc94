"""The manifest of an installed CLI: the hashes of its files, made at its installation, and the search for a file that differs.

Owns the manifest's form, the read-only modes of an installed folder, and the comparison. The manifest lies beside the folder, so it is
in no sandbox, and only its owner can read or write it.

What this defends: whoever can't write as the worker's user can't change a CLI at all, and a cell sees only the folder, read-only. What
changed all the same (a broken disk, another program, an agent in a runtime without confinement) is found by name. An agent that
runs as the worker's own user and knows of the manifest can rewrite both. A signature would not help: such an agent can read the fleet's
secret as well.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

FOLDER_MODE = 0o555
FILE_MODE = 0o444
PROGRAM_MODE = 0o555
MANIFEST_MODE = 0o600


def seal(folder: Path, manifest: Path) -> None:
    """Make the tree at `folder` read-only for everybody, and write its manifest."""
    for path, status in _tree(folder):
        if stat.S_ISDIR(status.st_mode):
            path.chmod(FOLDER_MODE)
        elif stat.S_ISREG(status.st_mode):
            path.chmod(PROGRAM_MODE if status.st_mode & 0o111 else FILE_MODE)
    partial = manifest.with_name(f".{manifest.name}.partial")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MANIFEST_MODE), "w") as file:
        json.dump(_described(folder), file, indent=0)
    partial.replace(manifest)


def difference(folder: Path, manifest: Path) -> str | None:
    """The first file of `folder` that differs from the manifest, and how; None if none does. Reads every file."""
    try:
        recorded = json.loads(manifest.read_text())
        found = _described(folder)
    except (OSError, ValueError) as error:
        return f"it can't be verified: {error}"
    if not isinstance(recorded, dict):
        return f"it can't be verified: {manifest} is not a manifest"
    for name in sorted(recorded.keys() | found.keys()):
        if name not in found:
            return f"{folder / name} was removed after its installation"
        if name not in recorded:
            return f"{folder / name} was added after its installation"
        if recorded[name] != found[name]:
            return f"{folder / name} was changed after its installation"
    return None


def _described(folder: Path) -> dict[str, str]:
    """By path relative to `folder`: kind, mode, size and SHA-256 of a file; kind and mode of a folder; a link's target."""
    return {str(path.relative_to(folder)): _description(path, status) for path, status in _tree(folder)}


def _description(path: Path, status: os.stat_result) -> str:
    if stat.S_ISLNK(status.st_mode):
        return f"link {os.fspath(path.readlink())}"
    mode = f"{stat.S_IMODE(status.st_mode):04o}"
    if stat.S_ISREG(status.st_mode):
        with path.open("rb") as file:
            return f"file {mode} {status.st_size} {hashlib.file_digest(file, 'sha256').hexdigest()}"
    return f"{'folder' if stat.S_ISDIR(status.st_mode) else 'special'} {mode}"


def _tree(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """The folder and everything below it, with the status of links themselves; a folder comes before its contents."""

    def refuse(error: OSError) -> None:
        raise error  # a folder that can't be read must not look empty

    for parent, folders, files in os.walk(folder, onerror=refuse):
        here = Path(parent)
        yield here, here.lstat()
        for name in files:
            yield here / name, (here / name).lstat()
        for name in folders:
            if (here / name).is_symlink():
                yield here / name, (here / name).lstat()
