"""Transactions are bounded, and a crash between two that one fact takes changes nothing of what comes of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from consumers.coordinator.batch import BYTES, SESSIONS, Batch, Transaction
from consumers.coordinator.commands import Decision, Input, TaskExpired
from consumers.coordinator.deadlines import EXPIRY_MS
from consumers.coordinator.decide import decide
from consumers.coordinator.state import Table
from tests.consumers.coordinator.bench import PLAN, submitted, wants
from topics.completions import Build, Open
from topics.control import CloseKey, Revoke
from topics.events import CancelRequested, GroupEmitted, SessionOpenRequested, TrajectoryEmitted
from topics.sessions import CODEC
from topics.types.session import Phase, SessionState, Status, TaskState

SAMPLES = 1200


def size(part: Transaction) -> int:
    return sum(len(value or b"") for value in part.rows.values()) + sum(len(record.value) for record in part.records)


@dataclass
class Disk:
    """What is committed, and what a coordinator makes of it."""

    rows: dict[str, bytes] = field(default_factory=dict)
    written: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By type and session: records of `polar.completions`."""
    table: Table = field(default_factory=lambda: Table(0))
    now: int = 0

    def start(self) -> None:
        """A new owner, who knows only what is committed."""
        self.table = Table(0)
        self.table.fill(self.read().values())

    def read(self) -> dict[str, TaskState | SessionState]:
        found = {key: CODEC.decode(value) for key, value in self.rows.items()}
        return {key: row for key, row in found.items() if isinstance(row, TaskState | SessionState)}

    def give(self, given: Input, crash_after: int | None = None) -> Decision:
        """Decide and commit; `crash_after`: as many parts only."""
        decision = decide(self.table, given, self.now)
        self.table.apply(decision)
        parts = list(Batch.of(decision).transactions())
        assert [part.is_last for part in parts] == [False] * (len(parts) - 1) + [True]
        for part in parts[:crash_after]:
            assert len(part.rows) <= SESSIONS
            assert size(part) <= BYTES
            self._commit(part)
        return decision

    def _commit(self, part: Transaction) -> None:
        for key, value in part.rows.items():
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value
        for record in part.records:
            if isinstance(record.record, Open | Build):
                self.written[type(record.record).__name__, record.record.session_id] += 1

    def phases(self) -> Counter[Phase]:
        return Counter(session.phase for session in self.table.sessions())


def large() -> Input:
    """A task whose trajectories' metadata make its cancel larger than one transaction in bytes before it is in sessions."""
    return replace(submitted(SAMPLES), plan=replace(PLAN, usable=1, metadata=b'"%s"' % (b"m" * 20_000)))


def plain(disk: Disk) -> Input:
    return large()


def cancelled_before(disk: Disk) -> Input:
    disk.give(CancelRequested("f", "t"))
    return large()


def cancel(disk: Disk) -> Input:
    disk.give(large())
    return CancelRequested("f", "t")


def enough(disk: Disk) -> Input:
    disk.give(large())
    disk.give(CancelRequested("f", "t", "t.600"))
    return TrajectoryEmitted("f", "t.600", 1, 1, 9, 1, Status.COMPLETED, None, 1.0)


def opening(disk: Disk) -> Input:
    disk.give(CancelRequested("f", "t", "t.0"))
    return SessionOpenRequested("f", "t", "claim", 60_000, SAMPLES)


def forgetting(disk: Disk) -> Input:
    disk.give(large())
    disk.give(CancelRequested("f", "t"))
    for index in range(SAMPLES):
        disk.give(TrajectoryEmitted("f", f"t.{index}", 1))
    disk.give(GroupEmitted("f", "t"))
    disk.now = EXPIRY_MS
    return TaskExpired("t")


@pytest.mark.parametrize("crash_after", [1, 2])
@pytest.mark.parametrize("prepare", [plain, cancelled_before, cancel, enough, opening, forgetting])
def test_a_crash_in_the_middle_of_a_large_decision_costs_nothing(
    prepare: Callable[[Disk], Input], crash_after: int
) -> None:
    well, ill = Disk(), Disk()
    given = prepare(well)
    prepare(ill)
    well.give(given)
    ill.give(given, crash_after)
    assert ill.rows != well.rows, "there is more than was committed"
    ill.start()
    ill.give(given)
    assert ill.read() == well.read()
    assert ill.written == well.written, "no session is opened or built twice"
    for disk in (well, ill):
        disk.start()
    assert (ill.phases(), wants(ill.table)) == (well.phases(), wants(well.table))
    assert ill.give(given).records == (), "the same once more changes nothing"


def sessions(count: int) -> Batch:
    rows = (SessionState(f"t.{index}", "t", index, Phase.QUEUED, 0) for index in range(count))
    return Batch.of(Decision(sessions=tuple(rows)))


def test_decisions_share_a_transaction_only_within_its_limits() -> None:
    """Otherwise a crash in the middle would leave some facts decided, and the position before them."""
    assert sessions(SESSIONS - 1).fits(sessions(1))
    assert not sessions(SESSIONS).fits(sessions(1))
    half = Batch.of(Decision(tasks=(TaskState("t", body=bytes(BYTES // 2)),)))
    assert half.fits(sessions(1))
    assert not half.fits(half)


def test_what_changes_twice_is_written_once_as_it_is_last() -> None:
    disk = Disk()
    disk.give(submitted())
    batch = Batch()
    for given in (CancelRequested("f", "t"), TrajectoryEmitted("f", "t.0", 1)):
        decision = decide(disk.table, given, 0)
        disk.table.apply(decision)
        batch.add(Batch.of(decision))
    (part,) = batch.transactions()
    row = CODEC.decode(part.rows["session:t.0"] or b"")
    assert isinstance(row, SessionState)
    assert row.phase is Phase.ENDED
    assert [type(record.record).__name__ for record in part.records] == ["Open", "Build", "CloseGroup"]


def test_the_commands_of_a_large_cancel_all_go_out() -> None:
    disk = Disk()
    disk.give(SessionOpenRequested("f", "t", "claim", 60_000, SAMPLES))
    decision = disk.give(CancelRequested("f", "t"))
    assert Batch.of(decision).commands == [Revoke("t.0", "claim", "cancelled"), CloseKey("t.0", "claim")]
