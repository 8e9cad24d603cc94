"""The pure coordinator under random interleavings of all inputs, opened sessions included."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from consumers.coordinator import commands
from consumers.coordinator.commands import Decision, Input
from consumers.coordinator.deadlines import UNOPENED_MS
from tests.consumers.coordinator.bench import PLAN, Bench, submitted
from topics import completions, events
from topics.control import Discard, Grant, Revoke
from topics.types.errors import Kind, SessionError
from topics.types.session import Phase, SessionState, Stage, Status

OPENED = {"o": 1, "p": 3}
"""Tasks of opened sessions, and how many samples they have."""
NEEDED = (Phase.READY, Phase.RUNNING, Phase.RAN, Phase.EVALUATING)
TTLS_MS = (1_000, 60_000, 3_600_000)


class World(Bench):
    """Random workers, some of them zombies, some reporting twice, and users who open, close, withdraw and abandon sessions. Every input may
    come again."""

    def __init__(self, seed: int, samples: int) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.tickets: list[tuple[str, Stage, int]] = []
        self.sent: list[Input] = []
        self.rewards: dict[str, float] = {}
        self.claims = 0
        self.attempts: dict[str, int] = {}
        """By claim id: the attempt that it was for."""
        self.are_workers_mute = bool(seed % 2)
        """Whether they die without a word when revoked."""
        self.emitted: set[str] = set()
        self.granted: set[str] = set()
        self.opens: dict[str, events.SessionOpenRequested] = {}
        """By claim id."""
        self.closes: set[str] = set()
        """Facts that ask for a session's end, by id."""
        self.made: dict[str, bool] = {}
        """By init claim: whether the runtime that it made is gone."""
        plan = replace(PLAN, usable=None if seed % 3 else 1)
        self.send(replace(submitted(samples), plan=plan))

    def send(self, fact: Input) -> None:
        self.sent.append(fact)
        self._collect(self.give(fact))

    def _collect(self, decision: Decision) -> None:
        assert [flaw for record in decision.records if (flaw := completions.flaw(record))] == [], (
            "no builder rejects it"
        )
        for command in decision.commands:
            if isinstance(command, Grant) and command.claim_id not in self.closes:
                self.granted.add(command.claim_id)
                assert self.attempts[command.claim_id] == self.session(command.session_id).attempt, (
                    "a claim of this attempt"
                )
            if isinstance(command, Discard):
                row = self.session(command.session_id)
                assert row.init_claim_id != command.claim_id or row.phase not in NEEDED, "nobody works in it"
                self.made[command.claim_id] = True
            if isinstance(command, commands.ReleaseTicket):
                session = self.session(command.session_id)
                assert session.task_id not in OPENED, "no worker has a part in opened sessions"
                self.tickets.append((session.session_id, command.stage, session.attempt))

    def step(self, what: str) -> None:
        pick = self.random
        live = [s for s in self.table.sessions() if s.phase is not Phase.ENDED]
        if what == "assign":
            for stage in Stage:
                self._collect(self.assign(stage))
        elif what == "claim" and self.tickets:
            session_id, stage, attempt = pick.choice(self.tickets[-4:] if pick.random() < 0.7 else self.tickets)
            self.claims += 1
            self.attempts[f"c{self.claims}"] = attempt
            self.send(events.Claimed("f", session_id, attempt, stage, f"c{self.claims}", f"w{pick.randrange(3)}"))
        elif what == "report" and live:
            self.report(pick.choice(live))
        elif what == "again" and self.sent:
            fact = pick.choice(self.sent)
            is_stale = False
            if isinstance(
                fact, events.InitFinished | events.RunFinished | events.Evaluated | events.Stopped | events.HandedBack
            ):
                is_stale = self.session(fact.session_id).claim_id != fact.claim_id
            if isinstance(fact, events.SessionOpenRequested):
                is_stale = fact.claim_id in self.granted
            if isinstance(fact, events.SessionCloseRequested):
                self.expect(fact)
            decision = self.give(fact)
            assert not (is_stale and decision.sessions), "a claim that is over, or was answered, changes nothing"
            self._collect(decision)
        elif what == "lose":
            claimed = [s for s in live if s.claim_id]
            if claimed:
                lost = pick.choice(claimed)
                self._collect(self.give(commands.ClaimLost(lost.session_id, pick.choice([lost.claim_id or "", "c0"]))))
        elif what == "back":
            claimed = [s for s in live if s.claim_id]
            if claimed:
                back = pick.choice(claimed)
                self.send(events.HandedBack("f", back.session_id, back.attempt, back.claim_id or ""))
        elif what == "cancel":
            task_id = pick.choice(["t", *OPENED])
            cancelled = None if pick.random() < 0.1 else f"{task_id}.{pick.randrange(3)}"
            self.send(events.CancelRequested("f", task_id, cancelled))
        elif what == "open":
            self.open()
        elif what == "close":
            self.close()
        elif what == "withdraw" and self.opens:
            wish = pick.choice(list(self.opens.values()))
            self.send(events.SessionOpenWithdrawn("f", wish.task_id, wish.claim_id))
        elif what == "offline":
            for session in live:
                self._collect(self.give(commands.PoolOffline(session.session_id)))
        elif what == "turn":
            self.turn(paused=self.table.pauses.began is None)
        elif what == "clock":
            self.advance(pick.choice([500, 3_000, 11_000, 70_000]))
        elif what == "build":
            self.emit()

    def end_all(self) -> None:
        """Enough steps of everybody for every session to end."""
        self.turn(paused=False)
        self.advance(UNOPENED_MS)
        for _ in range(60):
            if all(s.phase is Phase.ENDED for s in self.table.sessions()):
                break
            for step in ("assign", *["claim"] * 8, *["report"] * 8, "clock", "build"):
                self.step(step)
                self.check()

    def turn(self, *, paused: bool) -> None:
        self.give(commands.FleetPaused() if paused else commands.FleetResumed())

    def open(self) -> None:
        pick = self.random
        task_id = pick.choice([*OPENED, *OPENED, "t"])
        self.claims += 1
        claim_id = f"o{self.claims}"
        self.attempts[claim_id] = 1
        wish = events.SessionOpenRequested("f", task_id, claim_id, pick.choice(TTLS_MS), OPENED.get(task_id))
        self.opens[claim_id] = wish
        self.send(wish)
        (answer,) = (command for command in self.commands[-1:] if isinstance(command, Grant | Revoke))
        assert answer.claim_id == claim_id, "every open is answered"
        assert isinstance(answer, Revoke) or task_id in OPENED

    def close(self) -> None:
        session_id = self.random.choice(["p.0", "p.1", "p.2", "o.0", "t.0", "q.0"])
        fact = events.SessionCloseRequested(f"close{len(self.closes)}", session_id, self.random.random())
        self.closes.add(fact.fact_id)
        is_open = self.expect(fact)
        self.send(fact)
        answer = self.commands[-1]
        assert isinstance(answer, Grant if is_open else Revoke), "every close is answered"
        assert answer.claim_id == fact.fact_id

    def expect(self, fact: events.SessionCloseRequested) -> bool:
        """Whether a close will count; its reward is then the session's."""
        session = self.table.session(fact.session_id)
        if session is None or session.task_id not in OPENED or session.phase is not Phase.RUNNING:
            return False
        assert fact.reward is not None
        assert fact.session_id not in self.rewards, "the first close counts"
        self.rewards[fact.session_id] = fact.reward
        return True

    def advance(self, ms: int) -> None:
        self.now += ms
        for session_id in self.table.pop_due(self.now):
            self._collect(self.give(commands.DeadlinePassed(session_id)))

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
                if failed is None:
                    self.made[claim] = False
                self.send(events.InitFinished(*ids, runtime=None if failed else {"dir": claim}, error=failed))
            case Phase.RUNNING:
                self.send(events.RunFinished(*ids, status=Status.FAILED if failed else Status.COMPLETED, error=failed))
            case Phase.EVALUATING:
                if failed is None:
                    self.rewards[session.session_id] = reward = pick.random()
                    self.made[session.init_claim_id or ""] = True
                    self.send(events.Evaluated(*ids, reward=reward))
                else:
                    self.send(events.Evaluated(*ids, error=failed))
            case Phase.CLOSING if not self.are_workers_mute:
                self.send(events.Stopped(*ids))

    def emit(self) -> None:
        for build in list(self.builds.values()):
            if build.session_id not in self.emitted:
                self.emitted.add(build.session_id)
                self.send(
                    events.TrajectoryEmitted(
                        "f", build.session_id, build.attempt, trainable_tokens=self.random.randrange(2)
                    )
                )

    def check(self) -> None:
        for session in self.table.sessions():
            assert session.spent <= PLAN.max_attempts
            if session.task_id in OPENED:
                assert (session.attempt, session.spent, session.worker_id, session.ticket_released_at) == (
                    1,
                    0,
                    None,
                    None,
                )
            if session.phase in (Phase.INIT, Phase.RUNNING, Phase.EVALUATING, Phase.CLOSING):
                assert session.claim_id is not None
            if session.phase is Phase.RUNNING:
                assert self.opened[session.session_id].claim_id == session.claim_id, (
                    "the running claim's calls count, no other's"
                )


STEPS = [
    *["assign"] * 4,
    *["claim"] * 8,
    *["report"] * 8,
    *["again"] * 2,
    *["clock"] * 2,
    *["build"] * 2,
    "lose",
    "back",
    "cancel",
    "offline",
    "turn",
    *["open"] * 3,
    *["close"] * 2,
    "withdraw",
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
    world.end_all()
    phases = {s.session_id: s.phase for s in world.table.sessions()}
    assert set(phases.values()) == {Phase.ENDED}, phases
    assert all(world.made.values()), "no runtime is left to the reaper"
    tasks = {s.task_id for s in world.table.sessions()}
    assert len(phases) == samples + sum(OPENED[task_id] for task_id in tasks - {"t"})
    assert world.emitted == set(world.builds) == set(phases)
    assert sorted(group.task_id for group in world.groups) == sorted(tasks)
    for session_id, build in world.builds.items():
        is_opened = build.task_id in OPENED
        assert not is_opened or (build.status is Status.COMPLETED) == (build.reward is not None)
        if build.reward is not None:
            assert build.reward == world.rewards[session_id], "no reward is invented"
