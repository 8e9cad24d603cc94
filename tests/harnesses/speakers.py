"""Who is run: each CLI in each dialect that it speaks, and what a model must say for it to do more than the plain work.

`tests/consumers/harnesses/specimens.py` has that one; all turns are in the form of `polar/scripted/README.md`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from consumers.harnesses.base import Launch
from tests.consumers.harnesses.specimens import (
    ALWAYS,
    CLAUDE_CODE,
    CODEX,
    GEMINI_CLI,
    MINI_SWE_AGENT,
    OPENCODE,
    PI,
    QWEN_CODE,
    RUN,
    WORKSPACE,
    Specimen,
    Turn,
    call,
)

Resume = Callable[[Launch], Launch]
AWAIT_FOUND = "until grep -qs 'Foun[d]' ~/.codex/sessions/*/*/*/*.jsonl; do sleep 0.1; done"


@dataclass(frozen=True)
class Speaker:
    """A CLI that speaks one dialect."""

    specimen: Specimen
    dialect: str
    """As the log names it."""
    settings: dict[str, Any] = field(default_factory=dict)
    parallel: tuple[dict[str, Any], ...] = ()
    """Calls of one turn: make b.txt with `made`, and something else at once."""
    delegate: Turn | None = None
    """Leave a work that says "Zebra" to a sub-agent."""
    delegated: tuple[Turn, ...] = ()
    """What the sub-agent does."""
    after: tuple[Turn, ...] = ()
    """What the main agent says before its end, where it doesn't just wait."""
    is_told: bool = True
    """Its sub-agents' calls say so, in headers."""
    resume: Resume | None = None
    """Makes a launch go on with the session before it."""
    parts: tuple[tuple[int, ...], ...] = ((0, 1, 2, 3),)
    """The traces of two calls and, resumed, two more."""

    def __str__(self) -> str:
        return "-".join([self.specimen.harness, *map(str, self.settings.values())])


def adding(*arguments: str) -> Resume:
    """Puts arguments at the end of a command."""

    def resumed(launch: Launch) -> Launch:
        assert isinstance(launch.command, tuple)
        return replace(launch, command=(*launch.command, *arguments))

    return resumed


def _opencode_goes_on(launch: Launch) -> Launch:
    assert isinstance(launch.command, str)
    return replace(launch, command=launch.command.replace(" run ", " run --continue ", 1))


def _codex_goes_on(launch: Launch) -> Launch:
    assert isinstance(launch.command, tuple)
    return replace(launch, command=(*launch.command[:-1], "resume", "--last", launch.command[-1]))


def _pi(api: str, dialect: str) -> Speaker:
    return Speaker(
        PI,
        dialect,
        {"api": api},
        parallel=(call("write", path="b.txt", content="made\n"), call("bash", command=RUN)),
        resume=lambda launch: launch,  # the session's file is there
    )


def _opencode(provider: str, dialect: str) -> Speaker:
    return Speaker(
        OPENCODE,
        dialect,
        {"provider": provider},
        parallel=(
            call("write", filePath="b.txt", content="made\n"),
            call("bash", command=RUN, description="copy"),
        ),
        delegate={"calls": [call("task", description="find", prompt="Find the Zebra.", subagent_type="general")]},
        delegated=({"calls": [call("bash", command="echo zebra", description="find")]}, {"text": "Found."}),
        resume=_opencode_goes_on,
    )


def _qwen(auth_type: str, dialect: str) -> Speaker:
    return Speaker(
        QWEN_CODE,
        dialect,
        {"auth_type": auth_type},
        parallel=(
            call("write_file", file_path=f"{WORKSPACE}/b.txt", content="made\n"),
            call("run_shell_command", command=RUN, is_background=False),
        ),
        delegate={
            "calls": [call("agent", description="find", prompt="Find the Zebra.", subagent_type="general-purpose")]
        },
        delegated=(
            {"calls": [call("run_shell_command", command="echo zebra", is_background=False)]},
            {"text": "Found."},
        ),
        after=({"text": "It is being looked for."},),
        is_told=False,
        resume=adding("--continue"),
        parts=((0, 1), (2, 3)),  # resumed, a reminder of the date has moved from the first message to the newest
    )


