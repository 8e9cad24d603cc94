"""What becomes of a call that Kafka doesn't acknowledge."""

from __future__ import annotations

import pytest

from proxy.capture import CallSpec, Capture
from proxy.chat import Answer, ChatRequest, Message, Usage
from proxy.errors import Refusal, RefusalError
from proxy.metrics import ProxyMetrics
from proxy.session.claim_state import ClaimState
from proxy.session.history import transcript
from topics.calls.delta import Spelled
from topics.environment.keys import KeyClaims
from topics.environment.settings import Settings
from topics.log.producer import LogProducer
from topics.types.tokens import pack_ids

KEY = KeyClaims("t.0", 1, "c", expires_at=2**31, issued_at=0, namespace="polar")
ANSWER = Answer(Message("assistant", "one"), "stop", Usage(3, 1), pack_ids([1, 2, 3]), pack_ids([4]), b"\0" * 4, "m")


async def test_no_later_call_is_a_delta_against_one_that_may_not_be_on_the_log() -> None:
    """The producer is stopped, so that nothing is acknowledged."""
    producer = LogProducer(Settings())
    await producer.stop()
    capture, claim = Capture(producer, ProxyMetrics()), ClaimState(KEY)
    request = ChatRequest([Message("user", "x")])
    said = transcript(Spelled(request.messages), [])
    with pytest.raises(RefusalError) as refused:
        await capture.answered(CallSpec("lost", claim, "openai_chat", "default", request, said, 0.0), ANSWER)
    assert refused.value.refusal is Refusal.UNAVAILABLE
    await capture.settle(0.0)
    prompt, messages = claim.history.prompt_delta(ANSWER), claim.history.transcript_delta(said).messages
    assert (prompt.base, prompt.rest) == (None, ANSWER.prompt_ids), "in full"
    assert (messages.base, messages.shared) == (None, 0)
