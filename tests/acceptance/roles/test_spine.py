"""The spine, each role a process of its own: calls of a harness become exact trajectories."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
import pytest

from tests.acceptance.fleet import Fleet
from tests.waiting import eventually
from topics.environment import settings
from topics.log import kafka
from topics.types.session import Status
from topics.types.trajectory import GroupFinished, Trajectory, expand

pytestmark = pytest.mark.asyncio(loop_scope="session")

SAMPLES = 8
TURNS = 6


async def submitted(system: Fleet, task: dict[str, Any], *, code: int = 0) -> list[Trajectory]:
    """Submit, wait for the end, and give the task's trajectories by sample index."""
    exit_code, _, said = await system.polar("submit", "-", "--wait", stdin=json.dumps(task))
    assert exit_code == code, said
    outputs = [output for output in await system.outputs() if output.task_id == task["task_id"]]
    (group,) = [output for output in outputs if isinstance(output, GroupFinished)]
    found = sorted((o for o in outputs if isinstance(o, Trajectory)), key=lambda t: t.sample_index)
    assert (
        [t.session_id for t in found]
        == group.session_ids
        == [f"{task['task_id']}.{i}" for i in range(task["num_samples"])]
    )
    assert group.rewards == [t.reward for t in found]
    assert await system.dead_letters() == 0
    assert system.leftovers() == []
    return found


async def test_growing_calls_are_one_trace_of_exactly_what_the_engine_sampled(system: Fleet) -> None:
    for trajectory in await submitted(system, system.task("growing", TURNS, SAMPLES)):
        assert (trajectory.status, trajectory.reward, trajectory.stats.calls) == (Status.COMPLETED, 1.0, TURNS)
        sampled = system.sampled(trajectory.session_id)
        (trace,) = trajectory.traces
        written = expand(trajectory, trace)
        trained = written.loss_mask == 1
        assert written.token_ids[trained].tolist() == [t for call in sampled for t in call.token_ids]
        truth = np.array([x for call in sampled for x in call.logprobs], dtype=np.float32)
        assert (written.logprobs[trained] == truth).all()
        last = sampled[-1]
        assert written.token_ids.tolist() == [*last.prompt_token_ids, *last.token_ids]
        assert trajectory.stats.tokens == len(written.token_ids), "the tree holds each token once"


async def test_per_request_gives_a_trace_a_call_over_the_same_tree(system: Fleet) -> None:
    task = system.task("single", TURNS, 2, builder={"strategy": "per_request"})
    for trajectory in await submitted(system, task):
        sampled = system.sampled(trajectory.session_id)
        traces = [expand(trajectory, trace) for trace in trajectory.traces]
        assert [t.token_ids.tolist() for t in traces] == [[*c.prompt_token_ids, *c.token_ids] for c in sampled]
        assert [t.token_ids[t.loss_mask == 1].tolist() for t in traces] == [c.token_ids for c in sampled]
        assert trajectory.stats.tokens == len(traces[-1].token_ids)


async def test_a_run_over_its_budget_is_timed_out_evaluated_and_keeps_its_calls(system: Fleet) -> None:
    task = system.task("slow", 2, 2, timeout_seconds=10)
    # No call is under way then: one whose answer was lost with its harness would be the engine's alone.
    task["agent"]["custom_shell"]["command"] += "; sleep 600"
    for trajectory in await submitted(system, task):
        assert (trajectory.status, trajectory.reward) == (Status.TIMED_OUT, 0.0)
        assert trajectory.error is not None
        assert trajectory.error.code == "timeout"
        assert trajectory.stats.calls == 2
        assert trajectory.stats.trainable_tokens == sum(len(c.token_ids) for c in system.sampled(trajectory.session_id))


async def test_a_builder_that_only_the_builder_knows_and_that_refuses_its_config_is_said_everywhere(
    system: Fleet,
) -> None:
    builder = {"strategy": "consumers.builders.per_request:PerRequest", "config": {"zzz": 5}}
    task = system.task("unbuilt", 1, 1, builder=builder)
    (trajectory,) = await submitted(system, task, code=1)
    assert trajectory.error is not None
    assert (trajectory.status, trajectory.error.kind, trajectory.reward) == (Status.FAILED, "input", None)


async def test_a_harness_that_forks_daemons_leaves_none(system: Fleet) -> None:
    command = "setsid sleep 600 & (nohup setsid sh -c 'sleep 600 & sleep 600' >/dev/null 2>&1 &) ; exit 7"
    task = system.task("daemons", 1, 2)
    task["agent"]["custom_shell"]["command"] = command
    for trajectory in await submitted(system, task):
        assert trajectory.status is Status.FAILED
        assert trajectory.error is not None
        assert (trajectory.error.kind.value, trajectory.error.code) == ("agent", "exit_code")
        assert trajectory.reward == 0.0


async def test_an_engine_that_dies_costs_attempts_and_no_reward(system: Fleet) -> None:
    task = system.task("cut-off", 1000, 2, pause_s=0.05)
    task["agent"]["env"]["TRY_S"] = "0.5"
    ended = asyncio.create_task(submitted(system, task, code=1))
    await eventually(lambda: all(len(system.sampled(f"cut-off.{i}")) > 2 for i in range(2)), 60)
    await system.kill("engine")
    try:
        found = await ended
    finally:
        await system.start("engine")
    for trajectory in found:
        assert trajectory.error is not None
        assert (trajectory.status, trajectory.error.kind, trajectory.error.code) == (
            Status.FAILED,
            "infra",
            "model_failed",
        )
        assert (trajectory.reward, trajectory.attempt) == (None, 3)


async def test_bad_tasks_from_a_foreign_producer_end_as_dead_letters_and_the_rest_goes_on(system: Fleet) -> None:
    import aiokafka

    good = system.task("foreign", 1, 1)
    bodies: list[bytes] = [
        b"\xff\xfe",
        b"{not json",
        b"[]",
        json.dumps({**good, "task_id": "x", "numsamples": 2}).encode(),
    ]
    producer = aiokafka.AIOKafkaProducer(**kafka.connection(settings.load(system.data)))
    await producer.start()
    for number, body in enumerate([*bodies, json.dumps(good).encode()]):
        await producer.send_and_wait(f"{system.settings.namespace}.tasks", body, partition=number % 4)
    await producer.send_and_wait(f"{system.settings.namespace}.events", b"rubbish", partition=0)
    await producer.stop()
    code, _, said = await system.polar("submit", "-", "--wait", stdin=json.dumps(good))
    assert code == 0, said
    assert await system.dead_letters() == len(bodies) + 1
    assert "foreign.0" in {answer["session_id"] for answer in system.answered()}
