"""What a harness is told of an engine's fault."""

from __future__ import annotations

import pytest

from proxy.engines.http import fault_of
from proxy.errors import MESSAGE_LIMIT, EngineError, Refusal, RefusalError, refusal_of


@pytest.mark.parametrize(("asked", "told"), [(None, 2), ("0", 2), ("7", 7), ("30", 30), ("3600", 30)])
def test_a_harness_is_never_sent_away_for_long(asked: str | None, told: int) -> None:
    refused = refusal_of(fault_of(429, asked, b"{}"))
    assert (refused.refusal, refused.retry_after_s) == (Refusal.OVERLOADED, told)


def test_a_prompt_that_does_not_fit_is_told_with_its_numbers() -> None:
    said = "This model's maximum context length is 4096 tokens. However, your request has 5000 input tokens."
    refused = refusal_of(fault_of(400, None, b'{"error":{"message":"%s"}}' % said.encode()))
    assert (refused.refusal, refused.context, refused.message) == (Refusal.CONTEXT_LENGTH, (5000, 4096), said)


@pytest.mark.parametrize(
    ("fault", "refusal"),
    [
        (fault_of(400, None, b'{"message":"top_p must be in (0, 1]"}'), Refusal.INVALID),
        (fault_of(404, None, b'{"message":"The model `m` does not exist."}'), Refusal.BAD_ENGINE),
        (fault_of(401, None, b"{}"), Refusal.BAD_ENGINE),
        (fault_of(503, None, b"{}"), Refusal.OVERLOADED),
        (fault_of(500, None, b"{}"), Refusal.BAD_ENGINE),
        (EngineError("busy", "x", retry_after_s=5), Refusal.OVERLOADED),
        (EngineError("unreachable", "x", retryable=True), Refusal.UNAVAILABLE),
        (EngineError("timeout", "x"), Refusal.BAD_ENGINE),
    ],
    ids=lambda value: value.code,
)
def test_only_its_own_request_is_a_harnesses_fault(fault: EngineError, refusal: Refusal) -> None:
    refused = refusal_of(fault)
    assert refused.refusal is refusal
    assert (refused.retry_after_s is not None) == (refusal in (Refusal.OVERLOADED, Refusal.UNAVAILABLE))
    assert (fault.message == refused.message) == (refusal is Refusal.INVALID), "an engine's words name our servers"


def test_a_message_shows_the_head_of_a_value_that_is_a_whole_file() -> None:
    assert (
        RefusalError(Refusal.INVALID, "seed: got x" + "y" * 10**6).message
        == ("seed: got x" + "y" * MESSAGE_LIMIT)[:MESSAGE_LIMIT] + "…"
    )
