"""Reads finished sessions from the lake, each with its trajectory and the whole messages of its calls.

The lake keeps what Kafka's retention removes, and SQL selects and sorts there. Invariant: the order is that of task id and sample index, so
two exports of one lake see the same sessions in the same order. Memory is bounded by the sessions' ids and one portion of their content,
which is at most PORTION_TOKENS tokens or one session.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import msgspec

from analytics.lake import records
from analytics.lake.rows import Row
from analytics.queries.query import Reader
from analytics.queries.view import NEWEST
from analytics.queries.views import quoted
from topics.calls.resolver import DeltaError, Resolver
from topics.types.completion import JUDGE, Completion
from topics.types.trajectory import Call, Trajectory

PORTION_TOKENS = 2_000_000
"""Most tokens of the trajectories that are read at once."""
PORTION_SESSIONS = 500
"""Most sessions that are read at once."""
REPOSITORY = ("swe.repo", "repo", "repository")
"""Fields of a task's metadata that name its repository; the first is that of imported SWE-bench rows."""
POSITION = ("log_partition", "log_offset")
"""Columns that name the record of a trajectory's row, also in the tables of its parts."""


@dataclass(frozen=True)
class Selection:
    """Which sessions are exported; every field that is set must hold."""

    tasks: Sequence[str] = ()
    """Empty: all tasks."""
    run: str | None = None
    harness: str | None = None
    """As in the view `trajectories`: the name of an opened session's harness is `external:` and its client's."""
    output: str | None = None
    """Suffix of the trajectories topic; None: the default one."""
    where: str | None = None
    """SQL condition on the view `trajectories`."""


@dataclass(frozen=True)
class Finished:
    """A finished session, without its content."""

    session_id: str
    task_id: str
    sample_index: int
    status: str
    reward: float | None
    traces: int
    tokens: int
    """In its token tree, each once."""
    trainable_tokens: int
    """Those of `tokens` that are trained."""
    longest_trace: int
    """Tokens of its longest trace; 0: it has none."""
    repository: str | None
    """The first of REPOSITORY in the task's metadata; None: it has none of them."""
    artifacts: Collection[str]
    """Names, such as `patch` or `evaluation_output`."""


@dataclass(frozen=True)
class ExportedCall:
    """A call of a trajectory."""

    call: Call
    messages: list[dict[str, Any]]
    """The whole canonical chat messages of the prompt; empty if there is a `gap`."""
    answer: dict[str, Any] | None
    """The canonical assistant message; None: no answer, or a `gap`."""
    tools: list[dict[str, Any]]
    """The definitions of the tools that were offered; empty also if there is a `gap`."""
    record: Completion | None
    """The whole record, with deltas; None: the lake doesn't have it."""
    gap: str | None = None
    """Why the messages aren't known; None: they are."""


@dataclass(frozen=True)
class ExportedSession:
    """A finished session with its content."""

    trajectory: Trajectory
    """As on Kafka, without `Stats.filtered`, and with its traces in the order of their leaves."""
    calls: list[ExportedCall]
    """In the trajectory's order."""

    @property
    def gap(self) -> str | None:
        """The gap of its first call that has one; None: all messages are known."""
        return next((call.gap for call in self.calls if call.gap is not None), None)


def select(reader: Reader, selection: Selection) -> list[Finished]:
    """The selected sessions, by task id and sample index. Raises as `Reader.ask`: InputError for a wrong `where`."""
    repository = ", ".join(f"json_extract_string(metadata, '$.{path}')" for path in REPOSITORY)
    sql = f"""
        WITH
            kept AS (SELECT session_id, output FROM lake.trajectories {NEWEST}),
            lengths AS (SELECT session_id, max(tokens) AS longest FROM traces GROUP BY session_id)
        SELECT
            session_id, task_id, sample_index, status, reward, traces, tokens, trainable_tokens,
            coalesce(longest, 0) AS longest, coalesce({repository}) AS repository, coalesce(map_keys(artifacts), []) AS artifacts
        FROM trajectories JOIN kept USING (session_id) LEFT JOIN lengths USING (session_id)
        WHERE {" AND ".join(_conditions(selection))}
        ORDER BY task_id, sample_index
    """  # noqa: S608 - quoted, and only reads are run
    return [Finished(*row) for row in reader.ask(sql).rows()]


