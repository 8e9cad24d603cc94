"""Claims: a worker process's holds on stages of sessions, from the ticket to the free slot. One module for init, run and evaluate.

    ticket ─▶ Claimed (again every 3 s) ─▶ Grant ─▶ work ─▶ fact, acknowledged ─▶ tidied ─▶ free slot
                                    └─▶ Revoke, shutdown, 15 min without Kafka ─▶ all killed ─▶ Stopped | HandedBack ─▶ free slot

Invariants: a claim is in the heartbeats from before its first `Claimed` until after its fact is acknowledged, so that a heartbeat
without it means that the fact is on the log; work that touches what others share starts only after the Grant; when a claim has left
the hand, nothing that it started lives. What a stage does is its own module's; whose claim counts is the coordinator's to say.
"""

from __future__ import annotations

import asyncio
import secrets
import time
import traceback
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from typing import ClassVar, Protocol

import structlog

from consumers.runtimes.base import RuntimeFault
from topics import events
from topics.control import Grant, Revoke
from topics.environment.blobs import BlobStore
from topics.environment.keys import redacted
from topics.events import Claimed, Evaluated, Fact, HandedBack, InitFinished, RunFinished, Stopped
from topics.log.producer import LogProducer, Unacknowledged
from topics.stages import Ticket
from topics.types.errors import InputError, Kind, NotReady, SessionError
from topics.types.session import Stage, Status, task_id_of
from topics.types.task import TaskRequest
from topics.waiting.first_done import first_done

ASK_AGAIN_S = 3.0
"""Between two `Claimed` of one claim (protocol 8)."""
UNANSWERED_S = 600.0
"""A claim that nobody answers for so long, with Kafka there, is given up: no coordinator owns its partition."""
SEND_S = 10.0
"""For one try to have a fact acknowledged; then it is sent anew under the same fact id (protocol 19)."""
REPORT_S = 900.0
"""For a fact in all: as long as a worker keeps its sessions without Kafka (protocol 14)."""
LAST_REPORT_S = 3.0
"""A worker that shuts down gives a fact that is on its way so long before it hands the claim back instead."""
MESSAGE_LIMIT = 4096
"""Characters of an error's message: facts stay small."""

log = structlog.get_logger()


class Ending(StrEnum):
    """Why a claim ends before its work is done."""

    REVOKED = "revoked"
    LEAVING = "leaving"
    """The process shuts down."""
    NO_KAFKA = "no_kafka"
    UNANSWERED = "unanswered"


class Claim:
    """One hold on one stage of one attempt."""

    def __init__(self, ticket: Ticket) -> None:
        self.id = f"{ticket.stage.value[0]}-{secrets.token_hex(8)}"
        self.ticket = ticket
        loop = asyncio.get_running_loop()
        self._grant: asyncio.Future[Grant] = loop.create_future()
        self.ended: asyncio.Future[Ending] = loop.create_future()
        self.is_reporting = False
        """The work is done, its fact on the way."""
        self._started = time.monotonic()

    def task(self, blobs: BlobStore) -> TaskRequest:
        """The task, from the ticket or the blob store. Raises NotReady where this worker's store lacks it."""
        body = self.ticket.body
        if body is None:
            assert self.ticket.body_ref is not None, "a ticket carries its task's body or a reference to it"
            try:
                body = blobs.get(self.ticket.body_ref)
            except FileNotFoundError:
                raise NotReady(
                    f"{self.ticket.body_ref} isn't in this worker's blob store; every host needs the same POLAR_BLOBS"
                ) from None
        return TaskRequest.model_validate_json(body)

    def restart_clock(self) -> None:
        """The work begins now, the wait for the Grant is over."""
        self._started = time.monotonic()

    @property
    def elapsed_ms(self) -> int:
        return round((time.monotonic() - self._started) * 1000)

    @property
    def is_granted(self) -> bool:
        return self._grant.done()

    async def granted(self) -> Grant:
        """Wait for the Grant; as long as it takes, since a claim that isn't granted is ended."""
        return await asyncio.shield(self._grant)

    def grant(self, grant: Grant) -> None:
        self._grant.set_result(grant)

    def end(self, why: Ending) -> None:
        if not self.ended.done():
            self.ended.set_result(why)

    def failure(self, error: SessionError) -> Fact:
        """The fact that says that this claim's work came to nothing."""
        ticket = self.ticket
        match ticket.stage:
            case Stage.INIT:
                return InitFinished(
                    self.finished_id,
                    ticket.session_id,
                    ticket.attempt,
                    self.id,
                    error=error,
                    duration_ms=self.elapsed_ms,
                )
            case Stage.RUN:
                return RunFinished(
                    self.finished_id,
                    ticket.session_id,
                    ticket.attempt,
                    self.id,
                    Status.FAILED,
                    error=error,
                    duration_ms=self.elapsed_ms,
                )
            case Stage.EVALUATE:
                return Evaluated(
                    self.finished_id,
                    ticket.session_id,
                    ticket.attempt,
                    self.id,
                    error=error,
                    duration_ms=self.elapsed_ms,
                )

    @property
    def finished_id(self) -> str:
        """Fact id of the stage's fact: the same however often it is sent."""
        return f"{self.id}.finished"


