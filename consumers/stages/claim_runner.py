"""Runs a worker process's claims: carries out the actions of the table in `claims.py` and reports their ends to it.

Invariants: a claim is in the heartbeats from before its first `Claimed` until its last fact is acknowledged, so a heartbeat without
the claim means that the fact is on the log. When a claim has ended, nothing that it started lives.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, ClassVar, Protocol

import structlog

from consumers.runtimes.base import SandboxError
from consumers.stages.claims import UNGRANTED, Action, Event, State, step
from consumers.stages.patient_blobs import patiently
from topics import events
from topics.contract.codec import encode
from topics.control import Grant, Revoke
from topics.environment import claim_keys
from topics.environment.blobs import BlobStore, BlobStoreError
from topics.environment.redaction import redacted
from topics.events import Claimed, Evaluated, Fact, HandedBack, InitFinished, RunFinished, Stopped
from topics.log.producer import LogProducer, UnacknowledgedError
from topics.stages import Ticket
from topics.types.errors import InputError, Kind, NotReadyError, SessionError
from topics.types.session import Stage, Status, task_id_of
from topics.types.task import TaskRequest

REQUEST_AGAIN_S = 3.0
"""Between two `Claimed` of one claim (protocol 8)."""
UNANSWERED_S = 600.0
"""A claim without an answer for this long, while Kafka is there, is handed back: no coordinator owns its partition."""
SEND_S = 10.0
"""Limit for one try to get a fact acknowledged; the next try sends the same fact id (protocol 19)."""
REPORT_S = 900.0
"""Limit for all tries: as long as a worker keeps its sessions without Kafka (protocol 14)."""
LAST_REPORT_S = 3.0
"""Limit for a report that is on its way when the worker shuts down, within the 5 s of `worker.DRAIN_S`; then the claim is handed back."""
MESSAGE_LIMIT = 4096
"""Characters of an error's message: facts stay small."""

log = structlog.get_logger()

StageFact = InitFinished | RunFinished | Evaluated
FACTS: dict[Stage, type[StageFact]] = {
    Stage.INIT: InitFinished,
    Stage.RUN: RunFinished,
    Stage.EVALUATE: Evaluated,
}
"""The fact that reports the result of a stage."""


class Claim:
    """One worker's hold on one stage of one attempt."""

    def __init__(self, ticket: Ticket) -> None:
        self.id = claim_keys.new_claim_id(ticket.stage, ticket.ticket_id)
        self.ticket = ticket
        self.grant: Grant | None = None
        """Set before work that needs it starts."""
        self.granted_ms = 0
        """When the Grant was written, in Unix ms."""
        self.state = State.REQUESTED
        self.ending = "finished"
        """How the claim ends: `finished`, or the event that stopped it."""
        self.work: Work
        self.result: StageFact | None = None
        self.is_reported = False
        """The result is acknowledged."""
        self.is_tidied = False
        """Tidying has begun."""
        self.action: asyncio.Task[None] | None = None
        """The newest action."""
        self.tasks: set[asyncio.Task[None]] = set()
        """The actions that still run: an action that STOP cancelled may take a while to die."""
        self.requesting: asyncio.Task[None] | None = None
        self._started = time.monotonic()

    async def task(self, blobs: BlobStore) -> TaskRequest:
        """The task, from the ticket or the blob store. Raises NotReadyError if this worker's store doesn't have it, or doesn't answer."""
        body = self.ticket.body
        if body is None:
            assert self.ticket.body_ref is not None, "a ticket carries its task's body or a reference to it"
            try:
                body = await patiently(partial(blobs.get, self.ticket.body_ref))
            except FileNotFoundError:
                raise NotReadyError(
                    f"{self.ticket.body_ref} isn't in this worker's blob store {blobs.place}; every host needs the same POLAR_BLOBS"
                ) from None
            except BlobStoreError as error:
                raise NotReadyError(str(error)) from error
        return TaskRequest.model_validate_json(body)

    def start_clock(self) -> None:
        """Begin to measure the work; the wait for the Grant doesn't count."""
        self._started = time.monotonic()

    def fact(self, **fields: Any) -> StageFact:
        """The fact that reports the stage's result; its id stays the same however often it is sent."""
        duration_ms = round((time.monotonic() - self._started) * 1000)
        return FACTS[self.ticket.stage](**self.ids("finished"), duration_ms=duration_ms, **fields)

    def failure(self, code: str, kind: Kind, message: str, *, retryable: bool = False) -> StageFact:
        """The fact that reports that the work failed."""
        stage = self.ticket.stage
        error = SessionError(stage.value, kind, code, text_of_fact(message, MESSAGE_LIMIT), retryable=retryable)
        return self.fact(error=error, **({"status": Status.FAILED} if stage is Stage.RUN else {}))

    def ids(self, name: str) -> dict[str, Any]:
        """The fields that each fact about this claim begins with; `name` completes the fact id."""
        ticket = self.ticket
        return {
            "fact_id": f"{self.id}.{name}",
            "session_id": ticket.session_id,
            "attempt": ticket.attempt,
            "claim_id": self.id,
        }


