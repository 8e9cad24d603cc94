"""Every CLI, in every dialect that it speaks, at work through a real proxy and a real Kafka: what of it becomes trajectories."""

from __future__ import annotations

from consumers.runtimes.base import ExecResult, Runtime
from tests.consumers.harnesses.conftest import Model, Models, launched, set_up, worked
from tests.consumers.harnesses.specimens import Turn, in_workspace
from tests.harnesses.conftest import Told
from tests.harnesses.outcome import assert_captured, assert_one_trace, outcome_of
from tests.harnesses.speakers import Speaker, those
from topics.types.agent import AgentSpec

INSTRUCTION = "Mend the text."


async def work(speaker: Speaker, runtime: Runtime, served: Model) -> ExecResult:
    _, result = await worked(runtime, served.access, INSTRUCTION, speaker.specimen.harness, settings=speaker.settings)
    assert result.exit_code == 0, result.tail
    return result


def script(speaker: Speaker, runtime: Runtime, *turns: Turn) -> list[Turn]:
    return in_workspace([*turns, speaker.specimen.end], runtime.workspace)


@those(always=True)
async def test_a_plain_run_is_one_trace(speaker: Speaker, runtime: Runtime, model: Models, tell: Told) -> None:
    await runtime.write_file("a.txt", b"this is wrong\n")
    async with model(script(speaker, runtime, *speaker.specimen.turns)) as served:
        await work(speaker, runtime, served)
        outcome = await outcome_of(served)
    tell(speaker, "plain", outcome)
    assert await runtime.read_file("c.txt", 100) == b"this is right\n"
    assert_captured(outcome, speaker.dialect)
    assert len(outcome.calls) == len(speaker.specimen.turns) + 1
    assert_one_trace(outcome, outcome.calls)


@those(lambda speaker: speaker.parallel)
async def test_tools_that_are_called_at_once_stay_one_trace(
    speaker: Speaker, runtime: Runtime, model: Models, tell: Told
) -> None:
    await runtime.write_file("a.txt", b"this is right\n")
    both: Turn = {"text": "Now both.", "calls": list(speaker.parallel)}
    async with model(script(speaker, runtime, both, *speaker.specimen.turns[:1])) as served:
        await work(speaker, runtime, served)
        outcome = await outcome_of(served)
    tell(speaker, "parallel calls", outcome)
    assert await runtime.read_file("b.txt", 100) == b"made\n"
    assert await runtime.read_file("c.txt", 100) == b"this is right\n"
    assert_captured(outcome, speaker.dialect)
    assert_one_trace(outcome, outcome.calls)


@those(lambda speaker: speaker.delegate)
async def test_a_sub_agents_work_is_beside_the_main_agents_one_trace(
    speaker: Speaker, runtime: Runtime, model: Models, tell: Told
) -> None:
    assert speaker.delegate is not None
    zebra = {"name": "zebra", "match": "Zebra", "variants": [{"turns": list(speaker.delegated)}]}
    turns = script(speaker, runtime, speaker.delegate, *speaker.after)
    async with model(turns, before=(zebra,)) as served:
        await work(speaker, runtime, served)
        outcome = await outcome_of(served)
    tell(speaker, "sub-agent", outcome)
    assert_captured(outcome, speaker.dialect)
    subagent, main = outcome.playing("zebra"), outcome.playing("mend")
    assert (len(subagent), len(subagent) + len(main)) == (len(speaker.delegated), len(outcome.calls))
    assert_one_trace(outcome, main)
    assert_one_trace(outcome, subagent)
    assert outcome.kinds == ({"subagent": len(subagent)} if speaker.is_told else {})
    assert all(("session" in (each.lineage or {})) == speaker.is_told for each in subagent)


@those(lambda speaker: speaker.resume)
async def test_a_session_that_is_resumed_goes_on_as_the_same_trace(
    speaker: Speaker, runtime: Runtime, model: Models, tell: Told
) -> None:
    assert speaker.resume is not None
    await runtime.write_file("a.txt", b"this is wrong\n")
    first, *_, last = speaker.specimen.turns
    async with model(script(speaker, runtime, first, {"text": "That was it."}, last)) as served:
        await work(speaker, runtime, served)
        agent = AgentSpec(
            harness=speaker.specimen.harness, model_name=served.access.model_name, settings=speaker.settings
        )
        launch = await set_up(runtime, served.access, "Go on.", agent)
        result = await launched(runtime, served.access, speaker.resume(launch), agent)
        assert result.exit_code == 0, result.tail
        outcome = await outcome_of(served)
    tell(speaker, "resume", outcome)
    assert await runtime.read_file("c.txt", 100) == b"this is wrong\n"
    assert_captured(outcome, speaker.dialect)
    assert len(outcome.calls) == 4
    for part in speaker.parts:
        assert_one_trace(outcome, [outcome.calls[at] for at in part])
