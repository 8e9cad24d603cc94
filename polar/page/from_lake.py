"""Facts of a session that only the lake has: logprobs of `polar verify`, and stages from before the page began to read."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from analytics.live.session_rows import SessionRows, StageTime
from analytics.queries import query, views
from topics import events
from topics.environment.settings import Settings
from topics.types.errors import Kind, NotReadyError, SessionError
from topics.types.session import Plan, Stage, Status

FACTS = """
    SELECT fact, session_id, attempt, claim_id, stage, worker_id, status, error_kind, error_code, epoch_ms(logged_at)
    FROM lake.events
    WHERE session_id = {session_id} OR (task_id = {task_id} AND fact = 'task_submitted')
    ORDER BY log_offset
"""
"""A task's facts are in one partition, so their offsets give their order."""

NO_PLAN = Plan("", 0, 1, 0, 0, 0, "", "", b"{}", None, "", b"{}")
"""The plan of a submission of which only the time counts."""


def scored_logprobs(settings: Settings, trace_id: str) -> list[float] | None:
    """A logprob for each token that the trace trains, NaN where none was scored; None without a verification, or without a lake."""
    sql = f"SELECT logprobs FROM verifications WHERE trace_id = {views.quoted(trace_id)} ORDER BY verified_at"  # noqa: S608 - quoted
    found: list[list[float]] = [row[0] for row in _rows(settings, sql)]
    if not found:
        return None
    merged = [math.nan] * max(map(len, found))
    for logprobs in found:  # each engine scores the tokens that it sampled
        for n, logprob in enumerate(logprobs):
            merged[n] = merged[n] if math.isnan(logprob) else logprob
    return merged


def timeline(settings: Settings, session_id: str) -> list[StageTime]:
    """The stages of a session, by the same fold as those of the log; empty without a lake."""
    task_id = session_id.rpartition(".")[0]
    fold = SessionRows()
    sql = FACTS.format(session_id=views.quoted(session_id), task_id=views.quoted(task_id))
    for row in _rows(settings, sql):
        fact = _fact(session_id, *row[:-1])
        if fact is not None:
            fold.fact(fact, row[-1])
    return fold.timeline(session_id)


def _rows(settings: Settings, sql: str) -> Iterator[tuple[Any, ...]]:
    """The rows of a query; none without a lake."""
    try:
        with query.connect(settings) as reader:
            yield from reader.ask(sql).rows()
    except NotReadyError:
        return


def _fact(
    session_id: str,
    kind: str,
    _: str | None,
    attempt: int | None,
    claim_id: str | None,
    stage: str | None,
    worker_id: str | None,
    status: str | None,
    error_kind: str | None,
    error_code: str | None,
) -> events.Fact | None:
    """A row of the lake as the fact that it was, with what a timeline needs of it; None for others."""
    of_claim = ("", session_id, attempt or 1, claim_id or "")
    error = None
    if error_kind is not None and error_code is not None:
        error = SessionError(stage or "", Kind(error_kind), error_code, "")
    match kind:
        case "task_submitted":
            return events.TaskSubmitted("", session_id.rpartition(".")[0], 1, "", NO_PLAN)
        case "claimed":
            return events.Claimed("", session_id, attempt or 1, Stage(stage or ""), claim_id or "", worker_id or "")
        case "init_finished":
            return events.InitFinished(*of_claim, error=error)
        case "run_finished":
            return events.RunFinished(*of_claim, Status(status or ""), error=error)
        case "evaluated":
            return events.Evaluated(*of_claim, error=error)
        case "stopped":
            return events.Stopped(*of_claim)
        case "handed_back":
            return events.HandedBack(*of_claim)
    return None
