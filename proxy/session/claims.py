"""What the proxy remembers of each claim: its calls in flight, what its acknowledged calls were and said, and whether its key is closed.

Invariant: a claim is served from memory only where this proxy has owned its session ever since the key was minted, and every `CloseKey`
that could name it was seen; all others are read back from the log first (protocol 18, 20). All of it is bounded: the least recently used
claims are forgotten, and of closed keys the newest are remembered; a key older than the newest forgotten one is read back.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec.structs import replace

from proxy.chat import Answer, ChatRequest, Message, RepeatedAnswer
from proxy.request_limits import CALL_S
from proxy.session.endings import EndableCall, closed
from proxy.session.history import CallHistory, Transcript, frame_of, transcript
from proxy.session.limits import ClaimUsage
from proxy.session.recalled import recalled
from proxy.session.recovery import ClaimLog
from proxy.session.repeats import RepeatIndex
from proxy.session.stored import StoredCalls
from proxy.session.turns import SampledTurns
from topics.calls.delta import Spelled
from topics.environment.keys import KeyClaims
from topics.types.tokens import count

CLAIMS = 4096
"""Claims remembered; one in use is never forgotten."""
CLOSED = 100_000
"""Closed claims remembered: some 10 MB."""
UNSAID = b""
"""The frame of an answer that says less than its tokens: no request has it, so that none goes on from them."""


ReadBack = Callable[[KeyClaims, int], Awaitable[ClaimLog]]
"""A claim's log from an offset on."""


