"""opencode's interactive mode, with its plan agent, an MCP server, a sub-agent and an image."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

import pytest

from consumers.harnesses.base import Launch
from consumers.runtimes.process import ProcessRuntime
from tests.consumers.conftest import backend  # noqa: F401 - a fixture
from tests.consumers.harnesses.conftest import MODEL, Models
from tests.consumers.harnesses.specimens import call
from tests.harnesses.conftest import Told
from tests.harnesses.interactive import NEW, Step, Tui, played
from tests.harnesses.outcome import assert_captured, assert_traces
from tests.harnesses.test_side_calls import playing, speaker_of

pytestmark = pytest.mark.harnesses

SEES = {"attachment": True, "modalities": {"input": ["text", "image"], "output": ["text"]}}
PERSONAL = {
    "model": f"polar/{MODEL}",
    "small_model": f"polar/{MODEL}",
    "provider": {"polar": {"models": {MODEL: SEES}}},
}
"""A person's settings on top of the preset's: the model reads images."""


def _launch(launch: Launch, resumes: bool) -> Launch:
    assert isinstance(launch.command, str)
    program = shlex.split(launch.command)[0]
    words = (program, "--continue") if resumes else (program,)
    return replace(
        launch, command=words, env={**launch.env, "OPENCODE_CONFIG_CONTENT": json.dumps(PERSONAL)}, stdin=None
    )


OPENCODE = Tui(
    speaker_of("opencode"),
    ready=r"ctrl\+p",
    launches=_launch,
    beside=(
        playing("title", "title generator", {"text": "Text"}),
        playing("compaction", "context summarization agent", {"text": f"The text was mended for {NEW}."}),
    ),
    first=(
        Step(
            "Mend the text.",
            (
                {"text": "I look first.", "calls": [call("read", filePath="a.txt")]},
                {"calls": [call("edit", filePath="a.txt", oldString="wrong", newString="right")]},
                {"text": "The text is right."},
            ),
            shown=r"The text is right",
        ),
        Step(
            "Weigh the tea.",
            ({"calls": [call("scales_weigh", thing="Tea")]}, {"text": "The tea is weighed."}),
            shown="The tea is weighed",
        ),
        Step(
            "Have it found.",
            (
                {"calls": [call("task", description="find", prompt="Find the Zebra.", subagent_type="general")]},
                {"text": "It was found."},
            ),
            shown="It was found",
        ),
        Step(" What is this?", ({"text": "It is all red."},), image=r"\[Image 1\]", shown="It is all red"),
        Step("Make a plan.", ({"text": "First this, then that."},), first=(("tab", "Plan · "),), shown="First this"),
    ),
    resumed=(
        Step("Go on.", ({"text": "There is no more."},), shown="There is no more"),
        Step("/compact", (), shown=NEW),
    ),
)


async def test_of_an_interactive_session_the_work_alone_is_trained(
    runtime: ProcessRuntime, model: Models, tell: Told
) -> None:
    outcome = await played(OPENCODE, runtime, model)
    tell(OPENCODE.speaker, "interactive", outcome)
    assert await runtime.read_file("a.txt", 100) == b"this is right\n"
    assert_captured(outcome, OPENCODE.speaker.dialect)
    kinds = {"title": ["title"], "subagent": ["subagent"] * 2, "compaction": ["compaction"], "mend": ["main"] * 10}
    assert {script: [each.kind for each in outcome.playing(script)] for script in kinds} == kinds
    assert len(outcome.calls) == 14
    *work, plan, resumed = outcome.playing("mend")
    # The plan agent has other tools, and its reminder stands in the newest prompt alone.
    traces = (work, outcome.playing("subagent"), [plan], [resumed], outcome.playing("compaction"))
    assert_traces(outcome, *traces)
    assert set(outcome.trajectory.stats.masked_tokens) == {"side_call"}
    assert [medium.media_type for medium in work[-1].media] == ["image/png"]
