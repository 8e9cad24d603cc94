"""Each state of a session × each input: the outcome, compared with the coordinator's own tables.

A state is a phase plus what matters in it: whether a ticket is released, whether this is the last attempt. `o.` marks opened sessions. An
outcome is the next phase (or `stays`), then the records written and commands sent. The last tests fail for a phase, an input or a
transition without a case.
"""

from __future__ import annotations

from collections.abc import Callable
from types import UnionType
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from consumers.coordinator import commands
from consumers.coordinator.commands import Decision, Input
from consumers.coordinator.deadlines import EXPIRY_MS, deadline_of
from consumers.coordinator.decide import OPENED, TRANSITIONS
from tests.consumers.coordinator.bench import PLAN, Bench, submitted
from topics import events
from topics.control import Revoke
from topics.types.errors import Kind, SessionError
from topics.types.session import Phase, Stage, Status

TASK = replace(submitted(2), plan=replace(PLAN, usable=1))
"""The cases are about session `t.0`; `t.1` is being built all the time."""
INFRA = SessionError("x", Kind.INFRA, "broken", "broken", retryable=True)
NEVER = 2**60


# --- states


def queued(attempt: int = 1) -> Bench:
    bench = Bench()
    bench.give(TASK, events.CancelRequested("f", "t", "t.1"))
    for lost in range(1, attempt):
        bench.assign(Stage.INIT)
        bench.claim(Stage.INIT, f"lost{lost}", attempt=lost)
        bench.give(commands.ClaimLost("t.0", f"lost{lost}"))
    return bench


def ticketed(bench: Bench, stage: Stage) -> Bench:
    bench.assign(stage)
    return bench


def claimed(bench: Bench, stage: Stage) -> Bench:
    bench.assign(stage)
    bench.claim(stage, stage.value, attempt=bench.session().attempt)
    return bench


def ready(attempt: int = 1) -> Bench:
    bench = claimed(queued(attempt), Stage.INIT)
    bench.give(events.InitFinished("f", "t.0", attempt, "init", runtime={"dir": "x"}))
    return bench


def running(attempt: int = 1) -> Bench:
    return claimed(ready(attempt), Stage.RUN)


def ran() -> Bench:
    bench = running()
    bench.give(events.RunFinished("f", "t.0", 1, "run", Status.COMPLETED, 0))
    return bench


def evaluating(tries: int = 1) -> Bench:
    bench = claimed(ran(), Stage.EVALUATE)
    for _ in range(1, tries):
        bench.give(commands.ClaimLost("t.0", "evaluate"))
        claimed(bench, Stage.EVALUATE)
    return bench


def after(bench: Bench, *inputs: Input) -> Bench:
    bench.give(*inputs)
    return bench


def opened() -> Bench:
    bench = Bench()
    bench.give(events.SessionOpenRequested("f", "t", "run", 60_000, 2), events.CancelRequested("f", "t", "t.1"))
    return bench


def unopened() -> Bench:
    bench = opened()
    bench.give(events.SessionOpenWithdrawn("f", "t", "run"))
    return bench


CANCEL = events.CancelRequested("f", "t", "t.0")
EVALUATED = events.Evaluated("f", "t.0", 1, "evaluate", reward=1.0)
REPORTS = (
    events.InitFinished
    | events.RunFinished
    | events.Evaluated
    | events.Stopped
    | events.HandedBack
    | events.TrajectoryEmitted
    | commands.ClaimLost
    | commands.PoolOffline
    | commands.DeadlinePassed
)
"""Inputs about a session that somebody else has seen."""
BUILT = events.TrajectoryEmitted("f", "t.0", 1, trainable_tokens=5)

STATES: dict[str, Callable[[], Bench]] = {
    "queued": queued,
    "queued,ticket": lambda: ticketed(queued(), Stage.INIT),
    "init": lambda: claimed(queued(), Stage.INIT),
    "init,last": lambda: claimed(queued(3), Stage.INIT),
    "ready": ready,
    "ready,ticket": lambda: ticketed(ready(), Stage.RUN),
    "running": running,
    "running,last": lambda: running(3),
    "ran": ran,
    "ran,ticket": lambda: ticketed(ran(), Stage.EVALUATE),
    "evaluating": evaluating,
    "evaluating,last": lambda: evaluating(3),
    "closing": lambda: after(running(), CANCEL),
    "building": lambda: after(evaluating(), EVALUATED),
    "ended": lambda: after(evaluating(), EVALUATED, BUILT),
    "o.unopened": unopened,
    "o.running": opened,
    "o.closing": lambda: after(opened(), CANCEL),
    "o.building": lambda: after(unopened(), CANCEL),
    "o.ended": lambda: after(unopened(), CANCEL, BUILT),
}


