"""The state of one claim: its calls in flight, and what its acknowledged calls were, sampled and used.

A claim that was read back from the log may lack calls that were under way at its last owner. Invariant: as long as one of those may still
be acknowledged, a request that repeats unknown content is served only after the log was read on.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from proxy.chat import ChatRequest, RepeatedAnswer
from proxy.errors import REQUESTS_FAULT
from proxy.request_limits import CALL_S
from proxy.session.endings import EndableCall
from proxy.session.history import CallHistory, Transcript, frame_of, transcript
from proxy.session.limits import ClaimUsage
from proxy.session.logged_calls import LoggedCall, expanded
from proxy.session.recovery import ClaimLog
from proxy.session.repeats import RepeatIndex
from proxy.session.seen import SeenAnswers
from proxy.session.stored import StoredCalls
from proxy.session.turns import SampledTurns
from proxy.session.work import Work
from topics.calls.delta import MEDIUM_BYTES, Spelled
from topics.environment.keys import KeyClaims
from topics.types.completion import CallError, Completion, Medium
from topics.types.last_call import LastCall
from topics.types.tokens import count

NO_FRAME = b""
"""The frame of an answer whose message omits some of its tokens: no request has this frame, so none continues the answer's tokens."""

ReadBack = Callable[[KeyClaims, int], Awaitable[ClaimLog]]
"""Reads a claim's log from an offset on."""


