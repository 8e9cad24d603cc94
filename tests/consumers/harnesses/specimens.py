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


THOUGHT = "It says wrong."
RUN = "cat a.txt >c.txt; echo $HOME"
PI = Specimen(
    harness="pi",
    turns=[
        {"text": "I look first.", "calls": [call("read", path="a.txt")]},
        {"reasoning": THOUGHT, "calls": [call("edit", path="a.txt", edits=[{"oldText": "wrong", "newText": "right"}])]},
        {"calls": [call("bash", command=RUN)]},
    ],
    settings={"api": "openai-completions", "context_window": 100_000, "max_tokens": 1000},
)
CLAUDE_CODE = Specimen(
    harness="claude_code",
    turns=[
        {"text": "I look first.", "calls": [call("Read", file_path="a.txt")]},
        {"reasoning": THOUGHT, "calls": [call("Edit", file_path="a.txt", old_string="wrong", new_string="right")]},
        {"calls": [call("Bash", command=RUN, description="copy")]},
    ],
    settings={"context_window": 100_000, "max_tokens": 1000},
)
CODEX = Specimen(
    harness="codex",
    turns=[
        {"text": "I look first.", "calls": [call("exec_command", cmd="cat a.txt")]},
        {"reasoning": THOUGHT, "calls": [call("exec_command", cmd="sed -i s/wrong/right/ a.txt")]},
        {"calls": [call("exec_command", cmd=RUN)]},
    ],
    settings={"context_window": 100_000},
)
GEMINI_CLI = Specimen(
    harness="gemini_cli",
    turns=[
        {"text": "I look first.", "calls": [call("read_file", file_path="a.txt")]},
        {
            "reasoning": THOUGHT,
            "calls": [call("replace", file_path="a.txt", instruction="mend", old_string="wrong", new_string="right")],
        },
        {"calls": [call("run_shell_command", command=RUN)]},
    ],
    takes_mentions=True,
)
QWEN_CODE = Specimen(
    harness="qwen_code",
    turns=[
        {"text": "I look first.", "calls": [call("read_file", file_path=f"{WORKSPACE}/a.txt")]},
        {
            "reasoning": THOUGHT,
            "calls": [call("edit", file_path=f"{WORKSPACE}/a.txt", old_string="wrong", new_string="right")],
        },
        {"calls": [call("run_shell_command", command=RUN, is_background=False)]},
    ],
    settings={"auth_type": "openai", "context_window": 100_000, "max_tokens": 1000},
    takes_mentions=True,
)
OPENCODE = Specimen(
    harness="opencode",
    turns=[
        {"text": "I look first.", "calls": [call("read", filePath="a.txt")]},
        {"reasoning": THOUGHT, "calls": [call("edit", filePath="a.txt", oldString="wrong", newString="right")]},
        {"calls": [call("bash", command=RUN, description="copy")]},
    ],
    settings={"provider": "openai-compatible", "context_window": 100_000, "max_tokens": 1000},
)
MINI_SWE_AGENT = Specimen(
    harness="mini_swe_agent",
    turns=[
        {"text": "I look first.", "calls": [call("bash", command="cat a.txt")]},
        {"reasoning": THOUGHT, "calls": [call("bash", command="sed -i s/wrong/right/ a.txt")]},
        {"calls": [call("bash", command=RUN)]},
    ],
    settings={"api": "chat"},
    end={"text": "Mended.", "calls": [call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")]},
)
ALWAYS = [PI, CLAUDE_CODE, CODEX]
"""In the default suite; the others are large, and run by `make test-harnesses`."""
PRESETS = [*ALWAYS, GEMINI_CLI, QWEN_CODE, OPENCODE, MINI_SWE_AGENT]
