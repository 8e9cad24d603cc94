"""Trajectories and groups as a builder writes them: transactions, each in its task's partition."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from topics import trajectories
from topics.contract.codec import encode
from topics.environment.settings import Settings
from topics.log import admin
from topics.log.owner import FencedProducer, Write
from topics.log.partition import partition_of_task
from topics.types.completion import FREE, Sampling
from topics.types.session import Status
from topics.types.tokens import pack_ids, pack_logprobs
from topics.types.trajectory import ROOT, Call, GroupFinished, Node, Stats, Trace, Trajectory

T = TypeVar("T")

PLAIN = Sampling(
    temperature=1.0,
    top_p=1.0,
    top_k=0,
    min_p=0.0,
    presence_penalty=0.0,
    frequency_penalty=0.0,
    repetition_penalty=1.0,
    grammar_source=FREE,
)
PARTITIONS = trajectories.TOPIC.embedded_partitions


def trajectory(task_id: str, index: int = 0, samples: int = 1, reward: float | None = 1.0) -> Trajectory:
    """Three tokens read, two sampled, and trained in one trace."""
    call = Call(f"{task_id}.{index}.c0", "main", "answered", "openai_chat", 0, 1, 3, 2, policy_version=7)
    nodes = [Node(ROOT, pack_ids([1, 2, 3])), Node(0, pack_ids([10, index]), pack_logprobs([-0.5, -0.25]), call=0)]
    return Trajectory(
        f"{task_id}.{index}",
        task_id,
        index,
        samples,
        1,
        Status.COMPLETED if reward is not None else Status.FAILED,
        "prefix_merging",
        "shell",
        reward=reward,
        nodes=nodes,
        calls=[call],
        traces=[Trace(f"{task_id}.{index}/c0", leaf=1, trains=[1], reward=reward)],
        stats=Stats(calls=1, answered=1, traces=1, tokens=5, sampled_tokens=2, trainable_tokens=2),
        metadata=b'{"set": "train"}',
    )


def group(task_id: str, rewards: Sequence[float | None]) -> list[trajectories.Output]:
    """A task's records: its last sample ended first."""
    samples = [trajectory(task_id, index, len(rewards), reward) for index, reward in enumerate(rewards)]
    return [*samples[::-1], finished(task_id, rewards)]


def finished(task_id: str, rewards: Sequence[float | None]) -> GroupFinished:
    ids = [f"{task_id}.{index}" for index in range(len(rewards))]
    return GroupFinished(task_id, len(rewards), ids, list(rewards), [Status.COMPLETED] * len(rewards))


class Writer:
    """The builder's place: one fenced producer a partition. `topic` is made as an embedded system has it."""

    def __init__(self, settings: Settings, topic: str | None = None) -> None:
        self._settings = settings
        self._topic = trajectories.topic(topic)
        self._producers = [FencedProducer(settings, f"{self._topic.name}.{number}") for number in range(PARTITIONS)]

    async def __aenter__(self) -> Writer:
        await admin.apply(self._settings, [self._topic], embedded=True)
        for producer in self._producers:
            await producer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for producer in self._producers:
            await producer.stop()

    async def write(self, records: Iterable[trajectories.Output | bytes], task_id: str | None = None) -> None:
        """A transaction a partition; bytes go to the partition of `task_id`."""
        by_partition: dict[int, list[Write]] = defaultdict(list)
        for record in records:
            owner = task_id if isinstance(record, bytes) else record.task_id
            assert owner is not None
            number = partition_of_task(owner, PARTITIONS)
            value = record if isinstance(record, bytes) else encode(record)
            name = self._topic.full_name(self._settings.namespace)
            by_partition[number].append(Write(name, number, owner.encode(), value))
        for number, writes in by_partition.items():
            await self._producers[number].begin()
            await self._producers[number].write(writes)
            await self._producers[number].commit()


class RunWriter(Writer):
    """Writes for a run, sampled by weights of one version at temperature 1; every other sample of a group has the reward 1, others 0."""

    def __init__(self, settings: Settings, run: str, version: int) -> None:
        super().__init__(settings)
        self._run, self._version = run, version

    async def write(self, records: Iterable[trajectories.Output | bytes], task_id: str | None = None) -> None:
        await super().write(map(self._of_run, records), task_id)

    def _of_run(self, record: trajectories.Output | bytes) -> trajectories.Output | bytes:
        if isinstance(record, Trajectory):
            calls = [replace(call, sampling=PLAIN, policy_version=self._version) for call in record.calls]
            reward = float(record.sample_index % 2)
            traces = [replace(trace, reward=reward) for trace in record.traces]
            return replace(record, run=self._run, calls=calls, reward=reward, traces=traces)
        if isinstance(record, GroupFinished):
            rewards: list[float | None] = [float(index % 2) for index in range(record.num_samples)]
            return replace(record, run=self._run, rewards=rewards)
        return record