class Work(Protocol):
    """What a stage does under one claim."""

    needs_grant: ClassVar[bool]
    """Whether it touches what other claims of the session share, and so waits for the Grant."""

    async def do(self) -> Fact:
        """The stage's fact. Cancelled when the claim ends; then nothing that it started may live. What it raises becomes an error fact."""

    async def tidy(self, fact: Fact | None) -> None:
        """After the fact is acknowledged, or (None) after the claim came to nothing: remove what nobody needs any more."""


class Claims:
    """All claims of this process. `on_change` is told whenever the heartbeat would say something else."""

    def __init__(self, producer: LogProducer, worker_id: str, on_change: Callable[[], None]) -> None:
        self._log = producer
        self._worker_id = worker_id
        self._on_change = on_change
        self._held: dict[str, Claim] = {}
        self._carrying: set[asyncio.Task[None]] = set()
        self.granted: Counter[str] = Counter()
        """Claims that were granted, by stage."""
        self.ended: Counter[tuple[str, str]] = Counter()
        """Claims that have left the hand, by stage and how: `finished`, or an Ending."""

    def held(self, stage: Stage) -> list[str]:
        """Ids of the claims in hand, asked for or granted."""
        return [claim.id for claim in self._held.values() if claim.ticket.stage is stage]

    def __contains__(self, claim_id: str) -> bool:
        return claim_id in self._held

    def works_in(self, runtime: dict[str, str]) -> bool:
        """Whether a claim in hand is one on this runtime."""
        return any(claim.ticket.runtime == runtime for claim in self._held.values())

    def take(self, ticket: Ticket) -> Claim:
        """A new claim in hand: its slot is taken from here on."""
        claim = Claim(ticket)
        self._held[claim.id] = claim
        self._on_change()
        return claim

    def heard(self, record: object) -> None:
        """An answer from `polar.control`, ours or another's."""
        if isinstance(record, Grant | Revoke) and (claim := self._held.get(record.claim_id)):
            if isinstance(record, Revoke):
                claim.end(Ending.REVOKED)
            elif not claim.is_granted:
                self.granted[claim.ticket.stage.value] += 1
                claim.grant(record)

    def end_all(self, why: Ending) -> None:
        for claim in self._held.values():
            claim.end(why)

    async def drained(self, deadline_s: float | None = None) -> bool:
        """Wait until no claim is in hand; False where some still is after `deadline_s` (None: however long that takes)."""
        if self._carrying:
            await asyncio.wait(self._carrying, timeout=deadline_s)
        return not self._carrying

    async def cut_off(self) -> None:
        """End what hasn't ended by itself, unreported; killing is still awaited."""
        for task in self._carrying:
            task.cancel()
        if self._carrying:
            await asyncio.wait(self._carrying)

    async def ask(self, claim: Claim) -> None:
        """Send `Claimed` once; without an acknowledgement in time the carrying sends it again."""
        ticket = claim.ticket
        fact = Claimed(
            f"{claim.id}.claimed", ticket.session_id, ticket.attempt, ticket.stage, claim.id, self._worker_id
        )
        try:
            await self._send(fact)
        except Unacknowledged as error:
            log.warning("claim not acknowledged", action="claim.unacknowledged", claim=claim.id, why=str(error))

    def carry(self, claim: Claim, work: Work) -> None:
        """Carry an asked-for claim to its end, in a task of its own; then its slot is free."""
        task = asyncio.create_task(self._carry(claim, work), name=f"claim {claim.id}")
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)

    async def _carry(self, claim: Claim, work: Work) -> None:
        doing = asyncio.create_task(self._do(claim, work), name=f"work {claim.id}")
        try:
            await first_done(doing, claim.ended)
            if not doing.done():
                await self._stop(claim, doing)
        except Exception as error:
            # Whatever it was, it ends this claim alone: its lease runs out, and the coordinator decides.
            _complain("claim.failed", claim, error)
        finally:
            if not doing.done():
                doing.cancel()
                await asyncio.wait({doing})
            del self._held[claim.id]
            was_ended = doing.cancelled() and claim.ended.done()
            self.ended[claim.ticket.stage.value, claim.ended.result().value if was_ended else "finished"] += 1
            self._on_change()

    async def _do(self, claim: Claim, work: Work) -> None:
        """Ask until answered, work, report until acknowledged, tidy up."""
        reported: Fact | None = None
        asking = asyncio.create_task(self._ask_again(claim), name=f"ask {claim.id}")
        try:
            if work.needs_grant:
                await claim.granted()
            claim.restart_clock()
            fact = await _outcome(claim, work)
            await claim.granted()
            claim.is_reporting = True
            await self._report(fact)
            reported = fact
        finally:
            asking.cancel()
            await work.tidy(reported)

    async def _ask_again(self, claim: Claim) -> None:
        asked_for = 0.0
        while True:
            await asyncio.sleep(ASK_AGAIN_S)
            if claim.is_granted:
                return
            asked_for += ASK_AGAIN_S
            if asked_for >= UNANSWERED_S:
                claim.end(Ending.UNANSWERED)
                return
            await self.ask(claim)

    async def _stop(self, claim: Claim, doing: asyncio.Task[None]) -> None:
        """End a claim before its work is done; nothing of it lives when the fact is sent."""
        why = claim.ended.result()
        if why is Ending.LEAVING and claim.is_reporting:
            await asyncio.wait({doing}, timeout=LAST_REPORT_S)
            if doing.done():
                return
        doing.cancel()
        await asyncio.wait({doing})
        if not doing.cancelled() and (error := doing.exception()) is not None:
            _complain("claim.tidy_failed", claim, error)
        fact_id, ticket = f"{claim.id}.{why.value}", claim.ticket
        if why is Ending.REVOKED and claim.is_granted:
            await self._report(Stopped(fact_id, ticket.session_id, ticket.attempt, claim.id))
        elif why in (Ending.LEAVING, Ending.UNANSWERED):
            # Not only a granted one: a Grant on its way, or to come, would cost the session an attempt.
            await self._report(HandedBack(fact_id, ticket.session_id, ticket.attempt, claim.id))

    async def _report(self, fact: Fact) -> None:
        """Send a fact until it is acknowledged. Raises Unacknowledged after 15 min."""
        give_up = time.monotonic() + REPORT_S
        while True:
            try:
                return await self._send(fact)
            except Unacknowledged:
                if time.monotonic() > give_up:
                    raise

    async def _send(self, fact: Fact) -> None:
        key = events.key_of(fact)
        await self._log.send(events.TOPIC, fact, key=key, task_id=task_id_of(key), deadline_s=SEND_S)


async def _outcome(claim: Claim, work: Work) -> Fact:
    """The stage's fact, whatever the work raises: a worker outlives every session."""
    try:
        return await work.do()
    except InputError as error:
        said = ("bad_input", Kind.INPUT, str(error))
    except RuntimeFault as error:
        said = (error.code, Kind.INFRA, str(error))
    except NotReady as error:
        said = ("not_ready", Kind.INFRA, str(error))
    except Exception as error:
        _complain("worker_error", claim, error)
        said = ("worker_error", Kind.INFRA, f"{type(error).__name__}: {error}")
    code, kind, message = said
    stage = claim.ticket.stage.value
    return claim.failure(
        SessionError(stage, kind, code, redacted(message)[:MESSAGE_LIMIT], retryable=kind is Kind.INFRA)
    )


def _complain(action: str, claim: Claim, error: BaseException) -> None:
    # The traceback as text: a log renderer that shows frames' variables would show session keys.
    log.error(
        redacted(str(error)) or type(error).__name__,
        action=action,
        claim=claim.id,
        session=claim.ticket.session_id,
        traceback=redacted("".join(traceback.format_exception(error))),
    )
