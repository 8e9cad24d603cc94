"""`polar rebuild`: trajectories made again from the log, by any builder, into a topic of their own.

Reads `polar.completions` from its beginning, folds it as the builder does and takes the same way from a session's calls to its trajectory;
each is marked as rebuilt. One transaction holds some sessions' trajectories and their groups' ends. What is in the output already is not
written again, so that a run which was cut short is taken up by the same command, and one that came to its end changes nothing; two at once
into one output are kept apart by the broker, which fences the first. Nothing else on the log is touched: no fact, no offset, no webhook.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

import msgspec

from consumers.builders.open_sessions import OpenSession, Sessions
from consumers.builders.outcome import encoded, outcome
from polar.settings import Settings
from polar.types import ids
from polar.types.errors import InputError, NotReady
from polar.types.session import task_id_of
from polar.types.trajectory import GroupFinished, Trajectory
from topics import admin, completions, kafka, trajectories
from topics.codec import DecodeError, UnknownRecord, encode
from topics.completions import Build, CallRecord, CloseGroup, Emitted
from topics.contract import MIB
from topics.owner import STOP_DEADLINE_S, FencedProducer, OwnershipLost, Write, read_back

TRANSACTION_BYTES = 8 * MIB
"""Protocol 3; the trajectory that passes it goes along."""
TRANSACTION_SESSIONS = 100
HELD_BYTES = 256 * MIB
"""Calls' bodies that are kept in memory; sessions beyond it are read again, as the builder does."""


@dataclass(frozen=True)
class Wanted:
    """What to rebuild, by which builder, and where to."""

    into: str
    """Suffix of the trajectories topic."""
    builder: str | None = None
    """None: each session's own, with its own settings."""
    config: bytes = b"{}"
    """JSON object: the settings of `builder`."""
    tasks: frozenset[str] = frozenset()
    """Empty: all on the log."""


@dataclass
class Done:
    """What a run has done."""

    sessions: int = 0
    """Rebuilt by this run."""
    were_out: int = 0
    """In the output already: an earlier run's."""
    groups: int = 0
    """Ends of groups written by this run."""
    traces: int = 0
    trainable_tokens: int = 0
    sampled_tokens: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    """Sessions that came to nothing, by id: `<code>: <message>`. They are out as FAILED, without a reward."""
    left_the_log: list[str] = field(default_factory=list)
    """Of these, sessions whose first calls the log doesn't hold any more."""
    incomplete: dict[str, int] = field(default_factory=dict)
    """By task id whose group has ended: how many of its sessions the log doesn't know any more. No trajectory stands for them."""
    unfinished: int = 0
    """Sessions that were opened and haven't ended; another run builds them when they have."""
    tasks_missing: list[str] = field(default_factory=list)
    """Asked for, and not on the log."""
    tasks: set[str] = field(default_factory=set)
    """Looked at, by id."""
    unreadable: int = 0
    """Records that don't decode, or of an unknown type."""
    seconds: float = 0.0


async def rebuild(settings: Settings, wanted: Wanted, told: Callable[[int, int], None] = lambda *_: None) -> Done:
    """Rebuild all that is wanted; `told` gets the offsets passed, of how many.

    Raises InputError for an output that a builder writes, or that holds what was built otherwise; NotReady where Kafka is away or
    another run into the same output has begun.
    """
    check_output(wanted.into)
    began = time.monotonic()
    await admin.apply(settings, [trajectories.topic(wanted.into)], embedded=settings.replication == 1)
    spans = await _spans(settings)
    done, passed = Done(), _Passed(told, spans)
    for partition, (first, _) in spans.items():
        fenced = FencedProducer(settings, f"rebuild.{wanted.into}.{partition}")
        try:
            await fenced.start()
            await _Partition(settings, partition, wanted, fenced, done, passed, has_gap=first > 0).run()
        except OwnershipLost as lost:
            reason = f"is another `polar rebuild --into {wanted.into}` running? The same command goes on from here"
            raise NotReady(f"{lost}; {reason}") from None
        finally:
            await fenced.stop()
    done.tasks_missing = sorted(wanted.tasks - done.tasks)
    done.seconds = time.monotonic() - began
    return done


