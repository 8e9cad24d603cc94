"""One partition's share of a rebuild: the builder's way from a session's calls to its trajectory, into another topic."""

from __future__ import annotations

from contextlib import aclosing

import msgspec

from consumers.building.open_sessions import OpenSession, Sessions
from consumers.building.outcome import encoded, outcome
from consumers.rebuild.log import Passed, task_of
from consumers.rebuild.output import Output
from consumers.rebuild.wanted import FINAL, Done, Wanted
from topics import completions, trajectories
from topics.completions import Build, CallRecord, CloseGroup, Emitted
from topics.contract.codec import encode
from topics.contract.topic import MIB
from topics.environment.settings import Settings
from topics.log.owner import FencedProducer, Write, read_back
from topics.types.errors import SessionError
from topics.types.session import task_id_of
from topics.types.trajectory import GroupFinished, Stats

TRANSACTION_BYTES = 8 * MIB
"""Protocol 3; the trajectory that passes it goes along."""
TRANSACTION_SESSIONS = 100
HELD_BYTES = 256 * MIB
"""Calls' bodies that are kept in memory; sessions beyond it are read again, as the builder does."""


class Partition:
    """One partition's share of a run."""

    def __init__(
        self,
        settings: Settings,
        partition: int,
        wanted: Wanted,
        fenced: FencedProducer,
        done: Done,
        passed: Passed,
        out: Output,
        first: int,
    ) -> None:
        """`first`: the offset at which the log began when it was looked at."""
        self._settings = settings
        self._partition = partition
        self._wanted = wanted
        self._topic = trajectories.topic(wanted.into)
        self._fenced = fenced
        self._done = done
        self._passed = passed
        self._sessions = Sessions(HELD_BYTES)
        self._sessions.has_gap = first > 0
        self._first = first
        self._out = out
        self._writes: list[Write] = []

    async def run(self) -> None:
        """Read the partition once. Raises LogGapError where its first record has left the log since it was looked at."""
        topic = completions.TOPIC.full_name(self._settings.namespace)
        # A log that had its beginning must have it still. Of one that hadn't, whatever is left is read: who lacks a beginning is told so.
        start = 0 if self._first == 0 else None
        async with aclosing(read_back(self._settings, topic, self._partition, start)) as records:
            async for record in records:
                self._passed.built_from(self._partition, record.offset)
                if self._wanted.takes(task_of(record)) and (known := completions.CODEC.known(record.value)) is not None:
                    await self._take(known, record.offset, len(record.value or b""))
        for session in self._sessions.due():  # those that the builder hasn't come to yet
            await self._build(session)
        self._done.unfinished += self._sessions.unfinished
        await self._write()

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
        session.records.build = build
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
