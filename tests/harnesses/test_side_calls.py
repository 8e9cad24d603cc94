"""CLIs with what the presets turn off: their calls beside the work are recognised, and the work alone is trained."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from consumers.harnesses.base import Launch
from consumers.runtimes.base import Runtime
from tests.consumers.harnesses.conftest import Model, Models, launched, set_up
from tests.consumers.harnesses.specimens import call
from tests.harnesses.outcome import Outcome, assert_captured, assert_one_trace, outcome_of
from tests.harnesses.speakers import SPEAKERS, Speaker
from tests.harnesses.test_runs import INSTRUCTION, script
from topics.types.agent import AgentSpec
from topics.types.completion import Completion

pytestmark = pytest.mark.harnesses


def speaker_of(harness: str) -> Speaker:
    return next(speaker for speaker in SPEAKERS if speaker.specimen.harness == harness)


def playing(name: str, system: str, *turns: dict[str, Any]) -> dict[str, Any]:
    """A script for calls with this system prompt."""
    return {"name": name, "match": "", "system": system, "variants": [{"turns": list(turns)}]}


async def set_up_for(speaker: Speaker, runtime: Runtime, served: Model) -> tuple[Launch, AgentSpec]:
    agent = AgentSpec(harness=speaker.specimen.harness, model_name=served.access.model_name, settings=speaker.settings)
    return await set_up(runtime, served.access, INSTRUCTION, agent), agent


def assert_work_alone_is_trained(outcome: Outcome, speaker: Speaker, beside: list[Completion]) -> None:
    assert beside
    assert_captured(outcome, speaker.dialect)
    assert_one_trace(outcome, outcome.playing("mend"))
    assert len(outcome.trajectory.traces) == 1
    assert set(outcome.trajectory.stats.masked_tokens) == {"side_call"}


async def test_the_classifier_of_claude_codes_auto_mode_is_no_work(runtime: Runtime, model: Models) -> None:
    speaker = speaker_of("claude_code")
    risky = {"calls": [call("Bash", command="git push --force origin main; echo made >c.txt", description="push")]}
    monitor = playing("monitor", "You are a security monitor", {"text": "<block>no</block>"})
    async with model(script(speaker, runtime, risky), before=(monitor,)) as served:
        launch, agent = await set_up_for(speaker, runtime, served)
        assert isinstance(launch.command, tuple)
        kept = [word for word in launch.command if word != "--dangerously-skip-permissions"]
        # It has no auto mode for models that it doesn't know.
        kept[kept.index("--model") + 1] = "claude-opus-4-6"
        env = {name: value for name, value in launch.env.items() if name != "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"}
        launch = replace(launch, command=(*kept, "--permission-mode", "auto"), env=env)
        result = await launched(runtime, served.access, launch, agent)
        assert result.exit_code == 0, result.tail
        outcome = await outcome_of(served)
    assert await runtime.read_file("c.txt", 100) == b"made\n"
    assert_work_alone_is_trained(outcome, speaker, outcome.playing("monitor"))
    assert {each.kind for each in outcome.playing("monitor")} == {"classifier"}


async def test_the_agent_that_extracts_qwen_codes_memories_is_no_work(runtime: Runtime, model: Models) -> None:
    speaker = speaker_of("qwen_code")
    # Its prompt repeats the work's only answer, so it gets the second turn.
    memory = playing("memory", "managed memory extraction", {"text": "-"}, {"text": "Nothing to keep."})
    async with model(script(speaker, runtime), before=(memory,)) as served:
        launch, agent = await set_up_for(speaker, runtime, served)
        file = runtime.home / ".qwen" / "settings.json"
        settings = json.loads(await runtime.read_file(file, 100_000))
        del settings["memory"]
        await runtime.write_file(file, json.dumps(settings).encode())
        result = await launched(runtime, served.access, launch, agent)
        assert result.exit_code == 0, result.tail
        outcome = await outcome_of(served)
    assert_work_alone_is_trained(outcome, speaker, outcome.playing("memory"))
    assert {each.kind for each in outcome.playing("memory")} == {"memory"}
