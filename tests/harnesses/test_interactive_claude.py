"""Claude Code's interactive mode."""

from __future__ import annotations

from dataclasses import replace

import pytest

from consumers.harnesses.base import Launch
from consumers.runtimes.process import ProcessRuntime
from tests.consumers.conftest import backend  # noqa: F401 - a fixture
from tests.consumers.harnesses.conftest import Models
from tests.consumers.harnesses.specimens import WORKSPACE, call
from tests.harnesses.conftest import Told
from tests.harnesses.interactive import NEW, Step, Tui, assert_kinds, played
from tests.harnesses.outcome import assert_traces
from tests.harnesses.test_side_calls import playing, speaker_of

pytestmark = pytest.mark.harnesses

SPEAKER = speaker_of("claude_code")
assert SPEAKER.delegate


def _claude(launch: Launch, resumes: bool) -> Launch:
    assert isinstance(launch.command, tuple)
    left_out = ("--print", "--dangerously-skip-permissions")
    command = tuple(word for word in launch.command if word not in left_out)
    command += ("--permission-mode", "default")
    env = {name: value for name, value in launch.env.items() if name != "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"}
    return replace(launch, command=(*command, "--continue") if resumes else command, env=env, stdin=None)


CLAUDE_CODE = Tui(
    SPEAKER,
    ready=r"\? for shortcuts|manual mode on",
    launches=_claude,
    files={
        ".claude.json": """{"hasCompletedOnboarding": true, "customApiKeyResponses": {"approved": ["{key_end}"]},
        "projects": {"{workspace}": {"hasTrustDialogAccepted": true}}}""",
    },
    beside=(playing("title", "naming a coding session", {"text": '{"title": "Text"}'}),),
    first=(
        Step(
            "Mend the text.",
            (
                {"text": "I look first.", "calls": [call("Read", file_path="a.txt")]},
                {"calls": [call("Edit", file_path=f"{WORKSPACE}/a.txt", old_string="wrong", new_string="right")]},
                {"text": "The text is right."},
            ),
            keys=(("Do you want to make this edit", "enter"),),
            shown="The text is right",
        ),
        Step(
            "Weigh the tea.",
            ({"calls": [call("mcp__scales__weigh", thing="Tea")]}, {"text": "The tea is weighed."}),
            keys=(("Do you want to proceed", "enter"),),
            shown="The tea is weighed",
        ),
        Step(
            "Let another find it.",
            (SPEAKER.delegate, *SPEAKER.after, {"text": "The other has found it."}),
            shown="The other has found it",
        ),
        Step(" What is this?", ({"text": "It is all red."},), image=r"\[Image #1\]", shown="It is all red"),
        Step(
            "Plan the rest.",
            ({"calls": [call("ExitPlanMode")]}, {"text": "The plan stands."}),
            first=(("shift-tab", "accept edits on"), ("shift-tab", "plan mode on")),
            keys=(("Exit plan mode|Would you like to proceed", "enter"),),
            shown="The plan stands",
        ),
    ),
    resumed=(
        Step("Go on.", ({"text": "There is no more."},), shown="There is no more"),
        Step("/compact", ({"text": f"<summary>A {NEW} was seen.</summary>"},), shown="Compacted", kind="compaction"),
        Step("Is there anything else.", ({"text": "Nothing is left."},), shown="Nothing is left", is_new=True),
    ),
)


async def test_of_an_interactive_session_the_work_alone_is_trained(
    runtime: ProcessRuntime, model: Models, tell: Told
) -> None:
    outcome = await played(CLAUDE_CODE, runtime, model)
    tell(CLAUDE_CODE.speaker, "interactive", outcome)
    assert await runtime.read_file("a.txt", 100) == b"this is right\n"
    assert_kinds(CLAUDE_CODE, outcome)
    # Its resumed history and its compaction go on as the same trace.
    work = outcome.playing("mend")
    assert_traces(outcome, work, outcome.playing("subagent"), outcome.playing("again"))
    assert set(outcome.trajectory.stats.masked_tokens) == {"side_call"}
    (seen,) = (each for each in outcome.calls if each.media)
    assert seen in work
