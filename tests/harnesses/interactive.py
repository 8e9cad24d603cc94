"""A person's evening with a CLI's interactive mode: prompts and keys in a real terminal, and what must come of the calls.

A CLI is a `Tui`: the steps of a first and a resumed session, each with what the model says meanwhile. `played` plays it; what the log and
the trajectory must say follows from the steps.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from consumers.harnesses.base import Launch
from consumers.runtimes.process import ProcessRuntime
from tests.consumers.harnesses.conftest import Models, set_up
from tests.consumers.harnesses.specimens import Turn, in_workspace
from tests.harnesses.outcome import Outcome, assert_captured, outcome_of
from tests.harnesses.speakers import Speaker
from tests.harnesses.terminal import Terminal, opened
from topics.types.agent import AgentSpec
from topics.types.tokens import unpack_ids

FOLDER = Path(__file__).parent
IMAGE = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000080000000808020000004b6d29dc0000001149444154789c63f8cfc08015e3101d5a120067903fc1"
    "a4a4f2e40000000049454e44ae426082"
)
"""A red PNG of 8 by 8 pixels: `image.png` of the workspace."""
SCALES = {
    "name": "scales",
    "transport": "stdio",
    "command": sys.executable,
    "args": ["tool_server.py", "exactly"],
    "env": {"UNIT": "stone"},
}
"""The MCP server; its tool answers "Tea weighs 42 stone exactly"."""


@dataclass(frozen=True)
class Step:
    """Something that a person types, and what follows."""

    types: str
    turns: tuple[Turn, ...]
    """What the model says, call by call. `WORKSPACE` stands for the workspace."""
    shown: str
    """Is on the screen when all is over, and nowhere before."""
    keys: tuple[tuple[str, str], ...] = ()
    """Dialogs, in order: a regular expression that is on the screen then, and the key that answers it."""
    first: tuple[tuple[str, str], ...] = ()
    """Before it: a key, and a regular expression that is on the screen then."""
    kind: str = "main"
    """Of these calls."""
    is_new: bool = False
    """The history before it isn't sent any more: a trace of its own begins, and so does a script, to a user who says `NEW`."""


NEW = "Kestrel"


@dataclass(frozen=True)
class Tui:
    """A CLI's interactive mode."""

    speaker: Speaker
    ready: str
    """A regular expression that is on the screen when a prompt can be typed."""
    first: tuple[Step, ...]
    resumed: tuple[Step, ...]
    """In a second process, which has the conversation of the first."""
    launches: Any
    """Makes of a preset's launch the one of the interactive mode: (launch, resumes) -> launch."""
    dialogs: Mapping[str, str] = field(default_factory=dict)
    """At the start: a regular expression of the screen, and the key that answers it."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Settings of a person, below the home; `{workspace}` and `{key}` are filled in."""
    leave: str = "/exit"
    beside: tuple[dict[str, Any], ...] = ()
    """Scripts of side calls; each one's name is their kind."""

    def __str__(self) -> str:
        return self.speaker.specimen.harness


async def played(tui: Tui, runtime: ProcessRuntime, model: Models) -> Outcome:
    """Both sessions, to their ends."""
    await runtime.write_file("a.txt", b"this is wrong\n")
    await runtime.write_file("image.png", IMAGE)
    await runtime.write_file("tool_server.py", (FOLDER / "tool_server.py").read_bytes())
    agent = AgentSpec.model_validate(
        {
            "harness": tui.speaker.specimen.harness,
            "model_name": "some/model:free",
            "settings": tui.speaker.settings,
            "mcp_servers": [SCALES],
        }
    )
    steps = [*tui.first, *tui.resumed]
    new = next((at for at, step in enumerate(steps) if step.is_new), len(steps))
    turns, later = (in_workspace([t for s in part for t in s.turns], runtime.workspace) for part in (steps[:new], steps[new:]))
    zebra = {"name": "subagent", "match": "Zebra", "variants": [{"turns": list(tui.speaker.delegated)}]}
    again = {"name": "again", "match": NEW, "variants": [{"turns": later or [{"text": "-"}]}]}
    async with model(turns, before=(*tui.beside, again, zebra)) as served:
        launch = await set_up(runtime, served.access, "", agent)
        for path, text in tui.files.items():
            filled = text.replace("{workspace}", str(runtime.workspace)).replace("{key}", served.access.key)
            await runtime.write_file(runtime.home / path, filled.encode())
        for resumes, part in ((False, tui.first), (True, tui.resumed)):
            async with opened(runtime, served.access, tui.launches(launch, resumes)) as terminal:
                await _begin(tui, terminal)
                for step in part:
                    await _take(step, terminal)
                await terminal.type(tui.leave)
                terminal.press("enter")
                await terminal.wait_for_end()
        return await outcome_of(served)


async def _begin(tui: Tui, terminal: Terminal) -> None:
    left = dict(tui.dialogs)
    while (seen := await terminal.wait_for(*left, tui.ready)) in left:
        terminal.press(left.pop(seen))


async def _take(step: Step, terminal: Terminal) -> None:
    for key, shown in step.first:
        terminal.press(key)
        await terminal.wait_for(shown)
    await terminal.type(step.types)
    terminal.press("enter")
    for shown, key in step.keys:
        await terminal.wait_for(shown)
        terminal.press(key)
    await terminal.wait_for(step.shown)


def assert_work_alone_is_trained(tui: Tui, outcome: Outcome) -> None:
    """Each call has its step's kind; what the work sampled is trained in order, what was beside it isn't."""
    assert_captured(outcome, tui.speaker.dialect)
