"""Writes small tasks in Harbor's format."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polar.tasks.harbor_folder import HarborTask, read_task
from polar.tasks.harbor_mapping import Mapped, mapped
from polar.tasks.task_sets import Member

AGENT: dict[str, Any] = {"agent": {"harness": "shell", "custom_shell": {"command": "true"}}}
IN_PLACE: dict[str, Any] = {
    **AGENT,
    "evaluator": {"strategy": "session_completed"},
    "runtime": {"prepare": [{"type": "exec", "command": "true"}]},
}
"""A template with everything that a task of Harbor's format has no way to have yet."""
FILES = {"instruction.md": "Craft it.\n", "environment/Dockerfile": "FROM debian:12\n", "tests/test.sh": "exit 0\n"}


def toml(config: Mapping[str, Any]) -> str:
    return "".join(f"{json.dumps(name)} = {_value(value)}\n" for name, value in config.items())


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(name)} = {_value(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return json.dumps(value, ensure_ascii=False)


def nested(field: str, value: Any) -> dict[str, Any]:
    """`a.b` and 1 as {"a": {"b": 1}}."""
    first, _, rest = field.partition(".")
    return {first: nested(rest, value) if rest else value}


def write(folder: Path, config: Mapping[str, Any] | str = "", **files: str | None) -> Path:
    """Make a task's folder. `files` by path, in which `__` stands for `/` and `_` before the suffix for a dot; None: without it."""
    contents: dict[str, str | None] = {"task.toml": config if isinstance(config, str) else toml(config), **FILES}
    contents |= {
        name.replace("__", "/").replace("_md", ".md").replace("_sh", ".sh"): text for name, text in files.items()
    }
    for name, text in contents.items():
        if text is not None:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    return folder


def read(folder: Path, config: Mapping[str, Any] | str = "", **files: str | None) -> HarborTask:
    return read_task(write(folder, config, **files))


def mapped_task(
    folder: Path, config: Mapping[str, Any], template: Mapping[str, Any] = AGENT, **variables: str
) -> Mapped:
    return mapped(Member(folder.name, folder), read(folder, config), template, variables)
