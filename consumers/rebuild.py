"""`polar rebuild`: trajectories made again from the log, by any builder, into a topic of their own.

Reads `polar.completions` from its beginning, folds it as the builder does and takes the same way from a session's calls to its trajectory;
each is marked as rebuilt. One transaction holds some sessions' trajectories and their groups' ends. What is in the output already is not
written again, so that a run which was cut short is taken up by the same command, and one that came to its end changes nothing; two at once
into one output are kept apart by the broker, which fences the first. Sessions that their builder failed on aren't written, so that they are
built when it is mended. What is to be refused is looked for before anything is written: the log is read twice. Nothing else on it is
touched: no fact, no offset, no webhook.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

import msgspec

from consumers.builders.open_sessions import OpenSession, Sessions
from consumers.builders.outcome import encoded, outcome
from polar.settings import Settings
from polar.types import ids
from polar.types.errors import InputError, NotReady, SessionError
from polar.types.session import task_id_of
from polar.types.trajectory import GroupFinished, Stats, Trajectory
from topics import admin, completions, kafka, trajectories
from topics.codec import DecodeError, UnknownRecord, encode
from topics.completions import Build, CallRecord, CloseGroup, Emitted
from topics.contract import MIB
from topics.owner import STOP_DEADLINE_S, FencedProducer, LogGap, OwnershipLost, Write, read_back

TRANSACTION_BYTES = 8 * MIB
"""Protocol 3; the trajectory that passes it goes along."""
TRANSACTION_SESSIONS = 100
FINAL = frozenset({"log_gap", "too_large"})
"""Codes of failures that no other run of the same command mends."""
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

    def takes(self, task_id: str) -> bool:
        return not self.tasks or task_id in self.tasks


@dataclass
class Done:
    """What a run has done."""

    sessions: int = 0
    """Written by this run."""
    were_out: int = 0
    """In the output already: an earlier run's."""
    groups: int = 0
    """Ends of groups written by this run."""
    traces: int = 0
    trainable_tokens: int = 0
    sampled_tokens: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    """Sessions that came to nothing, by id: `<code>: <message>`. Those of `FINAL` are out as FAILED, without a reward; the others are
    missing, with the end of their group, until the same command comes to something."""
    to_build: int = 0
    """Of these, sessions that the same command builds once their builder is mended."""
    left_the_log: list[str] = field(default_factory=list)
    """Of these, sessions whose first calls the log doesn't hold any more."""
    incomplete: dict[str, int] = field(default_factory=dict)
    """By task id whose group has ended: how many of its sessions the log doesn't know any more. No trajectory stands for them, and trainers
    skip the group."""
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
    spans = await _spans(settings)
    done, passed = Done(), _Passed(told, spans)
    await _refuse_what_is_mixed(settings, wanted, passed, spans)
    for partition, (first, _) in spans.items():
        fenced = FencedProducer(settings, f"rebuild.{wanted.into}.{partition}")
        try:
            await fenced.start()
            # Learnt only now: a run that this one has just fenced may have written.
            out = await _out(settings, wanted, partition)
            await _Partition(settings, partition, wanted, fenced, done, passed, out, has_gap=first > 0).run()
        except OwnershipLost as lost:
            reason = "the same command goes on from here"
            if not isinstance(lost, LogGap):
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


@dataclass
class _Out:
    """What an output holds."""

    built: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    """Sessions, by whom and with which settings they were built."""
    failed: dict[str, SessionError] = field(default_factory=dict)
    """Of these, those that came to nothing."""
    groups: set[str] = field(default_factory=set)
    """Tasks whose group has its end."""

    def take(self, trajectory: Trajectory) -> None:
        """Note a rebuilt one."""
        self.built[trajectory.session_id] = trajectory.builder, trajectory.rebuilt_with or b"{}"
        if trajectory.error is not None and trajectory.error.stage == "build":
            self.failed[trajectory.session_id] = trajectory.error

    def refuse_another(self, session_id: str, wanted: tuple[str, bytes], into: str) -> None:
        """Raise InputError where the session was built otherwise than is wanted."""
        by, config = self.built.get(session_id, wanted)
        if (by, config) != wanted:
            reason = (
                f"it holds {session_id} as built by {by} with {config.decode()}; name another, or ask for that again"
            )
            raise InputError("--into", into, reason)


async def _out(settings: Settings, wanted: Wanted, partition: int) -> _Out:
    """What a partition of the output holds. Raises InputError for what the builder has written, or another than the wanted one built."""
    name = trajectories.topic(wanted.into).full_name(settings.namespace)
    out = _Out()
    async for record in read_back(settings, name, partition):
        match trajectories.CODEC.decode(record.value or b""):
            case Trajectory(rebuilt_with=bytes()) as trajectory:
                out.take(trajectory)
                if wanted.builder is not None:
                    out.refuse_another(trajectory.session_id, (wanted.builder, wanted.config), wanted.into)
            case GroupFinished(rebuilt=True) as group:
                out.groups.add(group.task_id)
            case Trajectory() | GroupFinished() as live:
                reason = f"the builder writes {name} (task {live.task_id} names it); name another for what is rebuilt"
                raise InputError("--into", wanted.into, reason)
    return out


