"""Codex's interactive mode."""

from __future__ import annotations

from dataclasses import replace

import pytest

from consumers.harnesses.base import Launch
from consumers.runtimes.process import ProcessRuntime
from tests.consumers.conftest import backend  # noqa: F401 - a fixture
from tests.consumers.harnesses.conftest import Models
from tests.consumers.harnesses.specimens import call
from tests.harnesses.conftest import Told
from tests.harnesses.interactive import NEW, Step, Tui, assert_kinds, played
from tests.harnesses.outcome import assert_traces
from tests.harnesses.test_side_calls import speaker_of

pytestmark = pytest.mark.harnesses

SPEAKER = speaker_of("codex")
assert SPEAKER.delegate


def _launch(launch: Launch, resumes: bool) -> Launch:
    assert isinstance(launch.command, tuple)
    program = launch.command[: launch.command.index("exec")]
    words = ("resume", "--last") if resumes else ()
    # The server that it starts in the background outlives it.
    return replace(
        launch, command=(*program, *words, "--no-daemon", "--dangerously-bypass-approvals-and-sandbox"), stdin=None
    )


def _done(text: str) -> str:
    """A regular expression: it has said this, and its turn is over. Sooner, a prompt is put off and `/compact` is refused."""
    return rf"{text}[\s\S]*Worked for"


CODEX = Tui(
    SPEAKER,
    ready=" default · ",
    launches=_launch,
    beside=({"name": "title", "match": "single-line task title", "variants": [{"turns": [{"text": "Text"}]}]},),
    first=(
        Step(
            "Mend the text.",
            (
                {"text": "I look first.", "calls": [call("exec_command", cmd="cat a.txt")]},
                {"calls": [call("exec_command", cmd="sed -i s/wrong/right/ a.txt")]},
                {"text": "The text is right."},
            ),
            shown=_done("The text is right"),
        ),
        Step(
            "Weigh the tea.",
            ({"calls": [call("mcp__scales__weigh", thing="Tea")]}, {"text": "The tea is weighed."}),
            shown=_done("The tea is weighed"),
        ),
        Step(
            "Let another find it.",
            (SPEAKER.delegate, *SPEAKER.after, {"text": "The other has found it."}),
            shown=_done("The other has found it"),
        ),
        Step(" What is this?", ({"text": "It is all red."},), image=r"\[Image #1\]", shown=_done("It is all red")),
    ),
    resumed=(
        Step("Go on.", ({"text": "There is no more."},), shown=_done("There is no more")),
        Step("/compact", ({"text": f"A {NEW} was seen."},), shown="Context compacted", kind="compaction"),
        Step("Is there anything else.", ({"text": "Nothing is left."},), shown=_done("Nothing is left"), is_new=True),
    ),
)


async def test_of_an_interactive_session_the_work_alone_is_trained(
    runtime: ProcessRuntime, model: Models, tell: Told
) -> None:
    outcome = await played(CODEX, runtime, model)
    tell(CODEX.speaker, "interactive", outcome)
    assert await runtime.read_file("a.txt", 100) == b"this is right\n"
    assert_kinds(CODEX, outcome)
    subagent, again = outcome.playing("subagent"), outcome.playing("again")
    # Its resumed history goes on as the same trace; a compaction has other instructions than the work.
    *work, compaction = outcome.playing("mend")
    assert_traces(outcome, work, [compaction], subagent, again)
    assert set(outcome.trajectory.stats.masked_tokens) == {"side_call"}
    assert [each.call_id for each in outcome.calls if each.media] == [work[-2].call_id, compaction.call_id]
