"""Tasks as users pass them to a `Client`, and the bodies that are sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from topics import tasks
from topics.types.errors import InputError
from topics.types.task import TaskRequest, check_settings, check_version, parse

BODY_LIMIT = tasks.TOPIC.max_bytes - 64 * 1024
"""Most bytes of a canonical body. The remaining 64 KiB are room for its batch and headers."""

T = TypeVar("T")
Task: TypeAlias = TaskRequest | Mapping[str, Any]
"""A task, or its fields as a task file has them."""


def listed(tasks: T | Sequence[T]) -> list[T]:
    """The tasks, of which one may stand alone."""
    return list(tasks) if isinstance(tasks, Sequence) and not isinstance(tasks, str) else [tasks]


def requests_of(tasks: Task | Sequence[Task]) -> list[TaskRequest]:
    """The tasks as TaskRequests. Raises InputError, with the place in a list."""
    found: list[TaskRequest] = []
    for index, task in enumerate(listed(tasks)):
        try:
            found.append(task if isinstance(task, TaskRequest) else parse(task))
        except InputError as error:
            if isinstance(tasks, Sequence):
                error.move_to(f"tasks.{index}.{error.field}")
            raise
    return found


def sized_body(request: TaskRequest) -> bytes:
    """The canonical body. Raises InputError if it is too large, a plug-in refuses its settings, or a package index lacks its version.

    It may wait for the index for seconds.
    """
    check_settings(request)
    check_version(request)
    body = request.canonical()
    if len(body) > BODY_LIMIT:
        raise InputError(request.task_id, f"{len(body)} bytes", f"a task has at most {BODY_LIMIT} bytes")
    return body
