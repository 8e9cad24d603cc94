"""The life of a claim, step by step. Stand-in: the log, which keeps what it is sent and acknowledges when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from consumers.runtimes.base import RuntimeFault
from consumers.stages import claims as module
from consumers.stages.claims import Claim, Claims, Ending
from topics.contract.topic import Topic
from topics.control import Grant, Revoke
from topics.environment.settings import Settings
from topics.events import Claimed, Evaluated, Fact, HandedBack, InitFinished, RunFinished, Stopped
from topics.log.producer import Ack, LogProducer, Unacknowledged
from topics.stages import Ticket
from topics.types.errors import InputError, Kind
from topics.types.session import Stage


class Log(LogProducer):
    """Acknowledges at once, unless `gate` is shut or refusals are left."""

    def __init__(self) -> None:
        super().__init__(Settings(data=Path("/nonexistent"), kafka="127.0.0.1:9"))
        self.sent: list[Fact] = []
        self.acknowledged: list[Fact] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.refusals = 0

    async def send(self, topic: Topic, record: msgspec.Struct, **how: Any) -> Ack:
        assert isinstance(record, Fact)
        assert (how["key"], how["task_id"]) == ("task.0", "task")
        self.sent.append(record)
        await self.gate.wait()
        if self.refusals:
            self.refusals -= 1
            raise Unacknowledged("said the test")
        self.acknowledged.append(record)
        return Ack(0, len(self.acknowledged))


class Job:
    """Work that the test ends: with a fact, or with an error."""

    needs_grant: ClassVar[bool] = True

    def __init__(self, claim: Claim) -> None:
        self._claim = claim
        self.begun = asyncio.Event()
        self.end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.cancelled = False
        self.tidied: list[Fact | None] = []

    async def do(self) -> Fact:
        self.begun.set()
        try:
            await self.end
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return RunFinished(self._claim.finished_id, "task.0", 1, self._claim.id, "COMPLETED")  # type: ignore[arg-type] # a StrEnum's value

    async def tidy(self, fact: Fact | None) -> None:
        self.tidied.append(fact)


class EagerJob(Job):
    needs_grant: ClassVar[bool] = False


class Hand:
    """One claim in a hand of its own."""

    def __init__(self, job: type[Job] = Job, stage: Stage = Stage.RUN) -> None:
        self.log = Log()
        self.changes: list[list[str]] = []
        self.stage = stage
        self.claims = Claims(self.log, "worker-1", lambda: self.changes.append(self.claims.held(stage)))
        self.claim = self.claims.take(Ticket("task.0", 0, 1, stage, 60.0, body=b"{}"))
        self.job = job(self.claim)

    async def asked(self) -> None:
        await self.claims.ask(self.claim)
        self.claims.carry(self.claim, self.job)

    def grant(self) -> None:
        self.claims.heard(Grant("task.0", 1, self.claim.id))

    def revoke(self) -> None:
        self.claims.heard(Revoke("task.0", self.claim.id, "cancelled"))

    @property
    def held(self) -> list[str]:
        return self.claims.held(self.stage)

    async def over(self) -> None:
        assert await self.claims.drained(5)
        assert self.held == []


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


async def test_a_claim_is_in_hand_before_it_is_asked_for_and_until_its_fact_is_acknowledged() -> None:
    hand = Hand()
    assert hand.changes == [[hand.claim.id]]
    assert hand.log.sent == []
    await hand.asked()
    hand.grant()
    await hand.job.begun.wait()
    hand.log.gate.clear()
    hand.job.end.set_result(None)
    await until(lambda: len(hand.log.sent) == 2)
    assert hand.held == [hand.claim.id]
    assert hand.job.tidied == []
    hand.log.gate.set()
    await hand.over()
    assert hand.job.tidied == [hand.log.acknowledged[-1]]
    assert hand.changes[-1] == []


async def test_work_starts_with_the_grant() -> None:
    hand = Hand()
    await hand.asked()
    await asyncio.sleep(0.05)
    assert not hand.job.begun.is_set()
    hand.grant()
    await hand.job.begun.wait()
    hand.job.end.set_result(None)
    await hand.over()


async def test_work_that_needs_no_grant_starts_at_once_and_reports_only_after_it() -> None:
    hand = Hand(EagerJob, Stage.INIT)
    await hand.asked()
    await hand.job.begun.wait()
    hand.job.end.set_result(None)
    await asyncio.sleep(0.05)
    assert [type(fact) for fact in hand.log.sent] == [Claimed]
    hand.grant()
    await hand.over()
    assert [type(fact) for fact in hand.log.sent] == [Claimed, RunFinished]


async def test_a_fact_that_is_not_acknowledged_is_sent_anew_under_its_own_id() -> None:
    hand = Hand()
    await hand.asked()
    hand.grant()
    hand.log.refusals = 3
    hand.job.end.set_result(None)
    await hand.over()
    facts = [fact for fact in hand.log.sent if isinstance(fact, RunFinished)]
    assert len(facts) == 4
    assert len(set(facts)) == 1


async def test_an_unacknowledged_claim_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ASK_AGAIN_S", 0.01)
    hand = Hand()
    hand.log.refusals = 1
    await hand.asked()
    await until(lambda: len(hand.log.acknowledged) == 2)
    assert len(set(hand.log.sent)) == 1
    hand.grant()
    hand.job.end.set_result(None)
    await hand.over()


async def test_a_claim_that_nobody_answers_is_handed_back_since_a_late_grant_would_cost_an_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ASK_AGAIN_S", 0.01)
    monkeypatch.setattr(module, "UNANSWERED_S", 0.05)
    hand = Hand(EagerJob, Stage.INIT)
    await hand.asked()
    await hand.over()
    assert hand.job.cancelled
    assert hand.job.tidied == [None]
    assert {type(fact) for fact in hand.log.sent[:-1]} == {Claimed}
    assert isinstance(hand.log.sent[-1], HandedBack)


@pytest.mark.parametrize(
    ("why", "said"),
    [
        (Ending.REVOKED, [Stopped]),
        (Ending.LEAVING, [HandedBack]),
        (Ending.NO_KAFKA, []),
    ],
)
async def test_a_granted_claim_that_ends_early_is_killed_tidied_and_told(why: Ending, said: list[type[Fact]]) -> None:
    hand = Hand()
    await hand.asked()
    hand.grant()
    await hand.job.begun.wait()
    hand.log.gate.clear()
    hand.claims.end_all(why)
    await until(lambda: hand.job.tidied)
    assert hand.job.cancelled
    assert not said or hand.held, "in hand until it is said"
    hand.log.gate.set()
    await hand.over()
    assert [type(fact) for fact in hand.log.acknowledged[1:]] == said


async def test_a_claim_refused_before_its_grant_ends_without_a_fact() -> None:
    hand = Hand(EagerJob, Stage.INIT)
    await hand.asked()
    await hand.job.begun.wait()
    hand.revoke()
    await hand.over()
    assert hand.job.tidied == [None]
    assert [type(fact) for fact in hand.log.sent] == [Claimed]


async def test_a_worker_that_leaves_gives_a_fact_on_its_way_time_to_arrive() -> None:
    hand = Hand()
    await hand.asked()
    hand.grant()
    hand.log.gate.clear()
    hand.job.end.set_result(None)
    await until(lambda: len(hand.log.sent) == 2)
    hand.claims.end_all(Ending.LEAVING)
    await asyncio.sleep(0.05)
    hand.log.gate.set()
    await hand.over()
    assert [type(fact) for fact in hand.log.acknowledged] == [Claimed, RunFinished]


async def test_answers_to_other_claims_change_nothing() -> None:
    hand = Hand()
    await hand.asked()
    hand.claims.heard(Grant("task.0", 1, "r-another"))
    hand.claims.heard(Revoke("task.0", "r-another", "taken"))
    await asyncio.sleep(0.02)
    assert not hand.job.begun.is_set()
    hand.revoke()
    await hand.over()


@pytest.mark.parametrize(
    ("error", "kind", "code", "retryable"),
    [
        (InputError("agent.settings.x", 1, "no such setting"), Kind.INPUT, "bad_input", False),
        (RuntimeFault("runtime_gone", "no folder"), Kind.INFRA, "runtime_gone", True),
        (ZeroDivisionError("oh"), Kind.INFRA, "worker_error", True),
    ],
)
@pytest.mark.parametrize(
    ("stage", "fact"), [(Stage.INIT, InitFinished), (Stage.RUN, RunFinished), (Stage.EVALUATE, Evaluated)]
)
async def test_work_that_raises_is_a_fact_with_an_error(
    error: Exception, kind: Kind, code: str, retryable: bool, stage: Stage, fact: type[Fact]
) -> None:
    hand = Hand(stage=stage)
    await hand.asked()
    hand.grant()
    hand.job.end.set_exception(error)
    await hand.over()
    said = hand.log.acknowledged[-1]
    assert isinstance(said, fact)
    assert isinstance(said, InitFinished | RunFinished | Evaluated)
    assert said.error is not None
    assert (said.error.stage, said.error.kind, said.error.code) == (stage.value, kind, code)
    assert said.error.retryable is retryable


async def test_a_worker_that_leaves_hands_back_a_claim_that_may_be_granted_yet() -> None:
    hand = Hand()
    await hand.asked()
    hand.claims.end_all(Ending.LEAVING)
    await hand.over()
    assert not hand.job.begun.is_set()
    assert [type(fact) for fact in hand.log.acknowledged] == [Claimed, HandedBack]
