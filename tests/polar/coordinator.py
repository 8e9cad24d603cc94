"""What a coordinator, a builder and workers write, as a client sees it."""

from __future__ import annotations

from contextlib import aclosing

from msgspec.structs import replace

from topics import dead_letters, events, sessions, tasks, trajectories, workers
from topics.contract.topic import Topic
from topics.environment.settings import Settings
from topics.log import admin
from topics.log.owner import read_back
from topics.log.partition import partition_of_task
from topics.log.producer import LogProducer
from topics.types.session import Phase, Plan, SessionState, Stage, Status, TaskState, session_id_of
from topics.types.task import TaskRequest, body_hash, parse
from topics.types.trajectory import Trajectory

PLAN = Plan("default", 0, 3, 600, 3600, 600, "shell", "prefix_merging", b"{}", None, "train", b"{}")


def task(task_id: str, samples: int, **fields: object) -> TaskRequest:
    agent = {"harness": "shell", "custom_shell": {"command": "true"}}
    return parse({"task_id": task_id, "instruction": "do", "num_samples": samples, "agent": agent, **fields})


class Coordinator:
    """A stand-in: shows tasks, and ends their sessions when it is told to."""

    def __init__(self, settings: Settings, producer: LogProducer) -> None:
        self._settings = settings
        self._producer = producer

    async def show(self, request: TaskRequest) -> None:
        plan = replace(PLAN, output=request.output)
        row = TaskState(request.task_id, request.num_samples, body_hash(request.canonical()), plan=plan)
        await self._write(row, request.task_id)

    async def end(self, request: TaskRequest, *indexes: int) -> None:
        for index in indexes:
            name = session_id_of(request.task_id, index)
            await self._write(SessionState(name, request.task_id, index, Phase.ENDED, since=0), request.task_id)

    async def refuse(self, request: TaskRequest, topic: Topic = tasks.TOPIC, value: bytes | None = None) -> None:
        """As fanout refuses a task, or with another topic and value."""
        headers = dead_letters.headers(
            reason="no such harness (got 'mine')",
            field="agent.harness",
            process="fanout",
            topic=topic.full_name(self._settings.namespace),
            partition=0,
            offset=0,
        )
        name = dead_letters.TOPIC.full_name(self._settings.namespace)
        value = request.canonical() if value is None else value
        await self._producer.send_bytes(name, value, key=request.task_id.encode(), headers=headers)

    async def build(self, session_id: str, output: str | None = None, reward: float | None = None) -> None:
        """Write a trajectory, as the builder does."""
        task_id, _, index = session_id.rpartition(".")
        made = Trajectory(
            session_id, task_id, int(index), 1, 1, Status.COMPLETED, "prefix_merging", "shell", reward=reward
        )
        await self._producer.send(trajectories.topic(output), made, key=session_id, task_id=task_id)

    async def beat(self, worker_id: str, *stages: Stage, pool: str = "default", leaving: bool = False) -> None:
        slots = [workers.StageSlots(stage, pool, 1, 1, [0]) for stage in stages]
        beat = workers.Heartbeat(worker_id, "worker", "host", 1, slots, leaving=leaving)
        await self._producer.send(workers.TOPIC, beat, key=worker_id)

    async def cancels_of(self, task_id: str) -> int:
        """How often somebody asked to cancel a task."""
        name = events.TOPIC.full_name(self._settings.namespace)
        partition = partition_of_task(task_id, await admin.partition_count(self._settings, name))
        async with aclosing(read_back(self._settings, name, partition)) as records:
            facts = [events.CODEC.known(record.value) async for record in records]
        return sum(isinstance(fact, events.CancelRequested) and fact.task_id == task_id for fact in facts)

    async def _write(self, row: sessions.Row, task_id: str) -> None:
        await self._producer.send(sessions.TOPIC, row, key=sessions.key_of(row), task_id=task_id)