# --- events


def of(make: Callable[..., Input], *values: Any, claim: str | None = None, **more: Any) -> Callable[[Bench], Input]:
    """A worker's fact about the granted claim, or about another."""
    return lambda bench: make(
        "f", "t.0", bench.session().attempt, claim or bench.session().claim_id or "-", *values, **more
    )


def claim(stage: Stage, claim_id: str) -> Callable[[Bench], Input]:
    return lambda bench: events.Claimed("f", "t.0", bench.session().attempt, stage, claim_id, "w")


def at_deadline(bench: Bench) -> Input:
    deadline = deadline_of(bench.session(), bench.table.task_of(bench.session()))
    bench.now = NEVER if deadline is None else deadline
    return commands.DeadlinePassed("t.0")


def at_deadline_paused(bench: Bench) -> Input:
    bench.give(commands.FleetPaused())
    return at_deadline(bench)


def resumed(bench: Bench) -> Input:
    bench.give(commands.FleetPaused())
    return commands.FleetResumed()


def expiring(bench: Bench) -> Input:
    """After the end of the group, if it has one."""
    bench.give(events.TrajectoryEmitted("f", "t.1", 1), events.GroupEmitted("f", "t"))
    bench.now += EXPIRY_MS
    return commands.TaskExpired("t")


def just(event: Input) -> Callable[[Bench], Input]:
    return lambda bench: event


EVENTS: dict[str, Callable[[Bench], Input]] = {
    "cancel": just(CANCEL),
    "cancel of the task": just(events.CancelRequested("f", "t")),
    "early stop": just(events.TrajectoryEmitted("f", "t.1", 1, 1, 9, 1, Status.COMPLETED, None, 1.0)),
    "deadline": at_deadline,
    "deadline in a pause": at_deadline_paused,
    "too early a deadline": just(commands.DeadlinePassed("t.0")),
    "pause": just(commands.FleetPaused()),
    "resume": resumed,
    "worker lost": lambda bench: commands.ClaimLost("t.0", bench.session().claim_id or "-"),
    "pool offline": just(commands.PoolOffline("t.0")),
    "worker drains": of(events.HandedBack),
    "slot": lambda bench: commands.SlotAssigned(slot_of(bench), "default", "w", 0),
    "init claimed": claim(Stage.INIT, "new"),
    "run claimed": claim(Stage.RUN, "new"),
    "evaluate claimed": claim(Stage.EVALUATE, "new"),
    "claimed again": lambda bench: claim(slot_of(bench), bench.session().claim_id or "-")(bench),
    "init finished": of(events.InitFinished, runtime={"dir": "x"}),
    "init failed": of(events.InitFinished, error=INFRA),
    "run finished": of(events.RunFinished, Status.COMPLETED),
    "run failed": of(events.RunFinished, Status.FAILED, error=INFRA),
    "evaluated": of(events.Evaluated, reward=1.0),
    "evaluation failed": of(events.Evaluated, error=INFRA),
    "stopped": of(events.Stopped),
    "init finished, twice": of(events.InitFinished, claim="init", runtime={"dir": "x"}),
    "run finished, twice": of(events.RunFinished, Status.COMPLETED, claim="run"),
    "evaluated, twice": of(events.Evaluated, claim="evaluate", reward=1.0),
    "stopped, twice": of(events.Stopped, claim="run"),
    "zombie's init": of(events.InitFinished, claim="zombie", runtime={"dir": "z"}),
    "zombie's run": of(events.RunFinished, Status.COMPLETED, claim="zombie"),
    "zombie's evaluation": of(events.Evaluated, claim="zombie", reward=1.0),
    "zombie stopped": of(events.Stopped, claim="zombie"),
    "zombie drains": of(events.HandedBack, claim="zombie"),
    "zombie lost": just(commands.ClaimLost("t.0", "zombie")),
    "trajectory": just(BUILT),
    "submitted again": just(TASK),
    "open": just(events.SessionOpenRequested("f", "t", "new", 60_000, 2)),
    "open again": just(events.SessionOpenRequested("f", "t", "run", 60_000, 2)),
    "open withdrawn": just(events.SessionOpenWithdrawn("f", "t", "run")),
    "close": just(events.SessionCloseRequested("f", "t.0", 1.0)),
    "group out": just(events.GroupEmitted("f", "t")),
    "days later": expiring,
}


