"""Why a task has no sessions, and what a session waits for: causes before its end."""

from __future__ import annotations

from polar.diagnosis.causes import Cause, Entry
from polar.diagnosis.facts import Facts
from topics import events, tasks
from topics.types.session import CLAIMED_STAGES, Phase, Stage

REFUSING = (tasks.TOPIC.name, events.TOPIC.name)
"""Topics whose dead letters refuse a task that no coordinator shows."""


def _is_unread(facts: Facts) -> bool:
    """Whether Kafka was read and no coordinator shows the task, although nobody refused it."""
    return facts.system.kafka is None and not facts.is_known and not _is_refused(facts) and not _is_cancelled(facts)


def _is_refused(facts: Facts) -> bool:
    return not facts.is_known and any(letter.topic.endswith(REFUSING) for letter in facts.letters)


def _is_cancelled(facts: Facts) -> bool:
    return not facts.is_known and facts.task is not None and facts.task.cancelled


def _lacks(facts: Facts, role: str) -> bool:
    return not facts.system.processes.get(role)


def _is_draining(facts: Facts) -> bool:
    return facts.waits_for is not None and facts.system.is_draining


def _has_no_free_slot(facts: Facts) -> bool:
    is_served = facts.waits_for is not None and not facts.missing_stages and not facts.system.is_draining
    return is_served and facts.slots.free == 0


def _has_no_room_to_run(facts: Facts) -> bool:
    run = facts.system.slots_of(Stage.RUN, facts.pool)
    return (
        facts.phase is Phase.QUEUED
        and not facts.system.is_draining
        and facts.slots.free > 0
        and run.total > 0
        and run.free == 0
    )


