"""Interactive modes of CLIs, as a person uses them in a terminal: the work alone is trained."""

from __future__ import annotations

from dataclasses import replace

import pytest

from consumers.harnesses.base import Launch
from consumers.runtimes.process import ProcessRuntime
from tests.consumers.conftest import backend  # noqa: F401 - a fixture
from tests.consumers.harnesses.conftest import Models
from tests.consumers.harnesses.specimens import WORKSPACE, Turn, call
from tests.harnesses.conftest import Told
from tests.harnesses.interactive import NEW, Step, Tui, assert_work_alone_is_trained, played
from tests.harnesses.test_side_calls import playing, speaker_of

pytestmark = pytest.mark.harnesses


def _delegates(harness: str) -> tuple[Turn, ...]:
    """Leave the work to a sub-agent, and wait."""
    speaker = speaker_of(harness)
    assert speaker.delegate is not None
    return (speaker.delegate, *speaker.after)


def _claude(launch: Launch, resumes: bool) -> Launch:
    assert isinstance(launch.command, tuple)
    left_out = ("--print", "--dangerously-skip-permissions")
    command = tuple(word for word in launch.command if word not in left_out)
    command += ("--permission-mode", "default")
    env = {name: value for name, value in launch.env.items() if name != "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"}
    return replace(launch, command=(*command, "--continue") if resumes else command, env=env, stdin=None)


CLAUDE_CODE = Tui(
    speaker_of("claude_code"),
    ready=r"\? for shortcuts|manual mode on",
    launches=_claude,
    kept=1,
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
            (*_delegates("claude_code"), {"text": "The other has found it."}),
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
        Step("And now?", ({"text": "Nothing is left."},), shown="Nothing is left", is_new=True),
    ),
)


def _codex(launch: Launch, resumes: bool) -> Launch:
    assert isinstance(launch.command, tuple)
    program = launch.command[: launch.command.index("exec")]
    words = ("resume", "--last") if resumes else ()
    return replace(launch, command=(*program, *words, "--dangerously-bypass-approvals-and-sandbox"), stdin=None)


CODEX = Tui(
    speaker_of("codex"),
    ready=r"\? for shortcuts|context left|› ",
    launches=_codex,
    beside=({"name": "title", "match": "single-line task title", "variants": [{"turns": [{"text": "Text"}]}]},),
    first=(
        Step(
            "Mend the text.",
            (
                {"text": "I look first.", "calls": [call("exec_command", cmd="cat a.txt")]},
                {"calls": [call("exec_command", cmd="sed -i s/wrong/right/ a.txt")]},
                {"text": "The text is right."},
            ),
            shown="The text is right",
        ),
        Step(
            "Weigh the tea.",
            ({"calls": [call("mcp__scales__weigh", thing="Tea")]}, {"text": "The tea is weighed."}),
            shown="The tea is weighed",
        ),
        Step(
            "Let another find it.",
            (*_delegates("codex"), {"text": "The other has found it."}),
            shown="The other has found it",
        ),
        Step(" What is this?", ({"text": "It is all red."},), image=r"\[Image #1\]", shown="It is all red"),
        Step(
            "Plan the rest.",
            ({"text": "The plan stands."},),
            first=(("shift-tab", "Plan mode"),),
            shown="The plan stands",
        ),
    ),
    resumed=(
        Step("Go on.", ({"text": "There is no more."},), shown="There is no more"),
        Step("/compact", ({"text": f"A {NEW} was seen."},), shown="Context compacted", kind="compaction"),
        Step("And now?", ({"text": "Nothing is left."},), shown="Nothing is left", is_new=True),
    ),
)


def _gemini(launch: Launch, resumes: bool) -> Launch:
    assert isinstance(launch.command, tuple)
    return replace(launch, command=(*launch.command, *(("--resume", "latest") if resumes else ())), stdin=None)


GEMINI_CLI = Tui(
    speaker_of("gemini_cli"),
    ready="Type your message",
    launches=_gemini,
    leave="/quit",
    first=(
        Step(
            "Mend the text.",
            (
                {"text": "I look first.", "calls": [call("read_file", file_path="a.txt")]},
                {
                    "calls": [
                        call("replace", file_path="a.txt", instruction="mend", old_string="wrong", new_string="right")
                    ]
                },
                {"text": "The text is right."},
            ),
            shown="The text is right",
        ),
        Step(
            "Weigh the tea.",
            ({"calls": [call("mcp_scales_weigh", thing="Tea")]}, {"text": "The tea is weighed."}),
            shown="The tea is weighed",
        ),
        Step(
            "Let another find it.",
            (*_delegates("gemini_cli"), {"text": "The other has found it."}),
            shown="The other has found it",
        ),
        Step("Look at @image.png and say what you see there.", ({"text": "It is all red."},), shown="It is all red"),
    ),
    resumed=(
        Step("Go on.", ({"text": "There is no more."},), shown="There is no more"),
        Step(
            "/compress",
            (
                {"text": f"<state_snapshot>A {NEW} was seen.</state_snapshot>"},
                {"text": f"<state_snapshot>The {NEW} was seen.</state_snapshot>"},
            ),
            shown="compressed",
            kind="compaction",
        ),
        Step("And now?", ({"text": "Nothing is left."},), shown="Nothing is left", is_new=True),
    ),
)


@pytest.mark.parametrize("tui", [CLAUDE_CODE, CODEX, GEMINI_CLI], ids=str)
async def test_of_an_interactive_session_the_work_alone_is_trained(
    tui: Tui, runtime: ProcessRuntime, model: Models, tell: Told
) -> None:
    outcome = await played(tui, runtime, model)
    tell(tui.speaker, "interactive", outcome)
    assert_work_alone_is_trained(tui, outcome)
