"""Claims on a real Kafka, with work that the test ends. What stages do under a claim is in `test_worker.py`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

import pytest
from msgspec.structs import replace

from consumers.runtimes.base import SandboxError
from consumers.stages import claim_runner
from consumers.stages.claim_runner import Claim, ClaimRunner, StageFact, outcome
from consumers.stages.claims import Event
from tests.consumers.stages.coordinating import PATIENCE_S, Coordinator, coordinating
from tests.waiting import eventually
from topics.control import Grant, Revoke
from topics.environment import claim_keys
from topics.environment.settings import Settings
from topics.events import Claimed, Evaluated, Fact, HandedBack, InitFinished, RunFinished, Stopped
from topics.log.producer import LogProducer
from topics.stages import Ticket
from topics.types.errors import InputError, Kind
from topics.types.session import Stage, Status

GRANTED_MS = 1_000_000
TICKET = Ticket("task.0", 0, 1, Stage.RUN, 60.0, body=b"{}")


class Job:
    """Work that the test ends, with a fact or with an error."""

    needs_grant: ClassVar[bool] = True

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.begun = asyncio.Event()
        self.end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.tidied: list[StageFact | None] = []

    async def do(self) -> StageFact:
        self.begun.set()
        await self.end
        return self.claim.fact(status=Status.COMPLETED)

    async def tidy(self, fact: StageFact | None) -> None:
        self.tidied.append(fact)


class JobAhead(Job):
    needs_grant: ClassVar[bool] = False


class Worker:
    """The claims of a worker, with one claim."""

    def __init__(self, producer: LogProducer) -> None:
        self.changes: list[list[str]] = []
        self.claims = ClaimRunner(producer, "worker-1", lambda: self.changes.append(self.claims.ids(Stage.RUN)))
        self.job: Job

    async def request(self, kind: type[Job] = Job, ticket: Ticket = TICKET) -> None:
        def make(claim: Claim) -> Job:
            self.job = claim.work = kind(claim)
            return self.job

        await self.claims.request(ticket, make)

    def grant(self) -> None:
        self.claims.on_answer(Grant("task.0", 1, self.job.claim.id), GRANTED_MS)

    async def ended(self) -> str:
        """How the claim ended."""
        assert await self.claims.drained(10)
        assert (self.changes[-1], self.claims.ids(Stage.RUN)) == ([], [])
        (ending,) = self.claims.ended
        return ending[1]


@asynccontextmanager
async def working(settings: Settings) -> AsyncIterator[Worker]:
    producer = LogProducer(settings)
    await producer.start()
    worker = Worker(producer)
    try:
        yield worker
    finally:
        await worker.claims.cut_off()
        await producer.stop(1.0)


def kinds(facts: list[Fact]) -> list[type[Fact]]:
    """Kinds of facts in log order; a fact that was sent again counts once."""
    return list({getattr(fact, "fact_id", ""): type(fact) for fact in facts}.values())


@pytest.mark.parametrize(
    ("event", "last", "ending"),
    [(None, RunFinished, "finished"), (Event.LEAVING, RunFinished, "finished"), ("late", HandedBack, "leaving")],
)
async def test_a_claim_lasts_until_its_fact_is_acknowledged_which_is_sent_again_under_its_id(
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    event: Event | str | None,
    last: type[RunFinished | HandedBack],
    ending: str,
) -> None:
    """Without a topic nothing is acknowledged; a process that shuts down waits, but not for long."""
    monkeypatch.setattr(claim_runner, "SEND_S", 0.3)
    monkeypatch.setattr(claim_runner, "LAST_REPORT_S", 0.1 if event == "late" else 60.0)
    async with working(settings) as worker:
        await worker.request()
        assert worker.changes == [[worker.job.claim.id]]
        worker.grant()
        await worker.job.begun.wait()
        worker.job.end.set_result(None)
        if event is not None:
            await eventually(lambda: worker.job.claim.state == "reporting", PATIENCE_S)
            worker.claims.feed_all(Event.LEAVING)
        if event == "late":
            await eventually(lambda: worker.job.claim.state == "closing", PATIENCE_S)
        assert not await worker.claims.drained(1.0)
        assert worker.job.tidied == ([None] if event == "late" else [])
        async with coordinating(settings) as coordinator:
            assert await worker.ended() == ending
            await coordinator.fact(last, "task.0")
            assert set(kinds(coordinator.facts)) <= {Claimed, RunFinished, last}
            assert len({fact.fact_id for fact in coordinator.of(last, "task.0")}) == 1
    assert worker.job.tidied == [None if event == "late" else worker.job.claim.result]


@pytest.mark.parametrize("kind", [Job, JobAhead])
async def test_a_claim_that_nobody_answers_is_requested_again_and_handed_back(
    settings: Settings, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch, kind: type[Job]
) -> None:
    monkeypatch.setattr(claim_runner, "REQUEST_AGAIN_S", 0.05)
    monkeypatch.setattr(claim_runner, "UNANSWERED_S", 0.2)
    async with working(settings) as worker:
        await worker.request(kind)
        worker.claims.on_answer(Grant("task.0", 1, "r-another"), GRANTED_MS)
        worker.claims.on_answer(Revoke("task.0", "r-another", "taken"), GRANTED_MS)
        assert await worker.ended() == "unanswered"
        await coordinator.fact(HandedBack, "task.0")
    assert worker.job.begun.is_set() is (kind is JobAhead)
    assert worker.job.tidied == [None]
    requests = coordinator.of(Claimed, "task.0")
    assert len(requests) > 1
    assert set(requests) == {requests[0]}
    assert kinds(coordinator.facts) == [Claimed, HandedBack]


@pytest.mark.parametrize(
    ("event", "last"), [(Event.REVOKED, Stopped), (Event.LEAVING, HandedBack), (Event.NO_KAFKA, None)]
)
async def test_a_granted_claim_that_ends_early_is_killed_then_tidied_then_reported(
    settings: Settings, coordinator: Coordinator, event: Event, last: type[Fact] | None
) -> None:
    async with working(settings) as worker:
        await worker.request()
        worker.grant()
        await worker.job.begun.wait()
        worker.claims.feed_all(event)
        assert await worker.ended() == event.value
        assert worker.job.end.cancelled()
        assert worker.job.tidied == [None]
        if last is not None:
            await coordinator.fact(last, "task.0")
        assert worker.claims.granted == {"run": 1}
    assert set(kinds(coordinator.facts)) - {Claimed} == ({last} if last else set())


async def test_a_claim_that_is_cut_off_is_killed_and_tidied(settings: Settings, coordinator: Coordinator) -> None:
    async with working(settings) as worker:
        await worker.request()
        worker.grant()
        await worker.job.begun.wait()
        await worker.claims.cut_off()
        assert worker.job.end.cancelled()
        assert worker.job.tidied == [None]
    await coordinator.fact(Claimed, "task.0")
    assert set(kinds(coordinator.facts)) == {Claimed}


class JobWithCancelledTidy(Job):
    async def tidy(self, fact: StageFact | None) -> None:
        await super().tidy(fact)
        raise asyncio.CancelledError


async def test_a_cancellation_that_escapes_from_a_library_holds_no_slot(
    settings: Settings, coordinator: Coordinator
) -> None:
    async with working(settings) as worker:
        await worker.request(JobWithCancelledTidy)
        worker.grant()
        await worker.job.begun.wait()
        worker.job.end.set_exception(asyncio.CancelledError())
        assert await worker.ended() == "finished"
        assert (await coordinator.fact(RunFinished, "task.0")).error is not None


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (InputError("agent.settings.x", 1, "no such setting"), Kind.INPUT, "bad_input"),
        (SandboxError("runtime_gone", "no folder"), Kind.INFRA, "runtime_gone"),
        (ZeroDivisionError("oh"), Kind.INFRA, "worker_error"),
        (asyncio.CancelledError(), Kind.INFRA, "worker_error"),  # a library's own, which escaped
    ],
)
@pytest.mark.parametrize(
    ("stage", "fact"), [(Stage.INIT, InitFinished), (Stage.RUN, RunFinished), (Stage.EVALUATE, Evaluated)]
)
async def test_work_that_raises_gives_a_fact_with_an_error(
    error: BaseException, kind: Kind, code: str, stage: Stage, fact: type[Fact]
) -> None:
    claim = Claim(Ticket("task.0", 0, 1, stage, 60.0, body=b"{}"))
    claim.work = job = Job(claim)
    job.end.set_exception(error)
    result = await outcome(claim)
    assert isinstance(result, fact)
    assert result.error is not None
    assert (result.error.stage, result.error.kind, result.error.code) == (stage.value, kind, code)
    assert result.error.retryable is (kind is Kind.INFRA)


@pytest.mark.parametrize(
    ("event", "kind"), [(None, RunFinished), (Event.REVOKED, Stopped), (Event.LEAVING, HandedBack)]
)
@pytest.mark.parametrize("claim_key", [b"k" * 32, None], ids=["key", "no key"])
async def test_each_fact_is_signed_with_the_ticket_s_key_and_with_none_if_it_has_none(
    settings: Settings, event: Event | None, kind: type[Fact], claim_key: bytes | None
) -> None:
    """A coordinator without claim keys, an older one, writes tickets without a key and verifies nothing."""
    ticket = replace(TICKET, ticket_id="1a2b.1" if claim_key else None, claim_key=claim_key)
    async with coordinating(settings) as coordinator, working(settings) as worker:
        await worker.request(ticket=ticket)
        worker.grant()
        await worker.job.begun.wait()
        if event is None:
            worker.job.end.set_result(None)
        else:
            worker.claims.feed_all(event)
        await worker.ended()
        await coordinator.fact(kind, "task.0")
    assert kinds(coordinator.facts) == [Claimed, kind]
    assert claim_keys.ticket_of(worker.job.claim.id) == ((Stage.RUN, "1a2b.1") if claim_key else None)
    for envelope in coordinator.envelopes:
        assert list(envelope.headers) == claim_keys.headers(claim_key, envelope.value or b"")
