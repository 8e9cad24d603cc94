"""Looks up files in layers as the mounted image would show them, without a mount."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

_OPAQUE = "user.overlay.opaque"
_LINKS = 40
"""As many links as Linux follows."""
SHELLS = ("bash", "sh")
_FOLDERS = ("bin", "usr/bin")
_NOBODY = 2**31 - 1
"""User ids of images are smaller."""
_PASSWD_BYTES = 1024 * 1024


def shell(layers: Sequence[Path]) -> str:
    """The path of the first of SHELLS that is a program in /bin or /usr/bin of the image; empty if none is. `layers`: the lowest first."""
    paths = (f"{folder}/{name}" for name in SHELLS for folder in _FOLDERS)
    return next((f"/{path}" for path in paths if is_program(layers, path)), "")


def is_program(layers: Sequence[Path], path: str) -> bool:
    """Whether `path` is a regular file that can be executed. `layers`: the lowest first."""
    found = look_up(layers, path)
    return found is not None and bool(found.lstat().st_mode & 0o111)


def user_id(layers: Sequence[Path], user: str) -> int | None:
    """The number of a user as an image's configuration names it: a name or a number, perhaps with a group behind a colon; empty for root.
    None if the image has no such user. `layers`: the lowest first."""
    name = user.partition(":")[0] or "root"
    if name.isdecimal() and name.isascii():
        return int(name) if int(name) < _NOBODY else None
    if (file := look_up(layers, "etc/passwd")) is not None:
        with file.open("rb") as opened:
            for line in opened.read(_PASSWD_BYTES).decode(errors="replace").splitlines():
                fields = line.split(":")
                if fields[0] == name and len(fields) > 2 and fields[2].isdecimal() and fields[2].isascii():
                    return user_id((), fields[2])
    return 0 if name == "root" else None


def is_behind_link(layers: Sequence[Path], folder: str) -> bool:
    """Whether a component of `folder` is a link, or something else that is no folder. `layers`: the lowest first."""
    merged = list(reversed(layers))
    for name in filter(None, folder.split("/")):
        found = _step(merged, name)
        if not isinstance(found, list):
            return found is not None
        merged = found
    return False


def look_up(layers: Sequence[Path], path: str) -> Path | None:
    """Where a layer has the regular file `path`; None if the image has none there. Links are followed inside the image. `layers`: the
    lowest first."""
    found = resolved(layers, path)
    return found if isinstance(found, Path) and stat.S_ISREG(found.lstat().st_mode) else None


def resolved(layers: Sequence[Path], path: str) -> list[Path] | Path | None:
    """The parts of a merged folder at `path`, the path of anything else there, or None. Links are followed as in `look_up`."""
    root = list(reversed(layers))
    above = [root]  # the merged folders on the way, each as its layers' folders, uppermost first
    names = path.split("/")[::-1]
    links = 0
    while names:
        name = names.pop()
        if name in ("", "."):
            continue
        if name == "..":
            above = above[:-1] or [root]
            continue
        found = _step(above[-1], name)
        if isinstance(found, list):
            above.append(found)
        elif found is None:
            return None
        elif found.is_symlink():
            links += 1
            target = os.readlink(found)  # noqa: PTH115 - a path would lose what its dots mean
            if links > _LINKS:
                return None
            if target.startswith("/"):
                above = [root]
            names += target.split("/")[::-1]
        else:
            return None if names else found
    return above[-1]


def _step(folders: Sequence[Path], name: str) -> list[Path] | Path | None:
    """What a merged folder has under `name`: a merged folder, something else, or nothing."""
    merged: list[Path] = []
    for folder in folders:
        path = folder / name
        try:
            found = path.lstat()
        except FileNotFoundError:
            continue
        if not stat.S_ISDIR(found.st_mode):
            is_whiteout = stat.S_ISCHR(found.st_mode) and found.st_rdev == 0
            return merged or (None if is_whiteout else path)
        merged.append(path)
        if _is_opaque(path):
            break
    return merged or None


def _is_opaque(folder: Path) -> bool:
    try:
        return os.getxattr(folder, _OPAQUE) == b"y"
    except OSError:
        return False
