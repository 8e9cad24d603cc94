"""What the scripted engine says for the tasks of this folder, in the format of polar/scripted/README.md.

Sample i of a task plays variant i: `gold` applies the reference solution, `nothing` looks and gives up, `breaking` does the work and breaks
a test that passed before. Each is ordered through the harness's own tool, which carries it out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Turn = dict[str, Any]
TASKS = Path(__file__).with_name("tasks")
VARIANTS: Mapping[str, str | None] = {"gold": "solve.sh", "nothing": None, "breaking": "breaking.sh"}
"""The file in a task's `solution/` that each variant runs."""


@dataclass(frozen=True)
class Tool:
    """A harness's tool that runs a command."""

    name: str
    argument: str
    system: str
    """A pattern that the harness's system prompt has, and no other's here; empty for the last one."""

    def call(self, command: str) -> Turn:
        return {"calls": [{"name": self.name, "arguments": {self.argument: command}}]}


TOOLS: Mapping[str, Tool] = {
    "codex": Tool("exec_command", "cmd", "Codex"),
    "pi": Tool("bash", "command", ""),
}
"""By harness. The first script that matches is played, so the one without a pattern is the last."""


def scripts(task: Path) -> list[dict[str, Any]]:
    """The scripts of a task's folder, one for each harness."""
    first_line = (task / "instruction.md").read_text().partition("\n")[0]
    return [
        {
            "name": f"{task.name} {harness}",
            "match": re.escape(first_line),
            "system": tool.system,
            "variants": [{"name": name, "turns": _turns(task, tool, file)} for name, file in VARIANTS.items()],
        }
        for harness, tool in TOOLS.items()
    ]


def _turns(task: Path, tool: Tool, file: str | None) -> list[Turn]:
    look = {"text": "I look at what is there.", **tool.call("git ls-files && cat README.md")}
    if file is None:
        return [look, {"text": "I can't find the fault."}]
    return [look, tool.call((task / "solution" / file).read_text()), {"text": "It is done."}]
