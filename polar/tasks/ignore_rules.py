"""Ignore files of Harbor tasks: `.harborignore` of tests and solutions, `.dockerignore` of Dockerfiles, and `.gitignore`.

Patterns of Git are matched by the package pathspec, as in Harbor.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType
from typing import Any

from polar.tasks.harbor_folder import CONFIG_LIMIT, HarborTask, inside, read_text
from topics.types.errors import NotReadyError, install_command

HARBOR = ".harborignore"
GIT = ".gitignore"
UNPUBLISHED = (
    "__pycache__/",
    *(f"{name}{end}" for name in ("*.pyc", ".DS_Store", "*.swp", "*.swo", "*~") for end in ("", "/")),
)
"""Names of files, and with a slash of folders."""
DOCKER = ("Dockerfile.dockerignore", ".dockerignore")
"""The first one that is there counts."""

_SIGNS = {r"\*\*": ".*", r"\*": "[^/]*", r"\?": "[^/]"}
"""Regular expressions for the signs of Docker's patterns, by the signs as `re.escape` writes them."""
_SIGN = re.compile("|".join(map(re.escape, _SIGNS)))

LeftOut = Callable[[Path], bool]
"""Whether a file or folder is left out. Something in a folder that is left out may be kept."""


def harbor_rules(task: Path, folder: Path) -> LeftOut | None:
    """The rules of the `.harborignore` in a folder of a task, and in the folders below it; None: there are none.

    As in Harbor (0.26, models/task/file_filter.py): each has the patterns of a `.gitignore`, those of inner folders win, and nothing in a
    folder that is left out is kept. Raises ValueError, and NotReadyError without the package.
    """
    specs = {
        file.parent: _package().GitIgnoreSpec.from_lines(
            read_text(task, str(file.relative_to(task)), CONFIG_LIMIT).splitlines()
        )
        for file in folder.rglob(HARBOR)
    }
    if not specs:
        return None

    def is_left_out(path: Path) -> bool:
        if path.name == HARBOR:
            return True
        around = [path, *path.parents]
        return any(map(is_named, around[: around.index(folder)]))

    def is_named(path: Path) -> bool:
        suffix = "/" if path.is_dir() else ""
        verdict = None
        for parent in reversed(path.parents):
            if (spec := specs.get(parent)) is not None:
                found = spec.check_file(path.relative_to(parent).as_posix() + suffix).include
                verdict = verdict if found is None else found
        return bool(verdict)

    return is_left_out


def _package() -> ModuleType:
    try:
        import pathspec
    except ImportError:
        raise NotReadyError(
            f"tasks with {HARBOR} or {GIT} need the package pathspec; install it: {install_command('tasks')}"
        ) from None
    return pathspec


def git_rules(task: Path) -> LeftOut:
    """The rules of a task's `.gitignore`, which no published task has; without one, those of Harbor's publisher. Raises ValueError, and
    NotReadyError without the package."""

    def is_unpublished(path: Path) -> bool:
        *folders, name = path.relative_to(task).parts
        return any(fnmatch(part, glob) for part in (name, *(f"{one}/" for one in folders)) for glob in UNPUBLISHED)

    if not (task / GIT).exists():
        return is_unpublished
    spec = _package().PathSpec.from_lines("gitignore", read_text(task, GIT, CONFIG_LIMIT).splitlines())
    return lambda path: bool(spec.match_file(path.relative_to(task).as_posix()))


def docker_rules(context: Path) -> LeftOut | None:
    """The rules of a Dockerfile's folder; None: it has none.

    As Docker's: a pattern begins at the folder and also names what is below, and the last one that names a path counts, so `!` keeps
    something in a folder that is left out. Raises ValueError for patterns that aren't translated.
    """
    name = next((name for name in DOCKER if (context / name).exists()), None)
    if name is None:
        return None
    lines = [line.strip() for line in read_text(context, name, CONFIG_LIMIT).splitlines() if not line.startswith("#")]
    patterns = [(_docker_pattern(name, line.removeprefix("!").strip()), line.startswith("!")) for line in lines if line]

    def is_left_out(path: Path) -> bool:
        place = path.relative_to(context).as_posix()
        return not next((is_kept for pattern, is_kept in reversed(patterns) if pattern.fullmatch(place)), True)

    return is_left_out


def _docker_pattern(file: str, text: str) -> re.Pattern[str]:
    path = posixpath.normpath(text.lstrip("/") or ".")
    parts = path.split("/")
    if any(sign in path for sign in "[\\") or any("**" in part and part != "**" for part in parts):
        raise ValueError(f"{file}: of patterns only *, ? and whole parts ** are translated, and no {text}")
    *outer, last = (_SIGN.sub(lambda sign: _SIGNS[sign[0]], re.escape(part)) for part in parts)
    start = "".join("(?:.*/)?" if part == ".*" else f"{part}/" for part in outer)
    return re.compile(f"{start}{last}(?:/.*)?", re.DOTALL)


def of_task(task: HarborTask, name: str, script: str, target: str) -> list[dict[str, Any]]:
    """Actions, as JSON, that bring the folder `name` of a task to `target`, with the program `script` in it. Raises ValueError, also as
    InputError."""
    folder = inside(task.folder, name)
    is_left_out = harbor_rules(task.folder, folder)
    if is_left_out is not None and is_left_out(folder / script):
        raise ValueError(f"{name}/{script} is left out by {HARBOR}; change its patterns")
    return uploads(folder, target, is_left_out)


def uploads(folder: Path, target: str, is_left_out: LeftOut | None, cwd: str | None = None) -> list[dict[str, Any]]:
    """Actions, as JSON, that bring what is kept of a folder to `target`: one if nothing is left out, otherwise one for each file and each
    folder that is kept whole. `cwd`: where a relative target starts. Raises ValueError for a link that is kept."""
    found = None if is_left_out is None else _of_part(folder, target, is_left_out, cwd)
    return [_upload(folder, target)] if found is None else found


def _of_part(folder: Path, target: str, is_left_out: LeftOut, cwd: str | None) -> list[dict[str, Any]] | None:
    """None: nothing is left out."""
    make = {"type": "exec", "command": f"mkdir -p -- {shlex.quote(target)}"} | ({} if cwd is None else {"cwd": cwd})
    actions, is_whole = [make], True
    for path in sorted(folder.iterdir()):
        place = posixpath.join(target, path.name)
        kept: list[dict[str, Any]] | None = None
        if path.is_dir() and not path.is_symlink():
            kept = _of_part(path, place, is_left_out, cwd)
            has_content = any(path.iterdir()) if kept is None else len(kept) > 1
            if is_left_out(path) and not has_content:
                kept = []
        elif is_left_out(path):
            kept = []
        elif path.is_symlink():
            raise ValueError(
                f"{path} is a symbolic link, which isn't uploaded; replace it by the file, or leave it out"
            )
        actions += [_upload(path, place)] if kept is None else kept
        is_whole &= kept is None
    return None if is_whole else actions


def _upload(path: Path, target: str) -> dict[str, Any]:
    return {"type": "upload_dir" if path.is_dir() else "upload_file", "source": str(path.absolute()), "target": target}