def slot_of(bench: Bench) -> Stage:
    """The stage that this state waits for or is in."""
    stages = {
        Phase.READY: Stage.RUN,
        Phase.RUNNING: Stage.RUN,
        Phase.RAN: Stage.EVALUATE,
        Phase.EVALUATING: Stage.EVALUATE,
    }
    return stages.get(bench.session().phase, Stage.INIT)


# --- outcomes

EXPECTED = """
cancel
    building, CANCELLED: Open Build                                      <- queued queued,ticket o.unopened
    building, CANCELLED: Open Build Revoke(init, cancelled)              <- init init,last
    building, CANCELLED: Open Build Discard                              <- ready ready,ticket
    closing, CANCELLED: Revoke(run, cancelled) CloseKey                  <- running running,last o.running
    building, CANCELLED: Build Discard                                   <- ran ran,ticket
    building, CANCELLED: Build Revoke(evaluate, cancelled) Discard       <- evaluating evaluating,last
    stays                                                                <- others
cancel of the task
    as cancel
early stop
    building, CANCELLED early_stop: Open Build                           <- queued queued,ticket
    building, CANCELLED early_stop: Open Build Revoke(init, cancelled)   <- init init,last
    building, CANCELLED early_stop: Open Build Discard                   <- ready ready,ticket
    closing, CANCELLED early_stop: Revoke(run, cancelled) CloseKey       <- running running,last
    building, CANCELLED early_stop: Build Discard                        <- ran ran,ticket
    building, CANCELLED early_stop: Build Revoke(evaluate, cancelled) Discard <- evaluating evaluating,last
    stays: CloseGroup                                                    <- ended o.ended
    stays                                                                <- others
deadline
    building, FAILED no_worker: Open Build                               <- queued
    queued, attempt 2: Revoke(init, deadline)                            <- init
    building, FAILED deadline: Open Build Revoke(init, deadline)         <- init,last
    building, FAILED no_worker: Open Build Discard                       <- ready
    queued, attempt 2: Revoke(run, deadline) CloseKey Discard            <- running
    closing, FAILED deadline: Revoke(run, deadline) CloseKey             <- running,last
    building: Build Discard                                              <- ran closing
    ran: Revoke(evaluate, deadline)                                      <- evaluating
    building, FAILED deadline: Build Revoke(evaluate, deadline) Discard  <- evaluating,last
    stays: Build                                                         <- building o.building
    early_deadline                                                       <- ended o.ended
    building, CANCELLED unopened: Open Build                             <- o.unopened
    closing, TIMED_OUT timeout: Revoke(run, deadline) CloseKey           <- o.running
    building: Build                                                      <- o.closing
    waits for a slot again                                                   <- others
deadline in a pause
    early_deadline                                                       <- running running,last o.running
    as deadline
too early a deadline
    early_deadline                                                       <- all
pause
    stays                                                                <- all
resume
    stays                                                                <- all
worker lost
    queued, attempt 2: Revoke(init, lost)                                <- init
    building, FAILED lost: Open Build Revoke(init, lost)                 <- init,last
    queued, attempt 2: Revoke(run, lost) CloseKey Discard                <- running
    closing, FAILED lost: Revoke(run, lost) CloseKey                     <- running,last
    ran: Revoke(evaluate, lost)                                          <- evaluating
    building, FAILED lost: Build Revoke(evaluate, lost) Discard          <- evaluating,last
    not allowed                                                          <- others
pool offline
    queued: Discard                                                      <- ready
    queued, attempt 2: Discard                                           <- ready,ticket
    not allowed                                                          <- others
worker drains
    queued                                                               <- init init,last
    queued, attempt 2: CloseKey Discard                                  <- running
    queued, attempt 4: CloseKey Discard                                  <- running,last
    ran                                                                  <- evaluating evaluating,last
    not allowed                                                          <- others
slot
    stays: ReleaseTicket                                                 <- queued ready ran
    nobody_waits                                                         <- others
init claimed
    init: Grant                                                          <- queued,ticket
    stays: Revoke(new, ended)                                            <- building ended o.building o.ended
    stays: Revoke(new, taken)                                            <- others
run claimed
    running: Open Grant                                                  <- ready,ticket
    stays: Revoke(new, ended)                                            <- building ended o.building o.ended
    stays: Revoke(new, taken)                                            <- others
evaluate claimed
    evaluating: Grant                                                    <- ran,ticket
    stays: Revoke(new, ended)                                            <- building ended o.building o.ended
    stays: Revoke(new, taken)                                            <- others
claimed again
    stays: Revoke(-, taken)                                              <- queued ready ran o.unopened
    init: Grant                                                          <- queued,ticket
    running: Open Grant                                                  <- ready,ticket
    evaluating: Grant                                                    <- ran,ticket
    stays: Revoke(run, taken)                                            <- closing o.closing
    stays: Revoke(-, ended)                                              <- building ended o.building o.ended
    stays: Grant                                                         <- others
init finished
    stays: Discard                                                       <- queued queued,ticket ready ready,ticket running running,last
                                                                            ran ran,ticket evaluating evaluating,last closing building
                                                                            ended
    ready                                                                <- init init,last
    not allowed                                                          <- others
init failed
    queued, attempt 2                                                    <- init
    building, FAILED broken: Open Build                                  <- init,last
    not allowed                                                          <- o.unopened o.running o.closing o.building o.ended
    stale_claim                                                          <- others
run finished
    ran, COMPLETED: CloseKey                                             <- running running,last
    not allowed                                                          <- others
run failed
    queued, attempt 2: CloseKey Discard                                  <- running
    building, FAILED broken: Build CloseKey Discard                      <- running,last
    not allowed                                                          <- others
evaluated
    building: Build Discard                                              <- evaluating evaluating,last
    not allowed                                                          <- others
evaluation failed
    ran                                                                  <- evaluating
    building, FAILED broken: Build Discard                               <- evaluating,last
    not allowed                                                          <- others
stopped
    building: Build Discard                                              <- closing
    not allowed                                                          <- others
init finished, twice
    stays: Discard                                                       <- queued queued,ticket
    ready                                                                <- init init,last
    not allowed                                                          <- o.unopened o.running o.closing o.building o.ended
    stale_claim                                                          <- others
run finished, twice
    as run finished
evaluated, twice
    as evaluated
stopped, twice
    as stopped
zombie's init
    stays: Discard                                                       <- queued queued,ticket init init,last ready ready,ticket running
                                                                            running,last ran ran,ticket evaluating evaluating,last closing
                                                                            building ended
    not allowed                                                          <- others
zombie's run
    stale_claim                                                          <- running running,last
    not allowed                                                          <- others
zombie's evaluation
    stale_claim                                                          <- evaluating evaluating,last
    not allowed                                                          <- others
zombie stopped
    stale_claim                                                          <- closing
    not allowed                                                          <- others
zombie drains
    stale_claim                                                          <- init init,last running running,last evaluating evaluating,last
    not allowed                                                          <- others
zombie lost
    stale_claim                                                          <- init init,last running running,last evaluating evaluating,last
    not allowed                                                          <- others
trajectory
    ended                                                                <- building o.building
    not allowed                                                          <- others
submitted again
    stays: RejectTask                                                    <- o.unopened o.running o.closing o.building o.ended
    duplicate_task                                                       <- others
open
    running: Open Grant                                                  <- o.unopened
    stays: Revoke(new, taken)                                            <- o.running o.closing o.building o.ended
    stays: Revoke(new, submitted)                                        <- others
open again
    stays: Revoke(run, ended)                                            <- o.unopened o.closing o.building o.ended
    stays: Grant                                                         <- o.running
    stays: Revoke(run, submitted)                                        <- others
open withdrawn
    unopened                                                             <- o.running
    nothing_to_withdraw                                                  <- others
close
    stays: Revoke(f, unopened)                                           <- o.unopened
    closing, COMPLETED: Revoke(run, ended) CloseKey Grant                <- o.running
    stays: Revoke(f, ended)                                              <- o.closing o.building o.ended
    stays: Revoke(f, submitted)                                          <- others
group out
    group_goes_on                                                        <- all
days later
    forgotten                                                            <- ended o.ended
    not_forgettable                                                      <- others
"""
"""Event, then outcome <- states. `others`: all states that the event doesn't name; `as`: those of another event."""


