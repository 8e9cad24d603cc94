"""Finds the sessions that weren't sent yet, in the order of the log, a portion at a time.

A session is complete in the lake once its `trajectory_emitted` is there, which follows all its facts in one partition, and the record of
each of its calls. Topics are read independently, so a trajectory may come first. An incomplete session stops its partition, for WAIT_MS at
most: after that its missing records were lost to retention, and what is there is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from analytics.queries.query import Reader
from analytics.queries.view import NEWEST
from analytics.queries.views import quoted
from polar.export import sessions
from polar.export.otlp import position as positions
from polar.export.otlp.position import Position, Reached
from polar.export.otlp.spans import StageReport
from polar.export.sessions import Finished, Selection
from topics.types.session import Stage

PORTION_SESSIONS = 100
"""Number of sessions between two writes of the position. An export that was killed sends at most this number again."""
WAIT_MS = 10 * 60 * 1000


@dataclass(frozen=True)
class Unsent:
    """A session behind the position."""

    session_id: str
    partition: int
    offset: int
    logged_ms: int
    is_complete: bool


@dataclass(frozen=True)
class Portion:
    """The sessions that are sent next."""

    finished: list[Finished]
    emitted_ms: dict[str, int]
    """Time of the trajectory's record, by session."""
    after: dict[int, Reached]
    """Where partitions stand once it was sent."""
    waiting: set[int] = field(default_factory=set)
    """Partitions that an incomplete session stops."""


def next_portion(reader: Reader, selection: Selection, position: Position, stopped: set[int]) -> Portion | None:
    """The sessions after the position, but for those of `stopped` partitions; None if there is nothing. Raises as `Reader.ask`."""
    rows = _unsent(reader, selection, position, stopped)
    if not rows:
        return None
    ids = ", ".join(quoted(row.session_id) for row in rows)
    named = f"session_id IN ({ids})"
    where = named if selection.where is None else f"({selection.where}\n) AND {named}"
    chosen = {one.session_id: one for one in sessions.select(reader, replace(selection, where=where))}
    portion = Portion([], {}, {})
    for row in rows:
        if row.partition in portion.waiting:
            continue
        is_due = row.is_complete or reader.manifest.committed_at - row.logged_ms > WAIT_MS
        if row.session_id in chosen and not is_due:
            portion.waiting.add(row.partition)
            continue
        if row.session_id in chosen:
            portion.finished.append(chosen[row.session_id])
            portion.emitted_ms[row.session_id] = row.logged_ms
        before = portion.after.get(row.partition) or position.partitions.get(row.partition, Reached())
        portion.after[row.partition] = before.passed(row.offset, row.logged_ms)
    return portion


def new_logs(reader: Reader, selection: Selection, position: Position) -> dict[int, Reached]:
    """The partitions whose offsets began anew: they have records that are newer than all that were passed, at passed offsets."""
    renewed = {}
    for number, reached in position.partitions.items():
        found = reader.ask(
            f"SELECT 1 FROM lake.trajectories WHERE {_of_output(selection)} AND log_partition = {number} "  # noqa: S608 - numbers
            f"AND log_offset < {reached.next_offset} AND epoch_ms(logged_at) > {reached.newest_ms} LIMIT 1"
        )
        if [*found.rows()]:
            renewed[number] = reached.of_new_log()
    return renewed


def reports(reader: Reader, finished: Sequence[Finished]) -> dict[str, list[StageReport]]:
    """The reports of ended stages, by session. Raises as `Reader.ask`."""
    ids = ", ".join(quoted(one.session_id) for one in finished)
    sql = f"""
        SELECT session_id, stage, attempt, epoch_ms(logged_at), duration_ms FROM lake.events
        WHERE fact IN ('init_finished', 'run_finished', 'evaluated') AND session_id IN ({ids})
    """  # noqa: S608 - quoted, and only reads are run
    found: dict[str, list[StageReport]] = {one.session_id: [] for one in finished}
    for session_id, stage, attempt, ended_ms, duration_ms in reader.ask(sql).rows():
        found[session_id].append(StageReport(Stage(stage), attempt, ended_ms, duration_ms))
    return found


def _unsent(reader: Reader, selection: Selection, position: Position, stopped: set[int]) -> list[Unsent]:
    free = f"log_partition NOT IN ({', '.join(map(str, stopped))})" if stopped else "true"
    sql = f"""
        WITH
            newest AS (FROM lake.trajectories {NEWEST}),
            behind AS (
                SELECT session_id, log_partition, log_offset, logged_at FROM newest
                WHERE {_of_output(selection)} AND {free} AND {positions.condition(position.partitions.items())}
                ORDER BY log_partition, log_offset LIMIT {PORTION_SESSIONS}
            ),
            emitted AS (
                SELECT DISTINCT session_id FROM lake.events
                WHERE fact = 'trajectory_emitted' AND session_id IN (SELECT session_id FROM behind)
            ),
            captured AS (
                SELECT DISTINCT session_id, call_id FROM lake.completions WHERE session_id IN (SELECT session_id FROM behind)
            ),
            lacking AS (
                SELECT DISTINCT session_id FROM lake.trajectory_calls ANTI JOIN captured USING (session_id, call_id)
                WHERE session_id IN (SELECT session_id FROM behind)
            )
        SELECT
            session_id, log_partition, log_offset, epoch_ms(logged_at),
            session_id IN (SELECT session_id FROM emitted) AND session_id NOT IN (SELECT session_id FROM lacking)
        FROM behind ORDER BY log_partition, log_offset
    """  # noqa: S608 - quoted, and only reads are run
    return [Unsent(*row) for row in reader.ask(sql).rows()]


def _of_output(selection: Selection) -> str:
    return "output IS NULL" if selection.output is None else f"output = {quoted(selection.output)}"
