"""The presets that the suite of `test_presets.py` runs: what a model must say for each CLI to do the same work with its own tools."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

Turn = dict[str, Any]
WORKSPACE = "/the/workspace"
"""Stands for the runtime's own."""


@dataclass(frozen=True)
class Specimen:
    """One preset."""

    harness: str
    turns: list[Turn]
    """In the form of `polar/scripted/README.md`: make right of wrong in a.txt, run `cat a.txt >c.txt; echo $HOME`, end with "Mended."."""
    settings: dict[str, Any] = field(default_factory=dict)
    """All that it takes."""
    end: Turn = field(default_factory=lambda: {"text": "Mended."})
    """The turn that ends a work."""
    takes_mentions: bool = False
    """Where the instruction says `@name`, it adds that file's content."""

    def __str__(self) -> str:
        return self.harness


def in_workspace(turns: list[Turn], workspace: PurePosixPath) -> list[Turn]:
    """`turns`, the paths in them that begin with `WORKSPACE` beginning with `workspace`: some CLIs want absolute ones."""
    found: list[Turn] = json.loads(json.dumps(turns).replace(WORKSPACE, str(workspace)))
    return found


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


RUN = "cat a.txt >c.txt; echo $HOME"
CONTEXT_WINDOW = {"context_window": 100_000}
BOUNDS = {**CONTEXT_WINDOW, "max_tokens": 1000}


def work(read: dict[str, Any], edit: dict[str, Any], run: dict[str, Any]) -> list[Turn]:
    """The turns of one preset's tool calls."""
    return [
        {"text": "I look first.", "calls": [read]},
        {"reasoning": "It says wrong.", "calls": [edit]},
        {"calls": [run]},
    ]


PI = Specimen(
    "pi",
    work(
        call("read", path="a.txt"),
        call("edit", path="a.txt", edits=[{"oldText": "wrong", "newText": "right"}]),
        call("bash", command=RUN),
    ),
    {"api": "openai-completions", **BOUNDS},
)
CLAUDE_CODE = Specimen(
    "claude_code",
    work(
        call("Read", file_path="a.txt"),
        call("Edit", file_path="a.txt", old_string="wrong", new_string="right"),
        call("Bash", command=RUN, description="copy"),
    ),
    BOUNDS,
)
CODEX = Specimen(
    "codex",
    work(*(call("exec_command", cmd=command) for command in ("cat a.txt", "sed -i s/wrong/right/ a.txt", RUN))),
    CONTEXT_WINDOW,
)
GEMINI_CLI = Specimen(
    "gemini_cli",
    work(
        call("read_file", file_path="a.txt"),
        call("replace", file_path="a.txt", instruction="mend", old_string="wrong", new_string="right"),
        call("run_shell_command", command=RUN),
    ),
    takes_mentions=True,
)
QWEN_CODE = Specimen(
    "qwen_code",
    work(
        call("read_file", file_path=f"{WORKSPACE}/a.txt"),
        call("edit", file_path=f"{WORKSPACE}/a.txt", old_string="wrong", new_string="right"),
        call("run_shell_command", command=RUN, is_background=False),
    ),
    {"auth_type": "openai", **BOUNDS},
    takes_mentions=True,
)
OPENCODE = Specimen(
    "opencode",
    work(
        call("read", filePath="a.txt"),
        call("edit", filePath="a.txt", oldString="wrong", newString="right"),
        call("bash", command=RUN, description="copy"),
    ),
    {"provider": "openai-compatible", **BOUNDS},
)
MINI_SWE_AGENT = Specimen(
    "mini_swe_agent",
    work(*(call("bash", command=command) for command in ("cat a.txt", "sed -i s/wrong/right/ a.txt", RUN))),
    {"api": "chat"},
    end={"text": "Mended.", "calls": [call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")]},
)
ALWAYS = [PI, CLAUDE_CODE, CODEX]
"""In the default suite; the others are large, and run by `make test-harnesses`."""
PRESETS = [*ALWAYS, GEMINI_CLI, QWEN_CODE, OPENCODE, MINI_SWE_AGENT]
