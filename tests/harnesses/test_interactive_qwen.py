"""Qwen Code's interactive mode in its auto mode, with an MCP server, a sub-agent, an image, a suggestion, plan mode and a compaction."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from consumers.harnesses.base import Launch
from consumers.runtimes.process import ProcessRuntime
from tests.consumers.conftest import backend  # noqa: F401 - a fixture
from tests.consumers.harnesses.conftest import Models
from tests.consumers.harnesses.specimens import WORKSPACE, call
from tests.harnesses.conftest import Told
from tests.harnesses.interactive import NEW, Step, Tui, played
from tests.harnesses.outcome import assert_captured, assert_traces
from tests.harnesses.test_side_calls import playing, speaker_of

pytestmark = pytest.mark.harnesses

SPEAKER = speaker_of("qwen_code")
assert SPEAKER.delegate

PERSONAL = {
    "tools": {"approvalMode": "auto"},
    "ui": {"autoModeAcknowledged": True, "enableFollowupSuggestions": False},
    "model": {"generationConfig": {"modalities": {"image": True}}},
}
SUGGESTING = {**PERSONAL, "ui": {"autoModeAcknowledged": True}}
"""A suggestion is a call at the end of the conversation, and gets the text of the turn that comes next."""
SUGGESTED = "weigh the coffee too"


def _launch(launch: Launch, resumes: bool) -> Launch:
    assert isinstance(launch.command, tuple)
    command = [word for word in launch.command if word != "--yolo"]
    file = "suggesting.json" if resumes else "personal.json"
    script = f'QWEN_CODE_SYSTEM_SETTINGS_PATH=~/{file} exec "$@"'
    return replace(
        launch, command=("bash", "-c", script, "-", *command, *(["--continue"] if resumes else [])), stdin=None
    )


QWEN_CODE = Tui(
    SPEAKER,
    ready="Type your message",
    launches=_launch,
    files={"personal.json": json.dumps(PERSONAL), "suggesting.json": json.dumps(SUGGESTING)},
    leave="/quit",
    beside=(
        playing(
            "classifier", "You are a security classifier", {"calls": [call("respond_in_schema", shouldBlock=False)]}
        ),
    ),
    first=(
        Step(
            "Mend the text.",
            (
                {"text": "I look first.", "calls": [call("read_file", file_path=f"{WORKSPACE}/a.txt")]},
                {
                    "calls": [
                        call("edit", file_path=f"{WORKSPACE}/a.txt", old_string="wrong", new_string="right"),
                    ]
                },
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
            (SPEAKER.delegate, *SPEAKER.after, {"text": "The other has found it."}),
            shown="The other has found it",
        ),
        Step("Look at @image.png now.", ({"text": "It is all red."},), shown="It is all red"),
    ),
    resumed=(
        Step("Go on.", ({"text": "There is no more."},), shown="There is no more"),
        Step(
            "Plan the rest.",
            ({"text": json.dumps({"suggestion": SUGGESTED, "note": "planned"})},),
            first=(("", SUGGESTED), ("shift-tab", "YOLO mode"), ("shift-tab", "plan mode")),
            shown='"note": "planned"',
        ),
        Step(
            "/compress",
            ({"text": f"<state_snapshot>A {NEW} was seen.</state_snapshot>"},),
            shown="[Cc]ompressed",
            kind="compaction",
        ),
        Step("And now?", ({"text": "It stays right."},), shown="It stays right", is_new=True),
    ),
)


async def test_of_an_interactive_session_the_work_alone_is_trained(
    runtime: ProcessRuntime, model: Models, tell: Told
) -> None:
    outcome = await played(QWEN_CODE, runtime, model)
    tell(QWEN_CODE.speaker, "interactive", outcome)
    assert await runtime.read_file("a.txt", 100) == b"this is right\n"
    assert_captured(outcome, QWEN_CODE.speaker.dialect)
    assert outcome.kinds == {"classifier": 2, "suggestion": 1, "compaction": 1}
    assert {each.kind for each in outcome.playing("classifier")} == {"classifier"}
    *work, resumed, suggestion, plan, compaction = outcome.playing("mend")
    assert (suggestion.kind, compaction.kind) == ("suggestion", "compaction")
    # A resumed history lacks the reminder of the date, so it begins a trace, which the compaction ends.
    traces = (work, [resumed, plan, compaction], outcome.playing("subagent"), outcome.playing("again"))
    assert_traces(outcome, *traces)
    assert sum(map(len, traces)) + 3 == len(outcome.calls)
    assert set(outcome.trajectory.stats.masked_tokens) == {"side_call"}
    assert [each.call_id for each in outcome.calls if each.media] == [work[-1].call_id, resumed.call_id]
