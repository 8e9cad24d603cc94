"""A template: a part of a TaskRequest with what Harbor leaves to a job, as the agent and the number of samples.

Its fields take the place of a task's. The `source` of an upload may begin with `{task}/`, which stands for the task's folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from topics.types.task import UPLOADING

TASK_FOLDER = "{task}/"


def with_sources(template: Mapping[str, Any], place: Callable[[str], str]) -> dict[str, Any]:
    """The template with `place` of each source in its uploads. What is no action stays, for TaskRequest to refuse."""
    runtime = template.get("runtime")
    if not isinstance(runtime, Mapping):
        return dict(template)
    changes = {
        name: [_with_source(action, place) for action in actions]
        for name in UPLOADING
        if isinstance(actions := runtime.get(name), list)
    }
    return {**template, "runtime": {**runtime, **changes}}


def _with_source(action: Any, place: Callable[[str], str]) -> Any:
    source = action.get("source") if isinstance(action, Mapping) else None
    return {**action, "source": place(source)} if isinstance(source, str) else action


def at(body: Mapping[str, Any], field: str) -> Any:
    """The value at a dotted place; None if there is none."""
    found: Any = body
    for name in field.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def put(body: dict[str, Any], field: str, value: Any) -> None:
    """Set the value at a dotted place."""
    *path, last = field.split(".")
    part = body
    for name in path:
        part = part.setdefault(name, {})
    part[last] = value


def nulls(template: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The dotted places of the template's nulls, except those in lists."""
    for name, value in template.items():
        if value is None:
            yield f"{prefix}{name}"
        elif isinstance(value, Mapping):
            yield from nulls(value, f"{prefix}{name}.")


def merged(body: Mapping[str, Any], template: Mapping[str, Any]) -> dict[str, Any]:
    """The template's values in the place of the body's."""
    made = dict(body)
    for name, value in template.items():
        old = made.get(name)
        made[name] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return made
