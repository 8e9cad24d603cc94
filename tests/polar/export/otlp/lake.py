"""Sessions in a lake with the facts of their stages, whose times are known."""

from __future__ import annotations

from collections.abc import Sequence

from analytics.lake import rows
from analytics.lake.manifest import Lake
from analytics.lake.rows import Row
from analytics.writing.flush import flush
from topics.environment.settings import Settings
from topics.events import Evaluated, Fact, InitFinished, RunFinished, TrajectoryEmitted
from topics.types.session import Accounting, Status

ACCOUNTING = Accounting(init_queued_ms=5, init_ms=2000, run_ms=10_000, evaluate_ms=3000)


def facts(session_id: str) -> list[Fact]:
    """The facts of a session with ACCOUNTING, in order."""
    init = InitFinished("f1", session_id, 1, "c1", duration_ms=2000)
    run = RunFinished("f2", session_id, 1, "c2", Status.COMPLETED, duration_ms=10_000)
    return [init, run, Evaluated("f3", session_id, 1, "c3", 1.0, duration_ms=3000), emitted(session_id)]


def emitted(session_id: str) -> Fact:
    return TrajectoryEmitted("f4", session_id, 1)


def write_facts(settings: Settings, timed: Sequence[tuple[Fact, int]]) -> None:
    """Add facts with the times of their records, Unix ms, to the lake."""
    lake = Lake(settings.lake_folder)
    lake.prepare()
    found: dict[str, list[Row]] = {}
    for offset, (fact, logged_ms) in enumerate(timed):
        at = {"log_partition": 0, "log_offset": offset, "logged_at": logged_ms}
        for table, row in rows.of_record(fact, at):
            found.setdefault(table, []).append(row)
    with lake.writing() as writing:
        assert flush(lake, writing, found, {}, {}) == 0