class ClaimState:
    """One claim's state."""

    def __init__(self, key: KeyClaims) -> None:
        self.key = key
        self.history = CallHistory()
        self.turns = SampledTurns()
        self.stored = StoredCalls()
        self.repeats: RepeatIndex[Any] = RepeatIndex()
        self.spent = ClaimUsage()
        self.in_flight: set[EndableCall] = set()
        self._known: set[str] = set()
        """Acknowledged calls, by id."""
        self.is_stale = False
        """The session went to another owner while calls were in flight here: what that one did must be read back."""
        self._log: ClaimLog | None = None
        """What was read back of it, while more may come; None: all of it was served here, or was long ago."""
        self.taken_at = 0.0
        """When the claim was taken over: `time.monotonic()`."""
        self._unsaid: set[bytes | str] = set()
        """What requests repeated that the log doesn't hold either."""

    def acknowledged(self, call_id: str, engine: str, request: ChatRequest, told: Transcript, answer: Answer) -> None:
        """An answer of an engine, by name, is on the log, and about to leave."""
        self._remember(call_id, told, answer.prompt_ids, answer.sampled_ids, answer.message)
        self.turns.add(
            call_id,
            told.messages.link,
            answer.message,
            frame=_frame(
                answer.unsaid_calls, engine, told.tools_digest, request.offered_tools, request.reasoning_effort
            ),
            is_ended=_is_ended(answer.finish_reason, answer.stop_sequence),
        )
        if (first := request.stored_from) is not None:
            self.stored.add(call_id, request.messages, told.messages, answer.message, first)

    def restored(self, request: ChatRequest, owner: str | None) -> tuple[ChatRequest, Transcript]:
        """The request, whole, as the model said and read it, and as the log spells it.

        `owner`: the engine, by name, if it owns its prompts; it is told then which answer the request continues. Raises RefusalError for a
        request that continues a call which isn't known.
        """
        whole = self.stored.continued(request)
        bare = transcript(Spelled(), request.tools)
        shaping = bare.tools_digest, request.offered_tools, request.reasoning_effort
        frame = None if owner is None else frame_of(owner, *shaping)
        messages, spelled = self.turns.restore(whole.messages, request.tools, frame)
        continued = None if frame is None else self._continued(spelled, frame)
        return replace(whole, messages=messages, continued=continued), dataclasses.replace(bare, messages=spelled)

    def _continued(self, spelled: Spelled, frame: bytes) -> RepeatedAnswer | None:
        """The newest answer that restored messages go on from, with its tokens; None where there is none, or they were forgotten."""
        repeated = self.turns.repeated(spelled, frame)
        tokens = None if repeated is None else self.history.tokens(repeated.call_id)
        return (
            None if repeated is None or tokens is None else RepeatedAnswer(repeated.position, tokens, repeated.is_ended)
        )

    def undelivered(self, call_id: str) -> None:
        """That answer was seen by nobody."""
        self.turns.forget(call_id)

    def recall(self, log: ClaimLog) -> None:
        """Takes in calls that were read back from the log, from the claim's first on, those that it knows among them."""
        self._log = log
        for one in recalled(log.calls):
            call_id = one.call.call_id
            prompt = self.history.whole(one.call.prompt)
            if call_id in self._known or prompt is None:
                continue
            self._remember(call_id, one.told, prompt, one.call.sampled, one.answer)
            if call_id in log.disowned:
                continue
            self.turns.add(
                call_id,
                one.told.messages.link,
                one.answer,
                frame=_frame(
                    one.call.unsaid_calls,
                    one.call.engine,
                    one.told.tools_digest,
                    one.call.tool_choice,
                    one.call.reasoning_effort,
                ),
                is_ended=_is_ended(one.call.finish_reason, one.call.stop_sequence),
            )
            if (first := one.call.stored_from) is not None:
                self.stored.add(call_id, one.messages, one.told.messages, one.answer, first)

    def _remember(self, call_id: str, told: Transcript, prompt: bytes, sampled: bytes, answer: Message) -> None:
        self._known.add(call_id)
        self.spent.add(count(sampled))
        self.history.add(call_id, told, prompt, sampled, answer)

    def lacks(self, request: ChatRequest) -> bool:
        """Whether the request repeats what a call may have said that was under way at the last owner when the claim was read back."""
        if self._log is not None and time.monotonic() - self.taken_at > CALL_S:
            # None that was under way at the last owner can still come to the log.
            self._log = None
        return self._log is not None and not self._strange(request) <= self._unsaid

    def _strange(self, request: ChatRequest) -> set[bytes | str]:
        """What the request repeats that isn't known here."""
        strange: set[bytes | str] = set(self.turns.strangers(request.messages, request.tools))
        if request.continues is not None and request.continues not in self._known:
            strange.add(request.continues)
        return strange

    async def read_on(self, request: ChatRequest, read_back: ReadBack) -> bool:
        """Reads what came on the log since; whether the claim is over."""
        if (log := self._log) is None:
            return False
        more = await read_back(self.key, log.next_offset)
        self.recall(log.then(more))
        self._unsaid |= self._strange(request)
        return more.is_over


class OwnerChangedError(Exception):
    """The session has another owner now."""


