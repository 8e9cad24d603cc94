"""What users write to `polar.tasks`, by whatever client, becomes a fact or a dead letter."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from consumers.fanout import plan_of, read, run_fanout
from consumers.metrics import Metrics
from tests.consumers.stages.coordinating import PATIENCE_S, Coordinator, shell
from tests.small_disks import fill, needs_root, small_disk
from tests.waiting import eventually
from topics import dead_letters, tasks
from topics.environment import blob_store
from topics.environment.blobs import FolderBlobs
from topics.environment.settings import Settings
from topics.events import TaskSubmitted
from topics.log import admin, kafka
from topics.types.errors import InputError
from topics.types.task import TaskRequest, body_hash

BODY: dict[str, Any] = {
    "task_id": "t1",
    "instruction": "Mend it.",
    "agent": {"harness": "shell", "custom_shell": {"command": "true"}},
}


UPLOAD = {"type": "upload_dir", "source": "/srv/repo", "target": "."}


@asynccontextmanager
async def fanning_out(settings: Settings, metrics: Metrics | None = None) -> AsyncIterator[None]:
    stop = asyncio.Event()
    running = asyncio.create_task(run_fanout(settings, stop, metrics))
    try:
        yield
    finally:
        stop.set()
        await asyncio.wait_for(running, 15)


async def write(coordinator: Coordinator, *values: bytes) -> None:
    """As a foreign producer would: no key, and so any partition."""
    name = tasks.TOPIC.full_name(coordinator.settings.namespace)
    for value in values:
        await coordinator.log.send_bytes(name, value)


async def letters(settings: Settings, count: int) -> list[dict[str, str]]:
    """The first dead letters: their headers, and `body`."""
    partition = kafka.TopicPartition(dead_letters.TOPIC.full_name(settings.namespace), 0)
    reader = kafka.consumer(settings)
    await reader.start()
    found: list[dict[str, str]] = []
    try:
        reader.assign([partition])
        async with asyncio.timeout(10):
            while len(found) < count:
                for record in (await reader.getmany(partition, timeout_ms=500)).get(partition, []):
                    headers = {name: value.decode() for name, value in record.headers}
                    found.append(headers | {"body": (record.value or b"").decode(errors="replace")})
    finally:
        await kafka.stop(reader, 2)
    return found


async def test_a_task_becomes_a_fact_and_a_large_one_goes_through_the_blob_store(
    settings: Settings, coordinator: Coordinator
) -> None:
    large = BODY | {"task_id": "large", "instruction": "é" * 400_000}

    def submitted(name: str) -> TaskSubmitted | None:
        facts = (fact for fact in coordinator.facts if isinstance(fact, TaskSubmitted))
        return next((fact for fact in facts if fact.task_id == name), None)

    async with fanning_out(settings):
        await write(coordinator, b"\xef\xbb\xbf" + json.dumps(BODY).encode(), json.dumps(large).encode())
        small_fact, large_fact = [await eventually(partial(submitted, name), PATIENCE_S) for name in ("t1", "large")]
    task = TaskRequest.model_validate(BODY)
    assert small_fact.body == task.canonical()
    assert small_fact.body_hash == body_hash(task.canonical())
    assert small_fact.plan == plan_of(task)
    assert large_fact.body is None
    assert large_fact.body_ref is not None
    stored = blob_store.of(settings).get(large_fact.body_ref)
    assert TaskRequest.model_validate_json(stored).instruction == large["instruction"]


@needs_root
async def test_a_large_task_waits_for_room_in_the_blob_store_and_small_ones_pass(
    settings: Settings, coordinator: Coordinator, tmp_path: Path
) -> None:
    large, small = BODY | {"task_id": "large", "instruction": "x" * 700_000}, BODY | {"task_id": "small"}
    after = BODY | {"task_id": "after"}

    def submitted() -> dict[str, TaskSubmitted]:
        return {fact.task_id: fact for fact in coordinator.facts if isinstance(fact, TaskSubmitted)}

    with small_disk(tmp_path / "disk", 1) as disk, capture_logs() as lines:
        found = settings.model_copy(update={"blobs": str(disk)})
        fill(disk / "ballast")
        metrics = Metrics()
        async with fanning_out(found, metrics):
            await write(coordinator, json.dumps(large).encode(), json.dumps(small).encode())
            await eventually(lambda: "small" in submitted(), PATIENCE_S)
            waiting = await eventually(lambda: [line for line in lines if line["action"] == "fanout.retry"], PATIENCE_S)
            assert "No space left" in waiting[0]["why"]
            assert str(disk) in waiting[0]["why"]
            await eventually(
                lambda: coordinator.beats[-1].obstacle.startswith("new tasks wait: [Errno 28] No space left"),
                PATIENCE_S,
            )
            assert b'polar_lag{role="fanout"} 0.0' not in await metrics.scrape()
            await write(coordinator, json.dumps(after).encode())
            (disk / "ballast").unlink()
            fact = (await eventually(lambda: submitted() if len(submitted()) == 3 else None, PATIENCE_S))["large"]
            await eventually(lambda: not coordinator.beats[-1].obstacle, PATIENCE_S)

            async def has_read_all() -> bool:
                return b'polar_lag{role="fanout"} 0.0' in await metrics.scrape()

            await eventually(has_read_all, PATIENCE_S)
        assert fact.body_ref is not None
        assert body_hash(FolderBlobs(disk).get(fact.body_ref)) == fact.body_hash
    assert sorted(fact.task_id for fact in coordinator.facts if isinstance(fact, TaskSubmitted)) == [
        "after",
        "large",
        "small",
    ]


async def test_what_is_no_task_is_buried_with_field_and_reason_and_the_next_one_passes(
    settings: Settings, coordinator: Coordinator
) -> None:
    bad = {
        b"\xff\xfe": "UTF-8",
        b"": "JSON",
        b"{": "JSON",
        b"[" * 100_000: "nested",
        b'{"task_id": NaN}': "NaN",
        json.dumps(BODY | {"instrucktion": "x"}).encode(): "do you mean instruction?",
        json.dumps(BODY | {"agent": {"harness": "cursor"}}).encode(): "no such harness",
        json.dumps(BODY | {"evaluator": {"strategy": "test_on_output"}}).encode(): "must be a command",
        json.dumps(BODY | {"agent": {"harness": "pi", "settings": {"x": 1}}}).encode(): "no such setting",
        json.dumps(BODY | {"metadata": {"x": "\ud800"}}).encode(): "surrogate",
        json.dumps(BODY | {"instruction": "x" * 1_100_000}).encode(): "bytes",
        json.dumps(BODY | {"runtime": {"eval_prepare": [UPLOAD]}}).encode(): "its content wasn't uploaded",
    }
    async with fanning_out(settings):
        await write(coordinator, *bad, json.dumps(BODY).encode())
        await eventually(lambda: [f for f in coordinator.facts if isinstance(f, TaskSubmitted)], PATIENCE_S)
        found = await letters(settings, len(bad))
    for body, said in bad.items():
        (letter,) = [one for one in found if one["body"] == body.decode(errors="replace")]
        assert said in letter["reason"]
        assert letter["field"]
        assert letter["source-topic"] == tasks.TOPIC.full_name(settings.namespace)
    assert [f.task_id for f in coordinator.facts if isinstance(f, TaskSubmitted)] == ["t1"]


async def test_a_named_output_is_made_with_the_partitions_of_the_others(
    settings: Settings, coordinator: Coordinator
) -> None:
    body = BODY | {"output_topic": "mine", "mode": "eval"}
    async with fanning_out(settings):
        await write(coordinator, json.dumps(body).encode())
        fact = await eventually(
            lambda: next((f for f in coordinator.facts if isinstance(f, TaskSubmitted)), None), PATIENCE_S
        )
    assert fact.plan.output == "mine"
    counts = {one.name.removeprefix(f"{settings.namespace}."): one.partitions for one in await admin.listing(settings)}
    assert counts["trajectories.mine"] == counts["completions"]


async def test_a_batch_that_is_read_again_gives_the_same_facts(settings: Settings, coordinator: Coordinator) -> None:
    async with fanning_out(settings):
        await write(coordinator, json.dumps(BODY).encode())
        await eventually(lambda: coordinator.facts, PATIENCE_S)
    group = kafka.consumer(settings, group="fanout")
    group.subscribe([tasks.TOPIC.full_name(settings.namespace)])
    await group.start()
    try:
        async with asyncio.timeout(10):
            while not group.assignment():
                await group.getmany(timeout_ms=100)
        await group.commit(dict.fromkeys(group.assignment(), 0))
    finally:
        await kafka.stop(group, 2)
    async with fanning_out(settings):
        await eventually(lambda: len(coordinator.facts) == 2, PATIENCE_S)
    assert coordinator.facts[0] == coordinator.facts[1]


@given(
    st.binary(max_size=200)
    | st.recursive(st.none() | st.floats() | st.text(), st.lists).map(lambda v: json.dumps(v).encode())
)
def test_anything_is_read_or_refused_as_input(value: bytes) -> None:
    with pytest.raises(InputError):
        read(value)


def test_the_plan_says_what_the_task_says() -> None:
    task = shell("t", "true", timeout_seconds=77, timeouts={"init": 5}, priority=9, mode="eval", metadata={"a": [1]})
    plan = plan_of(task)
    assert (plan.init_budget_s, plan.run_budget_s, plan.priority, plan.output) == (5, 77, 9, "eval")
    assert json.loads(plan.metadata) == {"a": [1]}
