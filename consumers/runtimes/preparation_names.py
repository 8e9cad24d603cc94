"""The names of preparations, which sessions with equal beginnings of `runtime.prepare` share on one host, and the locks of their makers.

A preparation is named by all that decides it, so another command, another uploaded file, another action before it or another image is
another preparation.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path, PurePosixPath
from typing import TypeVar

from consumers.runtimes import file_locks
from topics.types.runtime import LIMITS, RuntimeSpec
from topics.types.uploads import PrepareAction

T = TypeVar("T")
FOLDER = ".prepared"
"""A folder beside those of the sessions, none of which has such a name."""
LOCKS = 16
"""Files for locks: two preparations with one lock are made one after the other."""
APART = 64
"""Actions of a task that are preparations of their own; all others are one with the last. The kernel takes some 200 layers in all."""


def locked(sessions: Path, name: str) -> AbstractAsyncContextManager[None]:
    """Make a preparation alone among the workers of `sessions`, the folder of the sessions."""
    folder = sessions / FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return file_locks.held(folder / f".lock-making-{int(name[:8], 16) % LOCKS}")


def names_of(digest: str, spec: RuntimeSpec) -> list[str]:
    """The names of the preparations that the actions of `spec` make of the image `digest`, one on another: APART at most."""
    decisive = spec.model_dump(
        mode="json", include={"env", "path", "workdir", "setup_network", "allowed_hosts", *LIMITS}
    )
    name = _digest([digest, decisive])
    names = []
    for group in grouped(spec.prepare):
        name = _digest([name, [_decisive(action) for action in group]])
        names.append(name)
    return names


def grouped(actions: Sequence[T]) -> list[Sequence[T]]:
    """The actions, or their steps, of each preparation of `names_of`."""
    apart: list[Sequence[T]] = [[action] for action in actions[: APART - 1]]
    return apart + ([actions[APART - 1 :]] if len(actions) >= APART else [])


def _decisive(action: PrepareAction) -> list[object]:
    # Of an upload's path only the last name decides anything: a file's name in a target that is a folder.
    file_name = PurePosixPath(action.source).name if action.type == "upload_file" and action.source else ""
    return [file_name, action.model_dump(mode="json", exclude={"source"})]


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
