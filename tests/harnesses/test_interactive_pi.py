"""pi's interactive mode. It makes no titles, and has no plan mode, no MCP servers and no sub-agents; images come by its tool `read`."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from consumers.harnesses.base import Launch
from consumers.runtimes.process import ProcessRuntime
from tests.consumers.conftest import backend  # noqa: F401 - a fixture
from tests.consumers.harnesses.conftest import Models
from tests.consumers.harnesses.specimens import call
from tests.harnesses.conftest import Told
from tests.harnesses.interactive import NEW, Step, Tui, played
from tests.harnesses.outcome import assert_captured, assert_traces
from tests.harnesses.test_side_calls import playing, speaker_of

pytestmark = pytest.mark.harnesses

SEES = """sed -i 's/"id":/"input": ["text", "image"], "id":/' ~/.pi/agent/models.json"""
"""A person says so whose model reads images."""


def _launch(launch: Launch, resumes: bool) -> Launch:
    assert isinstance(launch.command, tuple)
    command = [word for word in launch.command if word not in ("--print", "--mode", "text")]
    return replace(launch, command=shlex.join(command) if resumes else f"{SEES}; {shlex.join(command)}", stdin=None)


PI = Tui(
    speaker_of("pi"),
    # Its last words of the start: it takes prompts no earlier. A machine with `fd` and `rg` in PATH shows nothing of the kind.
    ready="ripgrep not found|fd not found",
    launches=_launch,
    leave="/quit",
    has_servers=False,
    files={".pi/agent/settings.json": '{"compaction": {"keepRecentTokens": 1}}'},
    beside=(playing("compaction", "context summarization assistant", {"text": f"The text was mended for {NEW}."}),),
    first=(
        Step(
            "Mend the text.",
            (
                {"text": "I look first.", "calls": [call("read", path="a.txt")]},
                {"calls": [call("write", path="a.txt", content="this is right\n")]},
                {"text": "The text is right."},
            ),
            shown="The text is right",
        ),
        Step(
            "Look at the image.",
            ({"calls": [call("read", path="image.png")]}, {"text": "It is red."}),
            shown="It is red",
        ),
    ),
    resumed=(
        Step("Go on.", ({"text": "There is no more."},), shown="There is no more"),
        Step("/compact", (), shown="Compacted from"),
        # Its history begins with the summary, and repeats the answer before it.
        Step("And now?", ({"text": "-"}, {"text": "It stays right."}), shown="It stays right", is_new=True),
    ),
)


async def test_of_an_interactive_session_the_work_and_its_compaction_are_trained(
    runtime: ProcessRuntime, model: Models, tell: Told
) -> None:
    outcome = await played(PI, runtime, model)
    tell(PI.speaker, "interactive", outcome)
    assert await runtime.read_file("a.txt", 100) == b"this is right\n"
    assert_captured(outcome, PI.speaker.dialect)
    # It summarises the last turn's beginning apart from what was before.
    assert [each.kind for each in outcome.calls] == [*["main"] * 6, "compaction", "compaction", "main"]
    *work, history, turn, after = outcome.calls
    assert_traces(outcome, work, [history], [turn], [after])
    assert not outcome.trajectory.stats.masked_tokens
    assert [medium.media_type for each in work[4:5] for medium in each.media] == ["image/png"]