class ClaimState:
    """One claim's state."""

    def __init__(self, key: KeyClaims) -> None:
        self.key = key
        self.history = CallHistory()
        self.turns = SampledTurns()
        self.work = Work()
        self.stored = StoredCalls()
        self.repeats: RepeatIndex[Any] = RepeatIndex()
        self.seen = SeenAnswers()
        self.usage = ClaimUsage()
        self.in_flight: set[EndableCall] = set()
        self.last_call = LastCall()
        self.is_stale = False
        """The session had another owner while calls were in flight here: that owner's calls must be read back."""
        self._known: set[str] = set()
        """Ids of acknowledged calls."""
        self._routed: set[str] = set()
        """Ids of the calls whose routed experts are on the log, and are those of the recorded prompt."""
        self._log_bytes = 0
        self._log: ClaimLog | None = None
        """The part of the log that was read back, while more calls of the last owner may follow; None otherwise."""
        self._read_back_at = 0.0
        """`time.monotonic()` when the claim was first read back."""
        self._not_on_log: set[bytes | str] = set()
        """Content that requests repeated and that the log doesn't have."""

    @property
    def size(self) -> int:
        """Estimated bytes in memory; within a third for a claim that wasn't read back (`tests/proxy/session/test_claim_state.py`)."""
        read_back = self._log_bytes if self._log is not None else 0
        return (
            self.history.size
            + self.turns.size
            + self.work.size
            + self.stored.size
            + self.seen.size
            + 100 * (len(self._known) + len(self._routed))
            + read_back
        )

    def add(self, call: LoggedCall, prompt: bytes, media: Sequence[Medium] = (), *, is_disowned: bool = False) -> None:
        """Adds an acknowledged call. `prompt` is in full, int32 LE, and `media` are those of the whole prompt. Nobody has seen the answer
        of a disowned call."""
        record, call_id = call.record, call.record.call_id
        self._known.add(call_id)
        if record.routed_experts is not None and record.prompt_doubt is None:
            self._routed.add(call_id)
        self.last_call = LastCall()
        self.usage.add(count(record.sampled))
        self.history.add(call_id, call.transcript, prompt, record.sampled, call.answer, media)
        if is_disowned:
            return
        self.work.add(call)
        frame = frame_of(record.engine, call.transcript.tools_digest, record.tool_choice, record.reasoning_effort)
        self.turns.add(
            call_id,
            call.transcript.messages.link,
            call.answer,
            frame=NO_FRAME if record.unsaid_calls else frame,
            is_ended=_is_ended(record),
        )
        if record.stored_from is not None:
            self.stored.add(call_id, call.messages, call.transcript.messages, call.answer, record.stored_from)

    def disown(self, call_id: str) -> None:
        """Forgets an answer that no harness has seen."""
        self.turns.forget(call_id)

    def fail(self, error: CallError) -> None:
        """A call ended without an answer."""
        self.last_call = LastCall(None if error.code in REQUESTS_FAULT else error)

    def restore(self, request: ChatRequest, engine: str | None) -> tuple[ChatRequest, Transcript]:
        """The request in full, with its messages as the model sampled and read them, and its transcript.

        `engine`: the engine's name if it owns its prompts; the request then says which answer it continues. Raises RefusalError if the
        request continues an unknown call, or refers to an unknown item.
        """
        whole = self.stored.continued(self.stored.resolved(request))
        bare = transcript(Spelled(), request.tools)
        shaping = bare.tools_digest, request.offered_tools, request.reasoning_effort
        frame = None if engine is None else frame_of(engine, *shaping)
        messages, spelled = self.turns.restore(whole.messages, request.tools)
        continued = None if frame is None else self._continued(spelled, frame)
        return replace(whole, messages=messages, continued=continued), dataclasses.replace(bare, messages=spelled)

    def is_beside_work(self, request: ChatRequest, transcript: Transcript, lineage: Mapping[str, str] | None) -> bool:
        """Whether a restored request differs from the work of its thread, and continues none of its answers."""
        return self.work.has_other_prompt(request, transcript, lineage) and self.work.are_side_calls(
            self.turns.repeated_calls(request.messages, transcript.messages)
        )

    def _continued(self, spelled: Spelled, frame: bytes) -> RepeatedAnswer | None:
        """The newest answer that restored messages continue, with its tokens; None if there is none or its tokens were forgotten."""
        repeated = self.turns.repeated(spelled, frame)
        tokens = None if repeated is None else self.history.tokens(repeated.call_id)
        if repeated is None or tokens is None:
            return None
        routed_by = repeated.call_id if repeated.call_id in self._routed else None
        return RepeatedAnswer(repeated.position, tokens, repeated.is_ended, routed_by)

    def take_over(self, log: ClaimLog) -> None:
        """Adds all calls on the claim's log, after it was read back from its beginning."""
        self._recall(log)
        self.last_call = LastCall(moved=True)
        self.is_stale = False
        self._read_back_at = time.monotonic()

    def must_read_on(self, request: ChatRequest) -> bool:
        """Whether the request repeats content that a call may have sampled which was under way at the last owner."""
        if self._log is not None and time.monotonic() - self._read_back_at > CALL_S:
            # No call that was under way at the last owner can still come to the log.
            self._log = None
        return self._log is not None and not self._unknown(request) <= self._not_on_log

    async def read_on(self, request: ChatRequest, read_back: ReadBack) -> bool:
        """Adds the calls that came to the log since; returns whether the claim is over."""
        if (log := self._log) is None:
            return False
        more = await read_back(self.key, log.next_offset)
        self._recall(log.then(more))
        self._not_on_log |= self._unknown(request)
        return more.is_over

    def _recall(self, log: ClaimLog) -> None:
        """Adds the calls of a log that begins with the claim's first call; calls that are known already stay as they are."""
        self._log = log
        self._log_bytes = sum(_bytes(record) for record in log.calls)
        for call in expanded(log.calls):
            prompt = self.history.expanded(call.record)
            if call.record.call_id not in self._known and prompt is not None:
                self.add(call, prompt.ids, prompt.media, is_disowned=call.record.call_id in log.disowned)

    def _unknown(self, request: ChatRequest) -> set[bytes | str]:
        """Digests of the turns that the request repeats and ids of the calls that it continues or refers to, of those that aren't known."""
        named = (request.continues, *(reference.call_id for reference in request.references))
        unknown: set[bytes | str] = {call_id for call_id in named if call_id is not None and call_id not in self._known}
        lacking = {reference.position for reference in request.references}
        repeated = [message for at, message in enumerate(request.messages) if at not in lacking]
        return unknown | self.turns.unknown_turns(repeated, request.tools)


def _is_ended(record: Completion) -> bool:
    """Whether the model itself ended its turn."""
    return record.finish_reason in ("stop", "tool_calls") and record.stop_sequence is None


def _bytes(record: Completion) -> int:
    """The estimated size of a record in memory."""
    texts = record.prompt.rest, record.messages.rest, record.sampled, record.logprobs, record.answer
    return 1_000 + MEDIUM_BYTES * len(record.media) + sum(len(text) for text in texts if text is not None)