def check_output(into: str) -> None:
    """Raises InputError for a name that no output may have, or that is the builder's own."""
    if into in ("", "trajectories", trajectories.EVAL.name.rpartition(".")[2]):
        raise InputError(
            "--into", into, "the builder writes that topic and trainers read it; name one for what is rebuilt"
        )
    if not re.fullmatch(ids.NAME, into):
        raise InputError("--into", into, f"must match {ids.NAME}")


async def _spans(settings: Settings) -> dict[int, tuple[int, int]]:
    """First offset and end of each partition of the log."""
    topic = completions.TOPIC.full_name(settings.namespace)
    sources = [kafka.TopicPartition(topic, p) for p in range(await admin.partition_count(settings, topic))]
    asker = kafka.consumer(settings, committed=False)
    await asker.start()
    try:
        firsts, ends = await asker.beginning_offsets(sources), await asker.end_offsets(sources)
    finally:
        await kafka.stop(asker, STOP_DEADLINE_S)
    return {source.partition: (firsts[source], ends[source]) for source in sources}


class _Passed:
    """How much of the log has been read, over all partitions."""

    def __init__(self, told: Callable[[int, int], None], spans: Mapping[int, tuple[int, int]]) -> None:
        self._told = told
        self._total = sum(end - first for first, end in spans.values())
        starts = accumulate((end - first for first, end in spans.values()), initial=0)
        self._before = {p: start - first for start, (p, (first, _)) in zip(starts, spans.items(), strict=False)}

    def __call__(self, partition: int, offset: int) -> None:
        self._told(self._before[partition] + offset + 1, self._total)