def text_of_fact(text: str, limit: int) -> str:
    """A text as a fact holds it: without keys, at most `limit` characters, and `?` for each lone surrogate, which no log can hold.

    A message that quotes JSON or file names of the agent's may have such surrogates.
    """
    return redacted(text)[:limit].encode(errors="replace").decode()


class Work(Protocol):
    """A stage's work under one claim."""

    needs_grant: ClassVar[bool]
    """Whether the work touches what other claims of the session share, and so waits for the Grant."""

    async def do(self) -> StageFact:
        """The stage's fact. Cancelled when the claim ends; nothing that it started may live then. An exception becomes an error fact."""

    async def tidy(self, fact: StageFact | None) -> None:
        """Remove what nobody needs any more, after `fact` is acknowledged; None if the claim has no result."""


class ClaimRunner:
    """All claims of this process. `on_change` is called whenever the heartbeat would change."""

    def __init__(self, producer: LogProducer, worker_id: str, on_change: Callable[[], None]) -> None:
        self._log = producer
        self._worker_id = worker_id
        self._on_change = on_change
        self._claims: dict[str, Claim] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self.granted: Counter[str] = Counter()
        """Granted claims, by stage."""
        self.ended: Counter[tuple[str, str]] = Counter()
        """Finished claims, by stage and `Claim.ending`."""

    def ids(self, stage: Stage) -> list[str]:
        """Ids of the stage's claims that haven't ended."""
        return [claim.id for claim in self._claims.values() if claim.ticket.stage is stage]

    def __contains__(self, claim_id: str) -> bool:
        return claim_id in self._claims

    def uses(self, runtime: dict[str, str]) -> bool:
        """Whether a claim that hasn't ended works in this runtime."""
        return any(claim.ticket.runtime == runtime for claim in self._claims.values())

    async def request(self, ticket: Ticket, make_work: Callable[[Claim], Work]) -> None:
        """Take a slot for the ticket and send the first `Claimed`; everything after that happens in the background."""
        claim = Claim(ticket)
        claim.work = make_work(claim)
        self._claims[claim.id] = claim
        self._idle.clear()
        self._on_change()
        await self._send_claimed(claim)
        if not claim.work.needs_grant and claim.state is State.REQUESTED:
            claim.state = State.AHEAD
            self._act(claim, Action.WORK)
        if claim.state in UNGRANTED:
            claim.requesting = asyncio.create_task(self._request_again(claim), name=f"request {claim.id}")

    def on_answer(self, record: object, written_ms: int) -> None:
        """Take in a record of `polar.control`, written at a Unix time in ms; answers to other workers' claims are ignored."""
        if isinstance(record, Grant | Revoke) and (claim := self._claims.get(record.claim_id)):
            if isinstance(record, Revoke):
                self._feed(claim, Event.REVOKED)
            elif claim.grant is None:
                claim.grant, claim.granted_ms = record, written_ms
                self.granted[claim.ticket.stage.value] += 1
                self._feed(claim, Event.GRANTED)

    def feed_all(self, event: Event) -> None:
        """Apply an event to all claims."""
        for claim in list(self._claims.values()):
            self._feed(claim, event)

    async def drained(self, deadline_s: float | None = None) -> bool:
        """Wait until all claims have ended; False if one hasn't after `deadline_s` (None: no limit)."""
        try:
            async with asyncio.timeout(deadline_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def cut_off(self) -> None:
        """End all claims without a fact. Work is still killed."""
        self.feed_all(Event.CUT_OFF)
        await self._idle.wait()

    def _feed(self, claim: Claim, event: Event) -> None:
        claim.state, action = step(claim.state, event)
        if action is Action.STOP:
            claim.ending = Event.LEAVING if event is Event.LATE else event
        if claim.requesting is not None and claim.state not in UNGRANTED:
            claim.requesting.cancel()
        if action is not None:
            self._act(claim, action)

    def _act(self, claim: Claim, action: Action) -> None:
        match action:
            case Action.WORK:
                claim.start_clock()
                self._start(claim, self._work(claim))
            case Action.REPORT:
                self._start(claim, self._report_result(claim))
            case Action.SET_LIMIT:
                asyncio.get_running_loop().call_later(LAST_REPORT_S, self._feed, claim, Event.LATE)
            case Action.STOP | Action.CUT_OFF:
                self._start(claim, self._stop(claim, again=action is Action.STOP))
            case Action.SEND_STOPPED:
                self._start(claim, self._report(claim, Stopped(**claim.ids(claim.ending))))
            case Action.SEND_HANDED_BACK:
                self._start(claim, self._report(claim, HandedBack(**claim.ids(claim.ending))))
            case Action.RELEASE:
                del self._claims[claim.id]
                self.ended[claim.ticket.stage.value, claim.ending] += 1
                if not self._claims:
                    self._idle.set()
                self._on_change()

    def _start(self, claim: Claim, doing: Coroutine[Any, Any, None]) -> None:
        async def run() -> None:
            try:
                await doing
            except (Exception, asyncio.CancelledError) as error:
                if _is_cancelled(error):
                    raise
                # It ends this claim alone: the lease runs out, and the coordinator decides.
                _log_error("claim.failed", claim, error)
            if claim.action is asyncio.current_task():  # otherwise STOP came in the same instant
                self._feed(claim, Event.DONE)

        claim.action = asyncio.create_task(run(), name=f"claim {claim.id}: {claim.state}")
        claim.tasks.add(claim.action)
        claim.action.add_done_callback(claim.tasks.discard)

    async def _work(self, claim: Claim) -> None:
        claim.result = await outcome(claim)

    async def _report_result(self, claim: Claim) -> None:
        assert claim.result is not None, "only work that is done is reported"
        try:
            await self._report(claim, claim.result)
            claim.is_reported = True
        finally:
            if claim.action is asyncio.current_task():
                claim.is_tidied = True
                await claim.work.tidy(claim.result if claim.is_reported else None)

    async def _stop(self, claim: Claim, *, again: bool) -> None:
        """Kill the work and tidy; `again`: also if a tidying that had begun was cancelled."""
        running = claim.tasks - {claim.action}
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        if not claim.is_reported and (again or not claim.is_tidied):
            claim.is_tidied = True
            await claim.work.tidy(None)

    async def _request_again(self, claim: Claim) -> None:
        waited_s = 0.0
        while True:
            await asyncio.sleep(REQUEST_AGAIN_S)
            waited_s += REQUEST_AGAIN_S
            if waited_s >= UNANSWERED_S:
                return self._feed(claim, Event.UNANSWERED)
            await self._send_claimed(claim)

    async def _send_claimed(self, claim: Claim) -> None:
        fact = Claimed(**claim.ids("claimed"), stage=claim.ticket.stage, worker_id=self._worker_id)
        try:
            await self._send(claim, fact)
        except UnacknowledgedError as error:
            log.warning("claim not acknowledged", action="claim.unacknowledged", claim=claim.id, why=str(error))

    async def _report(self, claim: Claim, fact: Fact) -> None:
        """Send a fact until it is acknowledged. Raises UnacknowledgedError after REPORT_S."""
        end = time.monotonic() + REPORT_S
        while True:
            try:
                return await self._send(claim, fact)
            except UnacknowledgedError:
                if time.monotonic() > end:
                    raise

    async def _send(self, claim: Claim, fact: Fact) -> None:
        key = events.key_of(fact)
        headers = claim_keys.headers(claim.ticket.claim_key, encode(fact))
        await self._log.send(events.TOPIC, fact, key=key, task_id=task_id_of(key), headers=headers, deadline_s=SEND_S)


async def outcome(claim: Claim) -> StageFact:
    """The stage's fact, whatever the work raises: a worker outlives every session."""
    try:
        return await claim.work.do()
    except InputError as error:
        return claim.failure("bad_input", Kind.INPUT, str(error))
    except SandboxError as error:
        return claim.failure(error.code, Kind.INFRA, str(error), retryable=True)
    except NotReadyError as error:
        return claim.failure("not_ready", Kind.INFRA, str(error), retryable=True)
    except (Exception, asyncio.CancelledError) as error:
        if _is_cancelled(error):
            raise
        _log_error("worker_error", claim, error)
        return claim.failure("worker_error", Kind.INFRA, f"{type(error).__name__}: {error}", retryable=True)


def _is_cancelled(error: BaseException) -> bool:
    """Whether the running task itself was cancelled; a library's own cancellation may also escape, and is a failure like any other."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def _log_error(action: str, claim: Claim, error: BaseException) -> None:
    # The traceback as text: a log renderer that shows frames' variables would show session keys.
    log.error(
        redacted(str(error)) or type(error).__name__,
        action=action,
        claim=claim.id,
        session=claim.ticket.session_id,
        traceback=redacted("".join(traceback.format_exception(error))),
    )
