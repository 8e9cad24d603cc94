"""The pure coordinator: the plain way, each thing that goes wrong, and random interleavings of all of them."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.coordinator.commands import (
    ClaimLost,
    Command,
    DeadlinePassed,
    Decision,
    Input,
    PoolDark,
    RejectTask,
    ReleaseTicket,
    SlotLent,
    TaskForgotten,
)
from consumers.coordinator.decide import decide
from consumers.coordinator.state import BUILDING_MS, FORGET_MS, QUEUE_MS, TICKET_MS, Table
from polar.types.errors import Kind, SessionError
from polar.types.session import Phase, Plan, SessionState, Stage, Status
from topics.completions import Build, CloseGroup, Open
from topics.control import CloseKey, Grant, Revoke
from topics.events import (
    CancelRequested,
    Claimed,
    Evaluated,
    GroupEmitted,
    HandedBack,
    InitFinished,
    RunFinished,
    Stopped,
    TaskSubmitted,
    TrajectoryEmitted,
)

PLAN = Plan("default", 0, 3, 600, 3600, 600, "shell", "prefix_merging", b"{}", None, "train", b"{}")


def submitted(samples: int = 1, body: str = "a", task_id: str = "t") -> TaskSubmitted:
    return TaskSubmitted("f", task_id, samples, body, PLAN, body=body.encode())


@dataclass
class Bench:
    """A table, and all that it gave out; plays the builder, which emits each session once."""

    table: Table = field(default_factory=lambda: Table(0))
    now: int = 0
    commands: list[Command] = field(default_factory=list)
    opened: dict[str, Open] = field(default_factory=dict)
    builds: dict[str, Build] = field(default_factory=dict)
    groups: list[CloseGroup] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    grants: dict[tuple[str, int, Stage], set[str]] = field(default_factory=dict)

    def give(self, *inputs: Input) -> Decision:
        decision = Decision()
        for each in inputs:
            decision = decide(self.table, each, self.now)
            self.table.apply(decision)
            self.commands.extend(decision.commands)
            for record in decision.records:
                self._written(record)
            if decision.skipped:
                self.skipped[decision.skipped] += 1
        return decision

    def _written(self, record: Open | Build | CloseGroup) -> None:
        match record:
            case Open():
                assert record.session_id not in self.builds, "nothing is opened after Build"
                self.opened[record.session_id] = record
            case Build():
                assert self.opened[record.session_id].claim_id == record.claim_id, (
                    "the calls of the last Open are built"
                )
                first = self.builds.setdefault(record.session_id, record)
                assert first == record, "Build says the same each time"
            case CloseGroup():
                self.groups.append(record)

    def session(self, session_id: str = "t.0") -> SessionState:
        found = self.table.session(session_id)
        assert found is not None
        return found

    def lend(self, stage: Stage) -> Decision:
        return self.give(SlotLent(stage, "default", "w", 0))

    def claim(self, stage: Stage, claim_id: str, session_id: str = "t.0", attempt: int = 1) -> Decision:
        return self.give(Claimed("f", session_id, attempt, stage, claim_id, "w"))

    def init(self, session_id: str = "t.0", attempt: int = 1) -> None:
        self.lend(Stage.INIT)
        self.claim(Stage.INIT, f"i{attempt}", session_id, attempt)
        self.give(InitFinished("f", session_id, attempt, f"i{attempt}", runtime={"dir": "x"}))

    def run(self, session_id: str = "t.0", attempt: int = 1) -> None:
        self.init(session_id, attempt)
        self.lend(Stage.RUN)
        self.claim(Stage.RUN, f"r{attempt}", session_id, attempt)

    def evaluate(self, status: Status = Status.COMPLETED, error: SessionError | None = None) -> None:
        self.run()
        self.give(RunFinished("f", "t.0", 1, "r1", status, 0, error))
        self.lend(Stage.EVALUATE)
        self.claim(Stage.EVALUATE, "e1")


def test_a_build_that_is_asked_for_again_opens_nothing_since_the_trajectory_may_be_out() -> None:
    bench = Bench()
    bench.give(submitted(), CancelRequested("f", "t"))
    assert bench.opened["t.0"] == Open("t.0", 1, "")
    bench.now += BUILDING_MS
    assert bench.give(DeadlinePassed("t.0")).records == (bench.builds["t.0"],)


def test_the_plain_way_ends_with_one_build_and_a_group() -> None:
    bench = Bench()
    bench.give(submitted())
    bench.evaluate()
    assert bench.give(Evaluated("f", "t.0", 1, "e1", reward=1.0)).records == (bench.builds["t.0"],)
    assert (bench.builds["t.0"].claim_id, bench.builds["t.0"].reward) == ("r1", 1.0)
    bench.give(TrajectoryEmitted("f", "t.0", 1))
    assert bench.groups == [CloseGroup("t", 1, [1.0], [Status.COMPLETED])]
    assert bench.session().phase is Phase.ENDED
    bench.give(GroupEmitted("f", "t"))
    assert bench.table.forgettable(FORGET_MS) == ["t"]
    bench.give(TaskForgotten("t"))
    assert bench.table.task("t") is None
    assert bench.table.session("t.0") is None


def test_a_build_that_failed_is_what_the_table_and_the_group_say() -> None:
    bench = Bench()
    bench.give(submitted())
    bench.evaluate()
    bench.give(Evaluated("f", "t.0", 1, "e1", reward=1.0))
    error = SessionError("build", Kind.INPUT, "builder_input", "no such setting")
    bench.give(TrajectoryEmitted("f", "t.0", 1, status=Status.FAILED, error=error))
    assert (bench.session().status, bench.session().error, bench.session().reward) == (Status.FAILED, error, None)
    assert bench.groups == [CloseGroup("t", 1, [None], [Status.FAILED])]


def test_the_first_claim_is_granted_and_others_are_revoked() -> None:
    bench = Bench()
    bench.give(submitted())
    bench.lend(Stage.INIT)
    assert bench.claim(Stage.INIT, "a").commands == (Grant("t.0", 1, "a"),)
    assert bench.claim(Stage.INIT, "b").commands == (Revoke("t.0", "b", "taken"),)
    assert bench.claim(Stage.INIT, "a").commands == (Grant("t.0", 1, "a"),)


def test_a_claim_without_a_ticket_or_of_an_unknown_session_is_revoked() -> None:
    bench = Bench()
    assert bench.claim(Stage.INIT, "a").commands == (Revoke("t.0", "a", "ended"),)
    bench.give(submitted())
    assert bench.claim(Stage.INIT, "a").commands == (Revoke("t.0", "a", "taken"),)


def test_an_unclaimed_ticket_is_released_again_at_no_cost_and_the_old_one_still_counts() -> None:
    bench = Bench()
    bench.give(submitted())
    bench.lend(Stage.INIT)
    assert bench.table.wants() == {}
    bench.now = 10_000
    bench.give(*(DeadlinePassed(s) for s in bench.table.due(bench.now)))
    assert bench.table.wants() == {(Stage.INIT, "default"): 1}
    assert bench.claim(Stage.INIT, "a").commands == (Grant("t.0", 1, "a"),)
    assert bench.session().spent == 0


def test_a_lost_run_is_the_next_attempt_with_its_key_closed() -> None:
    bench = Bench()
    bench.give(submitted())
    bench.run()
    lost = bench.give(ClaimLost("t.0", "r1"))
    assert lost.commands == (Revoke("t.0", "r1", "lost"), CloseKey("t.0", "r1"))
    assert (bench.session().attempt, bench.session().spent, bench.session().phase) == (2, 1, Phase.QUEUED)
    assert bench.session().past_claims == ["r1"]
    bench.give(RunFinished("f", "t.0", 1, "r1", Status.COMPLETED, 0))
    assert bench.session().phase is Phase.QUEUED, "a zombie's report doesn't count"


def test_attempts_spent_fail_the_session_with_what_was_captured_after_its_key_is_closed() -> None:
    bench = Bench()
    bench.give(submitted())
    for attempt in (1, 2, 3):
        bench.run(attempt=attempt)
        bench.give(ClaimLost("t.0", f"r{attempt}"))
    assert bench.session().phase is Phase.CLOSING
    assert "t.0" not in bench.builds
    bench.now += 2_000
    bench.give(*(DeadlinePassed(s) for s in bench.table.due(bench.now)))
    build = bench.builds["t.0"]
    assert (build.claim_id, build.status, build.reward) == ("r3", Status.FAILED, None)
    assert build.error is not None
    assert (build.error.kind, build.error.code) == (Kind.INFRA, "lost")


def test_a_lost_evaluation_is_an_evaluation_again_and_then_no_reward() -> None:
    bench = Bench()
    bench.give(submitted())
    bench.evaluate()
    for claim in ("e1", "e2", "e3"):
        bench.claim(Stage.EVALUATE, claim)
        assert bench.session().phase is Phase.EVALUATING
        bench.give(ClaimLost("t.0", claim))
        bench.lend(Stage.EVALUATE)
    assert (bench.builds["t.0"].reward, bench.session().attempt) == (None, 1)
    assert bench.builds["t.0"].status is Status.FAILED


def test_a_timed_out_run_is_evaluated_and_keeps_its_status_and_reward() -> None:
    bench = Bench()
    bench.give(submitted())
    bench.evaluate(Status.TIMED_OUT, SessionError("run", Kind.BUDGET, "timeout", "over"))
    bench.give(Evaluated("f", "t.0", 1, "e1", reward=0.5))
    assert (bench.builds["t.0"].status, bench.builds["t.0"].reward) == (Status.TIMED_OUT, 0.5)


def test_a_handed_back_run_costs_no_attempt_but_starts_over() -> None:
    bench = Bench()
    bench.give(submitted())
    bench.run()
    bench.give(HandedBack("f", "t.0", 1, "r1"))
    assert (bench.session().attempt, bench.session().spent) == (2, 0)


def test_cancel_of_a_running_session_builds_when_it_is_dead() -> None:
    bench = Bench()
    bench.give(submitted())
    bench.run()
    stop = bench.give(CancelRequested("f", "t"))
    assert stop.commands == (Revoke("t.0", "r1", "cancelled"), CloseKey("t.0", "r1"))
    assert "t.0" not in bench.builds
    bench.give(Stopped("f", "t.0", 1, "r1"))
    assert (bench.builds["t.0"].status, bench.builds["t.0"].claim_id) == (Status.CANCELLED, "r1")


def test_cancel_before_the_task_is_known_is_honoured() -> None:
    bench = Bench()
    bench.give(CancelRequested("f", "t"), CancelRequested("f", "u", "u.1"), submitted(2), submitted(2, task_id="u"))
    assert {s: b.status for s, b in bench.builds.items()} == dict.fromkeys(("t.0", "t.1", "u.1"), Status.CANCELLED)
    assert bench.session("u.0").phase is Phase.QUEUED


def test_a_used_task_id_with_another_body_is_rejected_and_with_the_same_changes_nothing() -> None:
    bench = Bench()
    bench.give(submitted())
    assert bench.give(submitted()).skipped == "duplicate_task"
    assert isinstance(bench.give(submitted(body="b")).commands[0], RejectTask)


def test_a_dark_pool_gives_ready_sessions_back_at_no_cost() -> None:
    bench = Bench()
    bench.give(submitted())
    bench.init()
    bench.give(PoolDark("t.0"))
    assert (bench.session().phase, bench.session().attempt, bench.session().spent) == (Phase.QUEUED, 1, 0)
    assert bench.session().runtime is None


def test_a_stale_deadline_entry_does_nothing() -> None:
    bench = Bench()
    bench.give(submitted())
    assert bench.give(DeadlinePassed("t.0")).skipped == "early_deadline"


class World(Bench):
    """Random workers, some of them zombies, some reporting twice; everything that they ever said may come again."""

    def __init__(self, seed: int, samples: int) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.tickets: list[tuple[str, Stage, int]] = []
        self.said: list[Input] = []
        self.rewards: dict[str, float] = {}
        self.claims = 0
        self.asked: dict[str, int] = {}
        """By claim id: the attempt that it was for."""
        self.are_workers_mute = bool(seed % 2)
        """Whether they die without a word when revoked."""
        self.emitted: set[str] = set()
        self.say(submitted(samples))

    def say(self, fact: Input) -> None:
        self.said.append(fact)
        self._collect(self.give(fact))

    def _collect(self, decision: Decision) -> None:
        for command in decision.commands:
            if isinstance(command, Grant):
                assert self.asked[command.claim_id] == self.session(command.session_id).attempt, (
                    "a claim of this attempt"
                )
            if isinstance(command, ReleaseTicket):
                session = self.session(command.session_id)
                self.tickets.append((session.session_id, command.stage, session.attempt))

    def step(self, what: str) -> None:
        pick = self.random
        live = [s for s in self.table.sessions() if s.phase is not Phase.ENDED]
        if what == "lend":
            for stage in Stage:
                self._collect(self.lend(stage))
        elif what == "claim" and self.tickets:
            session_id, stage, attempt = pick.choice(self.tickets[-4:] if pick.random() < 0.7 else self.tickets)
            self.claims += 1
            self.asked[f"c{self.claims}"] = attempt
            self.say(Claimed("f", session_id, attempt, stage, f"c{self.claims}", f"w{pick.randrange(3)}"))
        elif what == "report" and live:
            self.report(pick.choice(live))
        elif what == "again" and self.said:
            fact = pick.choice(self.said)
            is_stale = False
            if isinstance(fact, InitFinished | RunFinished | Evaluated | Stopped | HandedBack):
                is_stale = self.session(fact.session_id).claim_id != fact.claim_id
            decision = self.give(fact)
            assert not (is_stale and decision.sessions), "a report of a claim that is over changes nothing"
            self._collect(decision)
        elif what == "lose":
            held = [s for s in live if s.claim_id]
            if held:
                lost = pick.choice(held)
                self._collect(self.give(ClaimLost(lost.session_id, pick.choice([lost.claim_id or "", "c0"]))))
        elif what == "back":
            held = [s for s in live if s.claim_id]
            if held:
                back = pick.choice(held)
                self.say(HandedBack("f", back.session_id, back.attempt, back.claim_id or ""))
        elif what == "cancel" and live:
            cancelled = None if pick.random() < 0.1 else pick.choice(live).session_id
            self.say(CancelRequested("f", "t", cancelled))
        elif what == "dark":
            for session in live:
                self._collect(self.give(PoolDark(session.session_id)))
        elif what == "clock":
            self.advance(pick.choice([500, 3_000, 11_000, 70_000]))
        elif what == "build":
            self.emit()

    def advance(self, ms: int) -> None:
        self.now += ms
        for session_id in self.table.due(self.now):
            self._collect(self.give(DeadlinePassed(session_id)))

    def report(self, session: SessionState) -> None:
        claim = session.claim_id
        if claim is None:
            return
        pick = self.random
        infra = SessionError("x", Kind.INFRA, "broken", "broken", retryable=True)
        failed = infra if pick.random() < 0.3 else None
        ids = ("f", session.session_id, session.attempt, claim)
        match session.phase:
            case Phase.INIT:
                self.say(InitFinished(*ids, runtime=None if failed else {"dir": claim}, error=failed))
            case Phase.RUNNING:
                self.say(RunFinished(*ids, status=Status.FAILED if failed else Status.COMPLETED, error=failed))
            case Phase.EVALUATING:
                if failed is None:
                    self.rewards[session.session_id] = reward = pick.random()
                    self.say(Evaluated(*ids, reward=reward))
                else:
                    self.say(Evaluated(*ids, error=failed))
            case Phase.CLOSING if not self.are_workers_mute:
                self.say(Stopped(*ids))

    def emit(self) -> None:
        for build in list(self.builds.values()):
            if build.session_id not in self.emitted:
                self.emitted.add(build.session_id)
                self.say(TrajectoryEmitted("f", build.session_id, build.attempt))

    def check(self) -> None:
        for session in self.table.sessions():
            assert session.spent <= PLAN.max_attempts
            if session.phase in (Phase.INIT, Phase.RUNNING, Phase.EVALUATING, Phase.CLOSING):
                assert session.claim_id is not None
            if session.phase is Phase.RUNNING:
                assert self.opened[session.session_id].claim_id == session.claim_id, (
                    "the running claim's calls count, no other's"
                )


STEPS = [
    *["lend"] * 4,
    *["claim"] * 8,
    *["report"] * 8,
    *["again"] * 2,
    *["clock"] * 2,
    *["build"] * 2,
    "lose",
    "back",
    "cancel",
    "dark",
]


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4), st.lists(st.sampled_from(STEPS), min_size=40, max_size=160))
def test_random_interleavings_end_every_session_once_and_never_get_stuck(
    seed: int, samples: int, steps: list[str]
) -> None:
    world = World(seed, samples)
    for step in steps:
        world.step(step)
        world.check()
    for _ in range(60):
        if all(s.phase is Phase.ENDED for s in world.table.sessions()):
            break
        for step in ("lend", *["claim"] * 8, *["report"] * 8, "clock", "build"):
            world.step(step)
            world.check()
    phases = {s.session_id: s.phase for s in world.table.sessions()}
    assert set(phases.values()) == {Phase.ENDED}, phases
    assert len(phases) == samples
    assert world.emitted == set(world.builds) == set(phases)
    assert len(world.groups) == 1
    for session_id, build in world.builds.items():
        if build.reward is not None:
            assert build.reward == world.rewards[session_id], "no reward is invented"


def test_tickets_that_nobody_takes_for_days_cost_no_memory() -> None:
    bench = Bench()
    bench.give(submitted())
    for _ in range(3000):
        bench.lend(Stage.INIT)
        bench.now += TICKET_MS
        bench.give(*(DeadlinePassed(s) for s in bench.table.due(bench.now)))
    assert bench.session().lent_at is None
    assert bench.table.awaited < 1100
    bench.now = QUEUE_MS
    bench.give(*(DeadlinePassed(s) for s in bench.table.due(bench.now)))
    assert bench.session().phase is Phase.BUILDING
