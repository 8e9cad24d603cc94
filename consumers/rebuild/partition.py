"""One partition of a rebuild: builds its sessions as the builder does, and writes them to the output topic's partition."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, field

import msgspec

from consumers.building.open_sessions import OpenSession, OpenSessions
from consumers.building.outcome import encoded, outcome
from consumers.rebuild.request import FINAL, Progress, RebuildReport, RebuildRequest
from topics import completions, trajectories
from topics.completions import CallRecord, CloseGroup, Emitted
from topics.contract.codec import encode
from topics.contract.topic import MIB
from topics.environment.settings import Settings
from topics.log import kafka
from topics.log.owner import FencedProducer, Write, read_back
from topics.types.errors import InputError, SessionError
from topics.types.session import task_id_of
from topics.types.trajectory import GroupFinished, Trajectory

TRANSACTION_BYTES = 8 * MIB
"""Protocol 3; the trajectory that exceeds it is still included."""
TRANSACTION_SESSIONS = 100
MEMORY_LIMIT = 256 * MIB
"""Call bodies kept in memory; further sessions are read again when they are built, as the builder does."""


@dataclass
class Output:
    """The sessions that one partition of the output topic already holds: they aren't written again, and builders aren't mixed."""

    built: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    """Builder and settings by session."""
    failed: dict[str, SessionError] = field(default_factory=dict)
    """Errors of the sessions whose build failed."""
    groups: set[str] = field(default_factory=set)
    """Tasks whose group has its end."""

    def add(self, trajectory: Trajectory) -> None:
        self.built[trajectory.session_id] = trajectory.builder, trajectory.rebuilt_with or b"{}"
        if trajectory.error is not None and trajectory.error.stage == "build":
            self.failed[trajectory.session_id] = trajectory.error

    def check_builder(self, session_id: str, requested: tuple[str, bytes], into: str) -> None:
        """Raise InputError if the session was built by another builder, or with other settings, than requested."""
        builder, config = self.built.get(session_id, requested)
        if (builder, config) != requested:
            reason = f"it holds {session_id} as built by {builder} with {config.decode()}; name another, or request that again"
            raise InputError("--into", into, reason)


async def read_output(settings: Settings, request: RebuildRequest, partition: int) -> Output:
    """Read a partition of the output. Raises InputError for records of the builder, or of another builder than requested."""
    name = trajectories.topic(request.into).full_name(settings.namespace)
    output = Output()
    async with aclosing(read_back(settings, name, partition)) as records:
        async for record in records:
            match trajectories.CODEC.decode(record.value or b""):
                case Trajectory(rebuilt_with=bytes()) as trajectory:
                    output.add(trajectory)
                    if request.builder is not None:
                        output.check_builder(trajectory.session_id, (request.builder, request.config), request.into)
                case GroupFinished(rebuilt=True) as group:
                    output.groups.add(group.task_id)
                case Trajectory() | GroupFinished() as live:
                    reason = f"the builder writes {name} (task {live.task_id} names it); name another topic"
                    raise InputError("--into", request.into, reason)
    return output


def task_of(record: kafka.Record) -> str:
    """The task of a record: its key names a session or a task."""
    key = (record.key or b"").decode(errors="replace")
    return task_id_of(key) or key


class PartitionRebuild:
    """The rebuild of one partition."""

    def __init__(
        self,
        settings: Settings,
        partition: int,
        request: RebuildRequest,
        fenced: FencedProducer,
        report: RebuildReport,
        progress: Progress,
        output: Output,
        first: int,
    ) -> None:
        """`first`: the log's first offset when it was checked."""
        self._settings = settings
        self._partition = partition
        self._request = request
        self._topic = trajectories.topic(request.into)
        self._fenced = fenced
        self._report = report
        self._progress = progress
        self._sessions = OpenSessions(MEMORY_LIMIT)
        self._sessions.has_gap = first > 0
        self._first = first
        self._output = output
        self._writes: list[Write] = []

    async def run(self) -> None:
        """Read the partition once. Raises LogGapError if its first record has left the log since it was checked."""
        topic = completions.TOPIC.full_name(self._settings.namespace)
        # A log that began at offset 0 must still do so. Any other log is read as it is; sessions without their beginning fail.
        start = 0 if self._first == 0 else None
        async with aclosing(read_back(self._settings, topic, self._partition, start)) as records:
            async for record in records:
                self._progress.built(self._partition, record.offset)
                if (
                    self._request.includes(task_of(record))
                    and (known := completions.CODEC.known(record.value)) is not None
                ):
                    await self._add(known, record.offset, len(record.value or b""))
        for session in self._sessions.due():  # sessions that the builder hasn't built yet
            await self._build(session)
        self._report.unfinished += self._sessions.unfinished
        await self._write()

    async def _add(self, record: CallRecord, offset: int, size: int) -> None:
        match record:
            case Emitted(session_id=str(session_id)):
                # Only now is the session complete: records between its Build and this one are late.
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
        assert session.build is not None, "only sessions with a Build are built"
        build = session.build
        if self._request.builder is not None:
            build = msgspec.structs.replace(build, builder=self._request.builder, builder_config=self._request.config)
        session_id = session.opened.session_id
        self._sessions.emitted(session_id, build.task_id)
        report = self._report
        if session_id in self._output.built:
            report.were_out += 1
            if session_id in self._output.failed:
                self._report_failure(session_id, self._output.failed[session_id])
            return
        session.records.build = build
        built = await outcome(session, self._settings, self._partition)
        marked = msgspec.structs.replace(built, rebuilt_with=build.builder_config)
        trajectory, value = encoded(marked, build, self._topic)
        error = trajectory.error
        if error is not None and error.stage == "build":
            self._report_failure(session_id, error)
            if error.code not in FINAL:
                report.to_build += 1
                return
        report.sessions += 1
        report.traces += trajectory.stats.traces
        report.sampled_tokens += trajectory.stats.sampled_tokens
        report.trainable_tokens += trajectory.stats.trainable_tokens
        self._output.add(trajectory)
        await self._put(session_id, value)

    def _report_failure(self, session_id: str, error: SessionError) -> None:
        """Report a session whose build failed, in this run or an earlier one."""
        self._report.failed[session_id] = f"{error.code}: {error.message}"
        if error.code == "log_gap":
            self._report.left_the_log.append(session_id)

    def _close(self, group: CloseGroup) -> None:
        """Write the group's end after its trajectories, unless a session waits for its builder or the log holds no session of the group."""
        sessions = [f"{group.task_id}.{index}" for index in range(group.num_samples)]
        absent = {session for session in sessions if session not in self._output.built}
        missing = len(absent - self._report.failed.keys())
        if missing:
            self._report.incomplete[group.task_id] = missing
        if missing < len(absent) or missing == group.num_samples or group.task_id in self._output.groups:
            return
        self._output.groups.add(group.task_id)
        self._report.groups += 1
        end = GroupFinished(
            group.task_id, group.num_samples, sessions, group.rewards, group.statuses, rebuilt=True, run=group.run
        )
        self._writes.append(self._record(group.task_id, encode(end)))

    async def _put(self, key: str, value: bytes) -> None:
        self._writes.append(self._record(key, value))
        size = sum(len(write.value or b"") for write in self._writes)
        if len(self._writes) >= TRANSACTION_SESSIONS or size > TRANSACTION_BYTES:
            await self._write()

    async def _write(self) -> None:
        """Write all pending records in one transaction."""
        if self._writes:
            await self._fenced.begin()
            await self._fenced.write(self._writes)
            await self._fenced.commit()
            self._writes = []

    def _record(self, key: str, value: bytes) -> Write:
        return Write(self._topic.full_name(self._settings.namespace), self._partition, key.encode(), value)