async def _refuse_what_is_mixed(
    settings: Settings, wanted: Wanted, passed: _Passed, partitions: Collection[int]
) -> None:
    """Raise InputError for what is refused, of whichever task and partition; only then make the output."""
    own: dict[str, tuple[str, bytes]] = {}
    topic = completions.TOPIC.full_name(settings.namespace)
    for partition in partitions:
        async for record in read_back(settings, topic, partition):
            passed.looked_at(partition, record.offset)
            match _decoded(record):
                case Build(output=output) | CloseGroup(output=output) as asked if output == wanted.into:
                    reason = f"it is the output of task {asked.task_id}, which the builder writes; name another"
                    raise InputError("--into", wanted.into, reason)
                case Build() as build if wanted.builder is None and wanted.takes(build.task_id):
                    own[build.session_id] = build.builder, build.builder_config
    await admin.apply(settings, [trajectories.topic(wanted.into)], embedded=settings.replication == 1)
    for partition in partitions:
        out = await _out(settings, wanted, partition)
        for session_id in own.keys() & out.built.keys():
            out.refuse_another(session_id, own[session_id], wanted.into)


def _decoded(record: kafka.Record) -> CallRecord | None:
    """None for one that doesn't decode, or of an unknown type."""
    try:
        decoded = completions.CODEC.decode(record.value or b"")
    except DecodeError:
        return None
    return None if isinstance(decoded, UnknownRecord) else decoded


class _Passed:
    """How much of the log has been read, over all partitions: once to look at it, once to build."""

    def __init__(self, told: Callable[[int, int], None], spans: Mapping[int, tuple[int, int]]) -> None:
        self._told = told
        self._once = sum(end - first for first, end in spans.values())
        starts = accumulate((end - first for first, end in spans.values()), initial=0)
        self._before = {p: start - first for start, (p, (first, _)) in zip(starts, spans.items(), strict=False)}

    def looked_at(self, partition: int, offset: int) -> None:
        self._told(self._before[partition] + offset + 1, 2 * self._once)

    def built_from(self, partition: int, offset: int) -> None:
        self._told(self._once + self._before[partition] + offset + 1, 2 * self._once)


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
        out: _Out,
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
        self._out = out
        self._writes: list[Write] = []

    async def run(self) -> None:
        """Read the partition once."""
        topic = completions.TOPIC.full_name(self._settings.namespace)
        async for record in read_back(self._settings, topic, self._partition):
            self._passed.built_from(self._partition, record.offset)
            if (decoded := self._wanted_of(record)) is not None:
                await self._take(decoded, record.offset, len(record.value or b""))
        for session in self._sessions.due():  # those that the builder hasn't come to yet
            await self._build(session)
        self._done.unfinished += self._sessions.unfinished
        await self._write()

    def _wanted_of(self, record: kafka.Record) -> CallRecord | None:
        """What of the log is wanted."""
        key = (record.key or b"").decode(errors="replace")
        task_id = task_id_of(key) or key
        if not self._wanted.takes(task_id):
            return None
        decoded = _decoded(record)
        if decoded is None:
            self._done.unreadable += 1
            return None
        self._done.tasks.add(task_id)
        return decoded

    async def _take(self, record: CallRecord, offset: int, size: int) -> None:
        match record:
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
        if session_id in self._out.built:
            self._done.were_out += 1
            if session_id in self._out.failed:
                self._tell(session_id, self._out.failed[session_id])
            return
        session.build = build
        built = await outcome(session, self._settings, self._partition)
        marked = msgspec.structs.replace(built, rebuilt_with=build.builder_config)
        trajectory, value = encoded(marked, build, self._topic)
        error = trajectory.error
        if error is not None and error.stage == "build":
            self._tell(session_id, error)
            if error.code not in FINAL:
                self._done.to_build += 1
                return
        self._count(trajectory.stats)
        self._out.take(trajectory)
        await self._put(session_id, value)

    def _tell(self, session_id: str, error: SessionError) -> None:
        """Of a session that came to nothing, now or in an earlier run."""
        self._done.failed[session_id] = f"{error.code}: {error.message}"
        if error.code == "log_gap":
            self._done.left_the_log.append(session_id)

    def _as_wanted(self, build: Build) -> Build:
        if self._wanted.builder is None:
            return build
        return msgspec.structs.replace(build, builder=self._wanted.builder, builder_config=self._wanted.config)

    def _count(self, stats: Stats) -> None:
        done = self._done
        done.sessions += 1
        done.traces += stats.traces
        done.sampled_tokens += stats.sampled_tokens
        done.trainable_tokens += stats.trainable_tokens

    def _close(self, group: CloseGroup) -> None:
        """The end of a group, after its trajectories; one that the log knows nothing else of has none, nor one that waits for a builder."""
        sessions = [f"{group.task_id}.{index}" for index in range(group.num_samples)]
        absent = {session for session in sessions if session not in self._out.built}
        missing = len(absent - self._done.failed.keys())
        if missing:
            self._done.incomplete[group.task_id] = missing
        if missing < len(absent) or missing == group.num_samples or group.task_id in self._out.groups:
            return
        self._out.groups.add(group.task_id)
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
