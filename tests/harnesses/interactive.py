"""Runs of a CLI's interactive mode: prompts and keys in a real terminal, and the kinds and traces that the calls must have.

A CLI is a `Tui`: the steps of a first and a resumed session, each with the model's answers. `played` runs both; the kinds of the calls
follow from the steps, and each CLI's test names the traces.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from consumers.harnesses.base import Launch
from consumers.runtimes.process import ProcessRuntime
from tests.consumers.harnesses.conftest import Models, set_up
from tests.consumers.harnesses.specimens import Turn, in_workspace
from tests.harnesses.outcome import Outcome, assert_captured, outcome_of
from tests.harnesses.speakers import Speaker
from tests.harnesses.terminal import KEYS, WAIT_S, Terminal, opened
from tests.waiting import eventually
from topics.types.agent import AgentSpec

FOLDER = Path(__file__).parent
IMAGE = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000080000000808020000004b6d29dc"
    "000000114944415478da63f8cfc08015310c2d090028ff3fc1ce77c84f0000000049454e44ae426082"
)
"""A red PNG of 8 by 8 pixels: `image.png` of the workspace."""
SCALES = {
    "name": "scales",
    "transport": "stdio",
    "command": sys.executable,
    "args": ["tool_server.py", "exactly"],
    "env": {"UNIT": "stone", "LISTED": "listed"},
}
"""The MCP server; its tool answers "Tea weighs 42 stone exactly"."""


@dataclass(frozen=True)
class Step:
    """Something that a person types, and what follows."""

    types: str
    turns: tuple[Turn, ...]
    """The model's answers, one for each call. `WORKSPACE` stands for the workspace."""
    shown: str
    """A regular expression that is on the screen when the step is over, and not before."""
    keys: tuple[tuple[str, str], ...] = ()
    """Dialogs, in order: a regular expression that is on the screen then, and the key that answers it."""
    first: tuple[tuple[str, str], ...] = ()
    """Before it: a key, and a regular expression that is on the screen then."""
    image: str | None = None
    """The path of the image is pasted before it, which shows this regular expression."""
    kind: str = "main"
    """Kind of the step's calls."""
    is_new: bool = False
    """The history before it isn't sent any more: a trace of its own begins, and so does a script, to a user who says `NEW`."""


NEW = "Kestrel"
KEPT = 9
"""Number of answers that a compacted history must not keep: the script of the calls after it is repeated so often."""
UNUSED: Turn = {"text": "-"}
"""No call plays it; a script has at least one turn."""


@dataclass(frozen=True)
class Tui:
    """A CLI's interactive mode."""

    speaker: Speaker
    ready: str
    """A regular expression that is on the screen when a prompt can be typed."""
    first: tuple[Step, ...]
    resumed: tuple[Step, ...]
    """In a second process, which has the conversation of the first."""
    launches: Callable[[Launch, bool], Launch]
    """Makes of a preset's launch the one of the interactive mode: (launch, resumes) -> launch."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Settings of a person, below the home; `{workspace}` and `{key_end}`, 20 characters, are filled in."""
    is_empty: str | None = None
    """A regular expression that is on the screen as long as nothing is typed, for a CLI that may drop keys."""
    leave: str = "/exit"
    """A command, or one of KEYS."""
    has_servers: bool = True
    """It connects to MCP servers."""
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
            "mcp_servers": [SCALES] if tui.has_servers else [],
        }
    )
    turns, later = (
        in_workspace([turn for step in half for turn in step.turns], runtime.workspace) for half in _halves(tui)
    )
    zebra = {"name": "subagent", "match": "Zebra", "variants": [{"turns": [*tui.speaker.delegated, UNUSED]}]}
    again = {"name": "again", "match": NEW, "variants": [{"turns": (later or [UNUSED]) * KEPT}]}
    listed = Path(runtime.workspace / "listed")
    async with model(turns, before=(*tui.beside, again, zebra)) as served:
        launch = await set_up(runtime, served.access, "", agent)
        for path, text in tui.files.items():
            filled = text.replace("{workspace}", str(runtime.workspace)).replace("{key_end}", served.access.key[-20:])
            await runtime.write_file(runtime.home / path, filled.encode())
        for resumes, part in ((False, tui.first), (True, tui.resumed)):
            async with opened(runtime, served.access, tui.launches(launch, resumes)) as terminal:
                await terminal.wait_for(tui.ready)
                if resumes and tui.is_empty:
                    # It drops keys until it has drawn the conversation.
                    await terminal.wait_for(tui.first[-1].shown)
                if tui.has_servers:
                    # A prompt that leaves before the server's tools are known has other tools than the next one.
                    await eventually(listed.exists, WAIT_S)
                    listed.unlink()
                for step in part:
                    await _take(tui, step, terminal, runtime.workspace)
                if tui.leave in KEYS:
                    await terminal.leave_by(tui.leave)
                else:
                    await _say(tui, terminal, tui.leave)
                    await terminal.wait_for_end()
        return await outcome_of(served)


async def _take(tui: Tui, step: Step, terminal: Terminal, workspace: PurePosixPath) -> None:
    for key, shown in step.first:
        terminal.press(key)
        await terminal.wait_for(shown)
    if step.image:
        terminal.paste(str(workspace / "image.png"))
        await terminal.wait_for(step.image)
    await _say(tui, terminal, step.types)
    for shown, key in step.keys:
        await terminal.answer(shown, key)
    await terminal.wait_for(step.shown)


async def _say(tui: Tui, terminal: Terminal, text: str) -> None:
    if tui.is_empty is None:
        await terminal.type(text)
        terminal.press("enter")
        return
    await terminal.answer(tui.is_empty, text[0])
    await terminal.type(text[1:])
    await terminal.answer(rf"\A(?![\s\S]*{tui.is_empty})", "enter")


def assert_kinds(tui: Tui, outcome: Outcome) -> None:
    """Every call is on the log as it was sampled, and has the kind of its step or script."""
    assert_captured(outcome, tui.speaker.dialect)
    kinds = {script["name"]: [script["name"]] * len(outcome.playing(script["name"])) for script in tui.beside}
    for script, steps in zip(("mend", "again"), _halves(tui), strict=True):
        kinds[script] = [step.kind for step in steps for _ in step.turns]
    kinds["subagent"] = ["subagent" if tui.speaker.is_told else "main"] * len(tui.speaker.delegated)
    assert {script: [each.kind for each in outcome.playing(script)] for script in kinds} == kinds
    assert len(outcome.calls) == sum(map(len, kinds.values())), "a call that no step and no script expects"
    assert all(kinds[script["name"]] for script in tui.beside)


def _halves(tui: Tui) -> tuple[list[Step], list[Step]]:
    """The steps of the first history, and those of a history that begins anew after it."""
    steps = [*tui.first, *tui.resumed]
    new = next((at for at, step in enumerate(steps) if step.is_new), len(steps))
    return steps[:new], steps[new:]