def read(reader: Reader, wanted: Iterable[Finished]) -> Iterator[ExportedSession]:
    """The wanted sessions with their content, in the given order. Raises as `Reader.ask`."""
    for portion in _portions(wanted):
        yield from _read(reader, portion)


def _conditions(selection: Selection) -> Iterator[str]:
    yield "output IS NULL" if selection.output is None else f"output = {quoted(selection.output)}"
    if selection.tasks:
        yield f"task_id IN ({', '.join(map(quoted, selection.tasks))})"
    if selection.run is not None:
        yield f"run = {quoted(selection.run)}"
    if selection.harness is not None:
        yield f"harness = {quoted(selection.harness)}"
    if selection.where is not None:
        # A line end ends a comment that the condition may end with.
        yield f"({selection.where}\n)"


def _portions(wanted: Iterable[Finished]) -> Iterator[list[str]]:
    """The sessions' ids in portions."""
    portion: list[str] = []
    tokens = 0
    for one in wanted:
        if portion and (tokens + one.tokens > PORTION_TOKENS or len(portion) == PORTION_SESSIONS):
            yield portion
            portion, tokens = [], 0
        portion.append(one.session_id)
        tokens += one.tokens
    if portion:
        yield portion


def _read(reader: Reader, portion: Sequence[str]) -> Iterator[ExportedSession]:
    """A portion's sessions, in its order."""
    listed = ", ".join(map(quoted, portion))

    def rows(table: str, order: str, condition: str = "true") -> Iterator[Row]:
        query = f"FROM lake.{table} WHERE session_id IN ({listed}) AND {condition} ORDER BY session_id, {order}"
        _, batches = reader.batches(query)
        for batch in batches:
            yield from batch.to_pylist(maps_as_pydicts="strict")

    # Log order of the newest last, so that it is the one that stays.
    trajectories = {row["session_id"]: row for row in rows("trajectories", "logged_at, log_offset")}
    calls = _of_newest(trajectories, rows("trajectory_calls", "call"))
    nodes = _of_newest(trajectories, rows("nodes", "node"))
    traces = _of_newest(trajectories, rows("traces", "leaf"))
    captured = _by_session(rows("completions", "log_offset", f"kind <> {quoted(JUDGE)}"))
    for session_id in portion:
        whole = records.trajectory(
            trajectories[session_id], calls.get(session_id, ()), nodes.get(session_id, ()), traces.get(session_id, ())
        )
        yield ExportedSession(whole, _calls(whole, map(records.completion, captured.get(session_id, ()))))


def _of_newest(trajectories: Mapping[str, Row], rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows by session, without those of older trajectories (a session may end a second time)."""
    position = operator.itemgetter(*POSITION)
    return _by_session(row for row in rows if position(row) == position(trajectories[row["session_id"]]))


def _by_session(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Rows that are sorted by session."""
    return {session_id: list(group) for session_id, group in groupby(rows, operator.itemgetter("session_id"))}


def _calls(trajectory: Trajectory, captured: Iterable[Completion]) -> list[ExportedCall]:
    """The trajectory's calls, out of all captured calls of its session in log order."""
    resolver = Resolver()
    found: dict[str, Completion] = {}
    gaps: dict[str, str] = {}
    for record in captured:
        try:
            resolver.add(record)
        except DeltaError as error:
            gaps[record.call_id] = str(error)
        found.setdefault(record.call_id, record)
    return [_call(call, found.get(call.call_id), gaps.get(call.call_id), resolver) for call in trajectory.calls]


def _call(call: Call, record: Completion | None, gap: str | None, resolver: Resolver) -> ExportedCall:
    if record is None:
        return ExportedCall(call, [], None, [], None, f"call {call.call_id}: the lake has no record of it")
    if gap is not None:
        return ExportedCall(call, [], None, [], record, gap)
    answer = msgspec.json.decode(record.answer) if record.answer else None
    return ExportedCall(call, resolver.messages(call.call_id), answer, resolver.tools(call.call_id), record)
