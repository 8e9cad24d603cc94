"""Gemini CLI's interactive mode. It makes no titles."""

from __future__ import annotations

from dataclasses import replace

import pytest

from consumers.harnesses.base import Launch
from consumers.runtimes.process import ProcessRuntime
from tests.consumers.conftest import backend  # noqa: F401 - a fixture
from tests.consumers.harnesses.conftest import Models
from tests.consumers.harnesses.specimens import call
from tests.harnesses.conftest import Told
from tests.harnesses.interactive import KEPT, NEW, Step, Tui, assert_kinds, played
from tests.harnesses.outcome import assert_traces
from tests.harnesses.test_side_calls import playing, speaker_of

pytestmark = pytest.mark.harnesses

SPEAKER = speaker_of("gemini_cli")
assert SPEAKER.delegate


def _launch(launch: Launch, resumes: bool) -> Launch:
    assert isinstance(launch.command, tuple)
    return replace(launch, command=(*launch.command, *(("--resume", "latest") if resumes else ())), stdin=None)


MEND = call("replace", file_path="a.txt", instruction="mend", old_string="wrong", new_string="right")
GEMINI_CLI = Tui(
    SPEAKER,
    ready="Type your message",
    is_empty="Type your message",
    launches=_launch,
    leave="ctrl-d",
    beside=(
        playing("compaction", "state_snapshot", *[{"text": f"<state_snapshot>A {NEW}.</state_snapshot>"}] * KEPT * 2),
    ),
    first=(
        Step(
            "Mend the text.",
            (
                {"text": "I look first.", "calls": [call("read_file", file_path="a.txt")]},
                {"calls": [MEND]},
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
            (SPEAKER.delegate, *SPEAKER.after, {"text": "The other has found it."}),
            shown="The other has found it",
        ),
        Step("Look at @image.png and say what you see there.", ({"text": "It is all red."},), shown="It is all red"),
    ),
    resumed=(
        Step("Go on.", ({"text": "There is no more."},), shown="There is no more"),
        Step("/compress", (), shown="compressed"),
        Step("Is there anything else.", ({"text": "Nothing is left."},), shown="Nothing is left", is_new=True),
    ),
)


async def test_of_an_interactive_session_the_work_and_its_compaction_are_trained(
    runtime: ProcessRuntime, model: Models, tell: Told
) -> None:
    outcome = await played(GEMINI_CLI, runtime, model)
    tell(GEMINI_CLI.speaker, "interactive", outcome)
    assert await runtime.read_file("a.txt", 100) == b"this is right\n"
    assert_kinds(GEMINI_CLI, outcome)
    subagent, first, second = outcome.playing("subagent"), *([each] for each in outcome.playing("compaction"))
    # A resumed history repeats what a tool said, so it begins a trace; the second compaction judges the first.
    *work, resumed = outcome.playing("mend")
    assert_traces(outcome, work, [resumed], subagent, first, second, outcome.playing("again"))
    assert not outcome.trajectory.stats.masked_tokens
    assert [each.call_id for each in outcome.calls if each.media] == [work[-1].call_id, resumed.call_id]