ENTRIES = (
    Entry(
        Cause.KAFKA_AWAY,
        lambda facts: facts.system.kafka is not None,
        "Kafka can't be read ({kafka}). Nothing is lost; sessions go on when it is back.",
        "Start Kafka, or correct POLAR_KAFKA or --data; `polar doctor` checks the connection.",
    ),
    Entry(
        Cause.REFUSED,
        _is_refused,
        "{letter_process} refused the task: {letter_reason}.",
        "Correct the task and submit it again; its id is free. If the system lacks a plug-in, install it where fanout runs, then "
        "`polar dead-letters replay {letter}`.",
    ),
    Entry(
        Cause.NO_FANOUT,
        lambda facts: _is_unread(facts) and _lacks(facts, "fanout"),
        "No coordinator shows the task, and no live fanout reads submitted tasks.",
        "Start one: `polar worker fanout`. A submitted task stays on Kafka until it is read.",
    ),
    Entry(
        Cause.NO_COORDINATOR,
        lambda facts: (_is_unread(facts) or facts.is_open) and _lacks(facts, "coordinator"),
        "No coordinator is alive, so nothing is decided.",
        "Start one: `polar worker coordinator`. If one runs, read its log for the reason why it can't recover.",
    ),
    Entry(
        Cause.OBSTACLE,
        lambda facts: (_is_unread(facts) or facts.phase is Phase.QUEUED) and bool(facts.system.obstacles),
        "A process waits for a person: {obstacles}.",
        "Do what the sentence says; work goes on by itself afterwards. `polar status` shows when it is gone.",
    ),
    Entry(
        Cause.CANCELLED_BEFORE,
        lambda facts: _is_cancelled(facts) and not _is_refused(facts),
        "It was cancelled before it was submitted.",
        "Submit it under another id.",
    ),
    Entry(
        Cause.UNKNOWN,
        _is_unread,
        "No coordinator shows this task, and nobody refused it.",
        "Check the id with `polar list`, and the system with --data or POLAR_NAMESPACE. Tasks are forgotten 8 days after their end; the "
        "lake keeps them (`polar sql`).",
        is_general=True,
    ),
    Entry(
        Cause.DEAD_LETTER,
        lambda facts: facts.is_known and bool(facts.letters),
        "{letter_process} could not process a record about it: {letter_reason}.",
        "`polar dead-letters show {letter}` prints the record. Once the cause is gone: `polar dead-letters replay {letter}`.",
    ),
    Entry(
        Cause.SUBMITTED,
        lambda facts: facts.is_known and facts.session is None,
        "A coordinator has just read the task, and is making its sessions.",
        "Wait. If it stays so for a minute, read the log of a coordinator.",
        is_general=True,
    ),
    Entry(
        Cause.NO_WORKERS,
        lambda facts: bool(facts.missing_stages),
        "No live worker of pool {pool} serves {stages}, for which it waits.",
        "Start one: `polar worker {stages} --pool {pool}`. The session waits up to 6 days.",
    ),
    Entry(
        Cause.DRAINING,
        _is_draining,
        "The fleet is draining, so no session gets a slot.",
        "`polar fleet resume`",
    ),
    Entry(
        Cause.SLOTS_BUSY,
        _has_no_free_slot,
        "It waits for a free slot of stage {stage}: all {slots} of pool {pool} are busy.",
        "Wait, or start more workers: `polar worker {stage} --pool {pool}`. `priority` in a task puts its sessions first.",
    ),
    Entry(
        Cause.RUN_SLOTS_BUSY,
        _has_no_room_to_run,
        "All {run_slots} run slots of pool {pool} are busy, and at most one sandbox for each run slot is prepared in advance.",
        "Wait, or start more run workers: `polar worker run --pool {pool}`.",
    ),
    Entry(
        Cause.PAUSED,
        lambda facts: facts.phase is Phase.RUNNING and facts.system.is_paused,
        "The fleet is paused: new model calls wait, and the time of runs stands still.",
        "Wait for the trainer that paused it. If that trainer is dead: `polar fleet resume`.",
    ),
    Entry(
        Cause.NO_BUILDER,
        lambda facts: facts.phase is Phase.BUILDING and _lacks(facts, "builder"),
        "Its run is over, and no live builder makes its trajectory.",
        "Start one: `polar worker builder`.",
    ),
    Entry(
        Cause.ATTEMPT_FAILED,
        lambda facts: facts.is_open and facts.attempt_error is not None,
        "It is in attempt {attempt}: the attempt before ended with {earlier}.",
        "It goes on by itself. If attempts keep failing, remove that cause; `polar show {name}` has the log of the last run.",
    ),
    Entry(
        Cause.ATTEMPT_LOST,
        lambda facts: (
            facts.is_open and facts.session is not None and facts.session.attempt > 1 and facts.attempt_error is None
        ),
        "It is in attempt {attempt}. Nothing of the last 3 hours says how the attempt before ended: its worker was lost, or gave it back "
        "as it stopped.",
        "It goes on by itself. If workers are lost often, read their logs; a coordinator logs each loss (`polar logs deciding`).",
    ),
    Entry(
        Cause.UNOPENED,
        lambda facts: facts.phase is Phase.UNOPENED,
        "Nobody has opened this sample of the task yet.",
        "`polar session open --task {task}`. It ends by itself a day after the task's first session was opened.",
    ),
    Entry(
        Cause.NEXT,
        lambda facts: facts.waits_for is not None,
        "It is next: a worker with a free slot of stage {stage} gets it within seconds.",
        "Wait. If it stays so for a minute, read the log of a coordinator.",
        is_general=True,
    ),
    Entry(
        Cause.AGENT_WORKS,
        lambda facts: facts.phase is Phase.RUNNING and facts.is_opened,
        "It is open for an agent of your own, which has {answered} answers so far.",
        "`polar session close {name}` ends it; otherwise its time to live does.",
        is_general=True,
    ),
    Entry(
        Cause.WORKS,
        lambda facts: facts.phase in CLAIMED_STAGES,
        "It works: {worker} has its stage {stage}, with {answered} answers of the model so far.",
        "Wait, or `polar cancel {name}`. `polar show {name}` prints its transcript so far.",
        is_general=True,
    ),
    Entry(
        Cause.CLOSING,
        lambda facts: facts.phase is Phase.CLOSING,
        "Its run is over; its harness is being ended, which takes at most 2 s.",
        "Wait.",
        is_general=True,
    ),
    Entry(
        Cause.BUILDING,
        lambda facts: facts.phase is Phase.BUILDING,
        "Its run is over, and the builder makes its trajectory.",
        "Wait. If it stays so for a minute, read the log of a builder.",
        is_general=True,
    ),
)