def outcome(state: str, event: str) -> str:
    """The outcome of an event, in words."""
    bench = STATES[state]()
    before = bench.session()
    decision = bench.give(EVENTS[event](bench))
    now = bench.table.session("t.0")
    if now is None:
        return "forgotten"
    if now == before and decision == Decision(skipped=decision.skipped):
        is_in_no_table = decision.skipped is not None and decision.skipped.endswith(f"_in_{before.phase.value}")
        return "not allowed" if is_in_no_table else decision.skipped or "stays"
    next_try = f", attempt {now.attempt}" if now.attempt != before.attempt else ""
    if before.ticket_released_at is not None and now == replace(before, ticket_released_at=None):
        return "waits for a slot again"
    phase = "stays" if now.phase is before.phase and not next_try else now.phase.value + next_try
    code = f" {now.error.code}" if now.error is not None and now.error != before.error else ""
    status = f", {now.status.value}{code}" if now.status is not before.status and now.status is not None else ""
    out = [*map(written, decision.records), *map(sent, decision.commands)]
    return f"{phase}{status}" + (f": {' '.join(out)}" if out else "")


def written(record: object) -> str:
    return type(record).__name__


def sent(command: commands.Command) -> str:
    kind = type(command).__name__
    return f"{kind}({command.claim_id}, {command.reason})" if isinstance(command, Revoke) else kind


