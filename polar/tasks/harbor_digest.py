"""The digest of a Harbor task's files, which a `dataset.toml` names (harbor 0.26, publisher/packager.py).

The files are those of a published task: without what `.harborignore` leaves out of tests and solutions, and without what `.gitignore`
names, or without caches and editors' files if the task has no `.gitignore`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from polar.tasks import ignore_rules
from polar.tasks.harbor_folder import CONFIG, DOCUMENT_LIMIT, INSTRUCTION, inside, read_bytes
from topics.types.errors import InputError

FILES = (CONFIG, INSTRUCTION, "README.md", "trajectory.json", "environment", "tests", "solution", "steps")
"""Files and folders that a digest covers."""
WITH_RULES = ("tests", "solution", "steps/*/tests", "steps/*/solution")
"""Folders in which `.harborignore` has a meaning."""


def digest(folder: Path) -> str:
    """The digest of a task. Raises InputError for a link that leads out of the task, for rules that can't be read and for a name that isn't
    UTF-8, and NotReadyError as `ignore_rules`."""
    lines = []
    for name in _covered(folder):
        try:
            name.encode()
        except UnicodeEncodeError:
            raise InputError(
                str(folder), name, "a file's digest covers its name, and its name isn't UTF-8; rename it"
            ) from None
        content = read_bytes(folder, name, DOCUMENT_LIMIT)
        lines.append(f"{name}\0{hashlib.sha256(content).hexdigest()}\n")
    return f"sha256:{hashlib.sha256(''.join(lines).encode()).hexdigest()}"


def _covered(folder: Path) -> list[str]:
    """The relative paths of a digest's files, in order. Raises InputError before it lists a folder that a link puts elsewhere."""
    found = [path for name in FILES for path in _files(inside(folder, name))]
    try:
        rules = [
            (place, rule)
            for glob in WITH_RULES
            for place in folder.glob(glob)
            if (rule := ignore_rules.harbor_rules(folder, place)) is not None
        ]
        is_unpublished = ignore_rules.git_rules(folder)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(str(folder), ignore_rules.HARBOR, f"its rules can't be read: {error}") from None

    def is_covered(path: Path) -> bool:
        if path.name == ignore_rules.HARBOR or is_unpublished(path):
            return False
        return not any(rule(path) for place, rule in rules if path.is_relative_to(place))

    return sorted(path.relative_to(folder).as_posix() for path in found if is_covered(path))


def _files(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from (file for file in path.rglob("*") if file.is_file())
    elif path.exists():
        yield path