def _mini(api: str, dialect: str) -> Speaker:
    return Speaker(
        MINI_SWE_AGENT,
        dialect,
        {"api": api},
        parallel=(call("bash", command="echo made >b.txt"), call("bash", command=RUN)),
    )


MINI_TEXT = replace(
    MINI_SWE_AGENT,
    turns=[
        {"text": f"{said}\n```mswea_bash_command\n{command}\n```"}
        for said, command in (("I look first.", "cat a.txt"), ("I mend.", "sed -i s/wrong/right/ a.txt"), ("Run.", RUN))
    ],
    end={"text": "Mended.\n```mswea_bash_command\necho COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n```"},
)
SPEAKERS = [
    Speaker(
        CLAUDE_CODE,
        "anthropic_messages",
        parallel=(
            call("Write", file_path=f"{WORKSPACE}/b.txt", content="made\n"),
            call("Bash", command=RUN, description="copy"),
        ),
        delegate={
            "calls": [call("Agent", description="find", prompt="Find the Zebra.", subagent_type="general-purpose")]
        },
        delegated=(
            {"calls": [call("Bash", command="echo zebra", description="find")]},
            {"text": "Found."},
        ),
        after=({"text": "It is being looked for."},),
        resume=adding("--continue"),
    ),
    Speaker(
        CODEX,
        "openai_responses",
        parallel=(call("exec_command", cmd="echo made >b.txt"), call("exec_command", cmd=RUN)),
        delegate={"calls": [call("multi_agent_v1__spawn_agent", message="Find the Zebra.")]},
        delegated=({"calls": [call("exec_command", cmd="echo zebra")]}, {"text": "Found."}),
        # It works beside the main agent, and ends with it; to be waited for it has to be named, by an id of its own.
        after=({"calls": [call("exec_command", cmd=AWAIT_FOUND, yield_time_ms=20_000)]},),
        resume=_codex_goes_on,
    ),
    Speaker(
        GEMINI_CLI,
        "google_generate_content",
        parallel=(
            call("write_file", file_path="b.txt", content="made\n"),
            call("run_shell_command", command=RUN),
        ),
        delegate={"calls": [call("invoke_agent", agent_name="generalist", prompt="Find the Zebra.")]},
        delegated=(
            {"calls": [call("run_shell_command", command="echo zebra")]},
            {"calls": [call("complete_task", result={"response": "Found."})]},
        ),
        is_told=False,
        resume=adding("--resume", "latest"),
        parts=((0, 2, 3), (1,)),  # resumed, what a tool said stands there twice
    ),
    _pi("openai-completions", "openai_chat"),
    _pi("openai-responses", "openai_responses"),
    _pi("anthropic-messages", "anthropic_messages"),
    _pi("google-generative-ai", "google_generate_content"),
    _opencode("openai-compatible", "openai_chat"),
    _opencode("openai", "openai_responses"),
    _opencode("anthropic", "anthropic_messages"),
    _opencode("google", "google_generate_content"),
    _qwen("openai", "openai_chat"),
    _qwen("anthropic", "anthropic_messages"),
    _qwen("gemini", "google_generate_content"),
    _mini("chat", "openai_chat"),
    _mini("responses", "openai_responses"),
    _mini("anthropic", "anthropic_messages"),
    _mini("gemini", "google_generate_content"),
    Speaker(MINI_TEXT, "openai_chat", {"api": "text"}),
]


def those(which: Callable[[Speaker], object] = lambda _: True, *, always: bool = False) -> pytest.MarkDecorator:
    """The parameter `speaker`: all of whom `which` holds; with `always` the first of pi, Claude Code and Codex in the default suite."""
    chosen = [speaker for speaker in SPEAKERS if which(speaker)]
    first = {one.harness: next(s for s in SPEAKERS if s.specimen is one) for one in ALWAYS} if always else {}
    return pytest.mark.parametrize(
        "speaker",
        [
            pytest.param(one, id=str(one), marks=() if one in first.values() else pytest.mark.harnesses)
            for one in chosen
        ],
    )