def expected() -> dict[str, dict[str, str]]:
    """The text above by event and state."""
    found: dict[str, dict[str, str]] = {}
    event = result = ""
    for line in EXPECTED.strip().splitlines():
        if not line.startswith(" "):
            event = line
            found[event] = {}
            continue
        if line.startswith("    as "):
            found[event] = found[line.strip().removeprefix("as ")] | found[event]
            continue
        text, arrow, names = line.partition(" <- ")
        result, names = (text.strip(), names) if arrow else (result, line)
        for name in names.split():
            for state in STATES if name in ("all", "others") else [name]:
                assert state in STATES, state
                found[event].setdefault(state, result)
    return found


@pytest.mark.parametrize("event", EVENTS)
def test_the_outcome_of_each_event_in_each_state(event: str) -> None:
    assert {state: outcome(state, event) for state in STATES} == expected()[event]


def test_a_report_about_an_unknown_session_changes_nothing() -> None:
    """It may come days later, when the session's rows are forgotten."""
    reports = [event(running()) for event in EVENTS.values()]
    skipped = [Bench().give(report).skipped for report in reports if isinstance(report, REPORTS)]
    assert len(skipped) > len(get_args(REPORTS))
    assert set(skipped) == {"unknown_session"}


def test_only_a_row_that_no_input_leads_to_raises() -> None:
    bench = after(running(), CANCEL)
    bench.table.load(replace(bench.session(), status=None))
    with pytest.raises(AssertionError, match="a session ends with a status"):
        bench.give(events.Stopped("f", "t.0", 1, "run"))


# --- nothing is left out


def test_every_phase_has_a_state_of_submitted_or_opened_sessions() -> None:
    phases = {state: make().session().phase for state, make in STATES.items()}
    assert set(phases.values()) == set(Phase)
    of_opened = {phase for state, phase in phases.items() if state.startswith("o.")}
    assert of_opened == {phase for phase, _ in OPENED} | {Phase.ENDED}


def test_every_input_has_an_event_and_every_event_a_row() -> None:
    kinds = {type(event(make())) for event in EVENTS.values() for make in STATES.values()}
    assert kinds == set(inputs(Input))
    assert list(expected()) == list(EVENTS)


def inputs(union: Any) -> list[type]:
    return [each for part in get_args(union) for each in (inputs(part) if isinstance(part, UnionType) else [part])]


@pytest.mark.parametrize("state", STATES)
def test_the_tables_allow_what_is_done_and_nothing_else(state: str) -> None:
    """For inputs that the tables list and that name a session; other inputs are honoured in every phase, or find their session."""
    transitions = OPENED if state.startswith("o.") else TRANSITIONS
    allowed: dict[type, bool] = {}
    for name, event in EVENTS.items():
        bench = STATES[state]()
        sent_event = event(bench)
        is_listed = any(kind is type(sent_event) for _, kind in {*TRANSITIONS, *OPENED})
        if is_listed and getattr(sent_event, "session_id", None) == "t.0":
            due = outcome(state, name) not in ("not allowed", "early_deadline")
            allowed[type(sent_event)] = allowed.get(type(sent_event), False) or due
    phase = STATES[state]().session().phase
    assert allowed == {kind: (phase, kind) in transitions for kind in allowed}
