"""Transitions of a whole task: submitted, cancelled, stopped early, ended, expired. Pure, as `decide` is.

A session is cancelled in the same way by people and by `early_stop`, which acts once the group has as many usable trajectories as its task
requests. A session that is being built by then isn't changed.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from consumers.coordinator.commands import NOTHING, Decision, RejectTask, TaskExpired
from consumers.coordinator.endings import build, close_run, initial_sessions, stop_claim, with_claim_revoked
from consumers.coordinator.state import Table
from topics.completions import CloseGroup
from topics.events import CancelRequested, GroupEmitted, TaskSubmitted, TrajectoryEmitted
from topics.types.errors import Kind, SessionError
from topics.types.session import CLAIMED_STAGES, Phase, SessionState, Status, TaskState


def submitted(table: Table, fact: TaskSubmitted, now: int) -> Decision:
    """A new task, with all its sessions. The same task submitted again changes nothing."""
    known = table.task(fact.task_id)
    if known is not None and known.body_hash is not None:
        if known.body_hash == fact.body_hash:
            return Decision(skipped="duplicate_task")
        return Decision(
            commands=(RejectTask(fact, "this task_id is already used with another body; choose another id"),)
        )
    task = replace(
        known or TaskState(fact.task_id),
        num_samples=fact.num_samples,
        body_hash=fact.body_hash,
        body=fact.body,
        body_ref=fact.body_ref,
        plan=fact.plan,
    )
    begun = initial_sessions(table, task, Phase.QUEUED, now)
    return Decision(tasks=(task,), sessions=begun.sessions, records=begun.records)


def cancel_requested(table: Table, fact: CancelRequested, now: int) -> Decision:
    """Cancel a task or one session; remembered if the task isn't known yet (protocol 27)."""
    task = table.task(fact.task_id) or TaskState(fact.task_id, cancelled_at=now)
    if fact.session_id is None:
        if task.cancelled:
            return Decision(skipped="already_cancelled")
        task = replace(task, cancelled=True)
        sessions = table.sessions_of(fact.task_id)
    elif task.body_hash is None:
        if fact.session_id in task.cancelled_sessions:
            return Decision(skipped="already_cancelled")
        task = replace(task, cancelled_sessions=[*task.cancelled_sessions, fact.session_id])
        sessions = []
    else:
        found = table.session(fact.session_id)
        if found is None:
            return Decision(skipped="unknown_session")
        sessions = [found]
    return _together(task, [_cancelled(table, session, now, session.error) for session in sessions])


def emitted(table: Table, session: SessionState, fact: TrajectoryEmitted, now: int) -> Decision:
    """A session's trajectory is written. The group's last one closes the group; enough usable ones cancel the other sessions."""
    ended = replace(
        session,
        phase=Phase.ENDED,
        since=now,
        runtime=None,
        revoked_claims=[],
        calls=fact.calls,
        trainable_tokens=fact.trainable_tokens,
    )
    if fact.status is not None:
        # The values that trainers read count, even if the build failed.
        ended = replace(ended, status=fact.status, error=fact.error, reward=fact.reward)
    is_usable = ended.trainable_tokens > 0 and ended.reward is not None
    before = table.task_of(session)
    task = replace(before, ended=before.ended + 1, usable=before.usable + is_usable)
    assert task.plan is not None, "a session's task is known"
    if task.ended == task.num_samples:
        group = [ended if other.session_id == ended.session_id else other for other in table.sessions_of(task.task_id)]
        return Decision(tasks=(task,), sessions=(ended,), records=(close_group(task, group),))
    is_enough = is_usable and task.usable == task.plan.usable
    others = (other for other in table.sessions_of(task.task_id) if other.session_id != ended.session_id)
    stopped = [_cancelled(table, other, now, _early_stop(task, other)) for other in others] if is_enough else []
    return _together(task, [*stopped, Decision(sessions=(ended,))])


def group_emitted(table: Table, fact: GroupEmitted, now: int) -> Decision:
    """`GroupFinished` is written: no ticket needs the task's body any more."""
    task = table.task(fact.task_id)
    if task is None or task.closed_at is not None:
        return Decision(skipped="unknown_or_closed_group")
    if task.body_hash is None or task.ended < task.num_samples:
        return Decision(skipped="group_goes_on")
    return Decision(tasks=(replace(task, closed_at=now, body=None, body_ref=None),))


def expired(table: Table, event: TaskExpired, now: int) -> Decision:
    """Tombstones for all rows of the task."""
    if not table.is_expired(event.task_id, now):
        return Decision(skipped="not_forgettable")
    sessions = [f"session:{session.session_id}" for session in table.sessions_of(event.task_id)]
    return Decision(deleted=(*sessions, f"task:{event.task_id}"))


def _cancelled(table: Table, session: SessionState, now: int, error: SessionError | None) -> Decision:
    match session.phase:
        case Phase.CLOSING | Phase.BUILDING | Phase.ENDED:
            return NOTHING
        case Phase.RUNNING:
            return close_run(session, now, Status.CANCELLED, error, reason="cancelled")
        case _:
            stop = stop_claim(session, "cancelled") if session.phase in CLAIMED_STAGES else ()
            ended = replace(with_claim_revoked(session), status=Status.CANCELLED, error=error)
            built = build(table.task_of(session), ended, now)
            return Decision(sessions=built.sessions, records=built.records, commands=(*stop, *built.commands))


def _early_stop(task: TaskState, session: SessionState) -> SessionError:
    stage = CLAIMED_STAGES[session.phase].value if session.phase in CLAIMED_STAGES else "queue"
    message = (
        f"{task.usable} usable trajectories of its group are written, as many as its task requests (early_stop.usable)"
    )
    return SessionError(stage, Kind.BUDGET, "early_stop", message)


def close_group(task: TaskState, group: Iterable[SessionState]) -> CloseGroup:
    """The record that ends a group whose sessions, in the order of their samples, have all ended."""
    sessions = list(group)
    assert task.plan is not None, "a session's task is known"
    return CloseGroup(
        task.task_id,
        task.num_samples,
        rewards=[session.reward for session in sessions],
        statuses=[session.status or Status.FAILED for session in sessions],
        output=task.plan.output,
        callback_url=task.plan.callback_url,
        run=task.plan.run,
    )


def _together(task: TaskState, decided: Iterable[Decision]) -> Decision:
    decided = list(decided)
    return Decision(
        tasks=(task,),
        sessions=tuple(s for d in decided for s in d.sessions),
        records=tuple(r for d in decided for r in d.records),
        commands=tuple(c for d in decided for c in d.commands),
    )
