"""Interactive modes of CLIs, as a person uses them in a terminal: the work alone is trained."""

from __future__ import annotations

from dataclasses import replace

import pytest

from consumers.harnesses.base import Launch
from consumers.runtimes.process import ProcessRuntime
from tests.consumers.conftest import backend  # noqa: F401 - a fixture
from tests.consumers.harnesses.conftest import Models
from tests.consumers.harnesses.specimens import WORKSPACE, call
from tests.harnesses.conftest import Told
from tests.harnesses.interactive import Step, Tui, assert_work_alone_is_trained, played
from tests.harnesses.test_side_calls import playing, speaker_of

pytestmark = pytest.mark.harnesses


def _claude(launch: Launch, resumes: bool) -> Launch:
    assert isinstance(launch.command, tuple)
    left_out = ("--print", "--dangerously-skip-permissions")
    command = tuple(word for word in launch.command if word not in left_out)
    env = {name: value for name, value in launch.env.items() if name != "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"}
    return replace(launch, command=(*command, "--continue") if resumes else command, env=env, stdin=None)


CLAUDE_CODE = Tui(
    speaker_of("claude_code"),
    ready=r"\? for shortcuts",
    launches=_claude,
    dialogs={
        "Choose the text style": "enter",
        "Detected a custom API key": "up",
        "1. Yes\\s": "enter",
        "Security notes": "enter",
        "trust this folder": "enter",
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
    ),
    resumed=(Step("Go on.", ({"text": "There is no more."},), shown="There is no more"),),
)


@pytest.mark.parametrize("tui", [CLAUDE_CODE], ids=str)
async def test_of_an_interactive_session_the_work_alone_is_trained(
    tui: Tui, runtime: ProcessRuntime, model: Models, tell: Told
) -> None:
    outcome = await played(tui, runtime, model)
    tell(tui.speaker, "interactive", outcome)
    assert_work_alone_is_trained(tui, outcome)
