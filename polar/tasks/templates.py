"""A template: a part of a TaskRequest with what Harbor leaves to a job, as the agent and the number of samples.

Its fields take the place of a task's. The `source` of an upload may begin with `{task}/`, which stands for the task's folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from topics.types.runtime import UPLOADING

TASK_FOLDER = "{task}/"


def with_sources(template: Mapping[str, Any], place: Callable[[str], str]) -> dict[str, Any]:
    """The template with `place` of each source in its uploads. What is no action stays, for TaskRequest to refuse."""
    made = dict(template)
    for part, names in (("runtime", UPLOADING), ("agent", ("skills",))):
        if isinstance(old := template.get(part), Mapping):
            made[part] = _with_lists(old, names, place)
    runtime = made.get("runtime")
    if isinstance(runtime, Mapping) and isinstance(verifier := runtime.get("verifier"), Mapping):
        made["runtime"] = {**runtime, "verifier": _with_lists(verifier, ("prepare",), place)}
    agent = made.get("agent")
    if isinstance(agent, Mapping) and isinstance(instructions := agent.get("instructions"), Mapping):
        made["agent"] = {**agent, "instructions": _with_source(instructions, place)}
    return made


def _with_lists(part: Mapping[str, Any], names: Iterable[str], place: Callable[[str], str]) -> dict[str, Any]:
    lists = {name: uploads for name in names if isinstance(uploads := part.get(name), list)}
    return {**part, **{name: [_with_source(each, place) for each in lists[name]] for name in lists}}


def _with_source(upload: Any, place: Callable[[str], str]) -> Any:
    if isinstance(upload, str):  # a skill that is only its source
        return place(upload)
    source = upload.get("source") if isinstance(upload, Mapping) else None
    return {**upload, "source": place(source)} if isinstance(source, str) else upload


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
