"""What the tiny model was trained to do, as an agent's tools: search three small files, edit one, run the test."""

from __future__ import annotations

import json
import random
from typing import Any

from examples.tiny_model import demonstrations, tasks

TURNS = demonstrations.TURNS
TOOLS: dict[str, tuple[str, ...]] = {"grep": ("key",), "edit": ("path", "old", "new"), "run": ("command",)}
"""Parameters by name, all of them text."""


def schema(parameters: tuple[str, ...]) -> dict[str, Any]:
    """Their JSON schema."""
    properties = {name: {"type": "string"} for name in parameters}
    return {"type": "object", "properties": properties, "required": list(parameters)}


class Work:
    """One task and its folder; every call of a tool gets an answer, whatever the model has made of it."""

    def __init__(self, seed: int) -> None:
        self._task = tasks.draw(random.Random(seed))
        self._files = dict(self._task.files)

    @property
    def request(self) -> str:
        return self._task.request

    def answer(self, name: str, arguments: str | dict[str, Any]) -> str:
        """A tool's result; arguments as JSON or as what is in it."""
        told = json.loads(arguments) if isinstance(arguments, str) else arguments
        if not isinstance(told, dict) or set(told) != set(TOOLS.get(name, ())):
            return "bad arguments"
        match name:
            case "grep":
                return self._grep(str(told["key"]))
            case "edit":
                return self._edit(*(str(told[parameter]) for parameter in TOOLS["edit"]))
            case _:
                return demonstrations.PASSED if self._files == self._task.goal else demonstrations.FAILED

    def _grep(self, key: str) -> str:
        found = [
            f"{name}:{number}:{text}"
            for name, content in sorted(self._files.items())
            for number, text in enumerate(content.splitlines(), 1)
            if key in text
        ]
        return "\n".join(found) or demonstrations.NO_MATCH

    def _edit(self, path: str, old: str, new: str) -> str:
        content = self._files.get(path)
        if content is None:
            return demonstrations.NO_FILE
        self._files[path] = content.replace(old, new, 1)
        return demonstrations.EDITED if old in content else demonstrations.NO_TEXT