class _Partition:
    """One partition's share of a run."""

    def __init__(
        self,
        settings: Settings,
        partition: int,
        wanted: Wanted,
        fenced: FencedProducer,
        done: Done,
        passed: _Passed,
        *,
        has_gap: bool,
    ) -> None:
        self._settings = settings
        self._partition = partition
        self._wanted = wanted
        self._topic = trajectories.topic(wanted.into)
        self._fenced = fenced
        self._done = done
        self._passed = passed
        self._sessions = Sessions(HELD_BYTES)
        self._sessions.has_gap = has_gap
        self._out: dict[str, tuple[str, bytes]] = {}
        """Sessions in the output, by whom and with which settings they were built."""
        self._groups_out: set[str] = set()
        self._writes: list[Write] = []

    async def run(self) -> None:
        """Read the partition once."""
        await self._learn_what_is_out()
        topic = completions.TOPIC.full_name(self._settings.namespace)
        async for record in read_back(self._settings, topic, self._partition):
            self._passed(self._partition, record.offset)
            if (decoded := self._decoded(record)) is not None:
                await self._take(decoded, record.offset, len(record.value or b""))
        for session in self._sessions.due():  # those that the builder hasn't come to yet
            await self._build(session)
        self._done.unfinished += self._sessions.unfinished
        await self._write()

    async def _learn_what_is_out(self) -> None:
        name = self._topic.full_name(self._settings.namespace)
        async for record in read_back(self._settings, name, self._partition):
            match trajectories.CODEC.decode(record.value or b""):
                case Trajectory(rebuilt_with=bytes(config)) as trajectory:
                    self._out[trajectory.session_id] = trajectory.builder, config
                case GroupFinished(rebuilt=True) as group:
                    self._groups_out.add(group.task_id)
                case Trajectory() | GroupFinished() as live:
                    reason = (
                        f"the builder writes {name} (task {live.task_id} names it); name another for what is rebuilt"
                    )
                    raise InputError("--into", self._wanted.into, reason)

    def _decoded(self, record: kafka.Record) -> CallRecord | None:
        """What of the log is wanted."""
        key = (record.key or b"").decode(errors="replace")
        task_id = task_id_of(key) or key
        if self._wanted.tasks and task_id not in self._wanted.tasks:
            return None
        try:
            decoded = completions.CODEC.decode(record.value or b"")
        except DecodeError:
            decoded = None
        if decoded is None or isinstance(decoded, UnknownRecord):
            self._done.unreadable += 1
            return None
        self._done.tasks.add(task_id)
        return decoded

    async def _take(self, record: CallRecord, offset: int, size: int) -> None:
        match record:
            case Build(output=output) | CloseGroup(output=output) if output == self._wanted.into:
                reason = f"it is the output of task {record.task_id}, which the builder writes; name another"
                raise InputError("--into", self._wanted.into, reason)
            case Emitted(session_id=str(session_id)):
                # Only here is all of it known: what came after its Build and before this is late.
                session = self._sessions.named(session_id)
                if session is not None and session.build is not None:
                    await self._build(session)
            case CloseGroup():
                for session in self._sessions.due():
                    if task_id_of(session.opened.session_id) == record.task_id:
                        await self._build(session)
                self._close(record)
        self._sessions.take(record, offset, size)

    async def _build(self, session: OpenSession) -> None:
        assert session.build is not None, "only what is due is built"
        build = self._as_wanted(session.build)
        session_id = session.opened.session_id
        self._sessions.emitted(session_id, build.task_id)
        if session_id in self._out:
            if self._out[session_id] != (build.builder, build.builder_config):
                by, config = self._out[session_id]
                reason = f"it holds {session_id} as built by {by} with {config.decode()}; name another, or ask for that again"
                raise InputError("--into", self._wanted.into, reason)
            self._done.were_out += 1
            return
        session.build = build
        built = await outcome(session, self._settings, self._partition)
        marked = msgspec.structs.replace(built, rebuilt_with=build.builder_config)
        trajectory, value = encoded(marked, build, self._topic)
        self._count(trajectory)
        self._out[session_id] = build.builder, build.builder_config
        await self._put(session_id, value)

    def _as_wanted(self, build: Build) -> Build:
        if self._wanted.builder is None:
            return build
        return msgspec.structs.replace(build, builder=self._wanted.builder, builder_config=self._wanted.config)

    def _count(self, trajectory: Trajectory) -> None:
        done, stats, error = self._done, trajectory.stats, trajectory.error
        done.sessions += 1
        done.traces += stats.traces
        done.sampled_tokens += stats.sampled_tokens
        done.trainable_tokens += stats.trainable_tokens
        if error is not None and error.stage == "build":
            done.failed[trajectory.session_id] = f"{error.code}: {error.message}"
            if error.code == "log_gap":
                done.left_the_log.append(trajectory.session_id)

    def _close(self, group: CloseGroup) -> None:
        """The end of a group, after its trajectories; one that the log knows nothing else of has none."""
        sessions = [f"{group.task_id}.{index}" for index in range(group.num_samples)]
        missing = sum(session not in self._out for session in sessions)
        if missing:
            self._done.incomplete[group.task_id] = missing
        if missing == group.num_samples or group.task_id in self._groups_out:
            return
        self._groups_out.add(group.task_id)
        self._done.groups += 1
        end = GroupFinished(group.task_id, group.num_samples, sessions, group.rewards, group.statuses, rebuilt=True)
        self._writes.append(self._record(group.task_id, encode(end)))

    async def _put(self, key: str, value: bytes) -> None:
        self._writes.append(self._record(key, value))
        size = sum(len(write.value or b"") for write in self._writes)
        if len(self._writes) >= TRANSACTION_SESSIONS or size > TRANSACTION_BYTES:
            await self._write()

    async def _write(self) -> None:
        """One transaction of all that waits."""
        if self._writes:
            await self._fenced.begin()
            await self._fenced.write(self._writes)
            await self._fenced.commit()
            self._writes = []

    def _record(self, key: str, value: bytes) -> Write:
        return Write(self._topic.full_name(self._settings.namespace), self._partition, key.encode(), value)