class ClaimCache:
    """All claims that this proxy serves."""

    def __init__(
        self,
        read_back: ReadBack,
        owned_since: Callable[[str], float],
    ) -> None:
        """`read_back` reads a claim's log from an offset; `owned_since` tells since when this proxy has surely been a session's only
        owner, in Unix seconds, infinity where it isn't."""
        self._read_back = read_back
        self._owned_since = owned_since
        self._claims: OrderedDict[str, ClaimState] = OrderedDict()
        self._closed: OrderedDict[str, float] = OrderedDict()
        self._looking: dict[str, asyncio.Task[None]] = {}
        self._known_since = float("inf")

    def __len__(self) -> int:
        return len(self._claims)

    def known_from(self, unix_s: float) -> None:
        """From this moment on every `CloseKey` is seen."""
        self._known_since = unix_s

    def at_hand(self, key: KeyClaims) -> ClaimState | None:
        """The state of a key's claim; None where it must be read back first. Raises RefusalError where the key is closed."""
        claim_id = key.claim_id
        if claim_id in self._closed:
            raise closed()
        claim = self._claims.get(claim_id)
        if claim is None:
            if key.issued_at < max(self._known_since, self._owned_since(key.session_id)):
                return None
            claim = self._add(key)
        elif claim.is_stale:
            return None
        self._claims.move_to_end(claim_id)
        return claim

    async def of(self, key: KeyClaims) -> ClaimState:
        """The same, read back where it must be. Also raises RefusalError if it can't be, OwnerChangedError if the session isn't ours."""
        while (claim := self.at_hand(key)) is None:
            await self._look_up(key)
        return claim

    async def ready_for(self, key: KeyClaims, request: ChatRequest) -> ClaimState:
        """The same, with all on the log that the request repeats. Raises as `of` does."""
        while (claim := await self.of(key)).lacks(request):
            if await claim.read_on(request, self._read_back):
                self.close(key.claim_id)
        return claim

    def released(self, is_ours: Callable[[str], bool]) -> None:
        """Forgets the claims of sessions that others own now; their calls in flight go on."""
        for claim_id, claim in list(self._claims.items()):
            if is_ours(claim.key.session_id):
                continue
            if claim.in_flight:
                claim.is_stale = True
            else:
                del self._claims[claim_id]

    def close(self, claim_id: str) -> None:
        """The key is closed: its calls in flight end, its next ones are refused."""
        self._closed[claim_id] = time.time()
        self._closed.move_to_end(claim_id)
        while len(self._closed) > CLOSED:
            _, closed_at = self._closed.popitem(last=False)
            self._known_since = max(self._known_since, closed_at)
        claim = self._claims.pop(claim_id, None)
        for call in list(claim.in_flight) if claim is not None else ():
            call.end("closed")

    async def _look_up(self, key: KeyClaims) -> None:
        """Reads the claim's log back, once for all that ask at the same time."""
        task = self._looking.get(key.claim_id)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._take_over(key), name="take over")
            self._looking[key.claim_id] = task
            task.add_done_callback(lambda done: self._looked_up(key.claim_id, done))
        await asyncio.shield(task)

    def _looked_up(self, claim_id: str, done: asyncio.Task[None]) -> None:
        del self._looking[claim_id]
        if not done.cancelled():
            done.exception()  # told to those who still wait

    async def _take_over(self, key: KeyClaims) -> None:
        """Puts the claim at hand, or closes it; neither where the session came or went meanwhile."""
        since = self._owned_since(key.session_id)
        if since == float("inf"):
            raise OwnerChangedError
        log = await self._read_back(key, key.log_offset)
        if log.is_over:
            self.close(key.claim_id)
        if key.claim_id in self._closed or self._owned_since(key.session_id) != since:
            return
        claim = self._claims.get(key.claim_id) or self._add(key)
        claim.recall(log)
        claim.is_stale = False
        claim.taken_at = time.monotonic()

    def _add(self, key: KeyClaims) -> ClaimState:
        self._make_room()
        claim = self._claims[key.claim_id] = ClaimState(key)
        return claim

    def _make_room(self) -> None:
        """Forgets the least recently used claim that has no call in flight, if there are too many."""
        if len(self._claims) >= CLAIMS:
            idle = next((claim for claim in self._claims.values() if not claim.in_flight), None)
            if idle is not None:
                del self._claims[idle.key.claim_id]
                self._known_since = max(self._known_since, idle.key.issued_at + 1)


def _frame(unsaid_calls: int, engine: str, tools_digest: bytes, offered_tools: str | None, effort: str | None) -> bytes:
    """What a request must share with an answer to go on from it; none shares `UNSAID`."""
    return UNSAID if unsaid_calls else frame_of(engine, tools_digest, offered_tools, effort)


def _is_ended(finish_reason: str | None, stop_sequence: str | None) -> bool:
    """Whether the model itself ended its turn."""
    return finish_reason in ("stop", "tool_calls") and stop_sequence is None
