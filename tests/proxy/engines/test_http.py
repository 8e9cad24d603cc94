"""What an inference server's errors are called, whatever stands in them."""

from __future__ import annotations

import pytest

from proxy.engines.http import fault_of

NO_MESSAGE = "(no readable message)"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error":{"message":"too busy"}}', "too busy"),
        (b'{"message":"too busy"}', "too busy"),
        (b"<html>", NO_MESSAGE),
        (b'{"message":"\xff"}', NO_MESSAGE),
        (b'{"more":' + b"[" * 100_000, NO_MESSAGE),
    ],
    ids=range(5),
)
def test_a_servers_own_words_are_kept_where_they_can_be_read(body: bytes, message: str) -> None:
    fault = fault_of(503, None, body)
    assert (fault.code, fault.message) == ("overloaded", message)


@pytest.mark.parametrize(
    ("header", "wait"),
    [("7", 7), ("0", 0), (None, None), ("1.5", None), ("-1", None), ("9" * 5000, None), ("Wed, 21 Oct 2015", None)],
    ids=range(7),
)
def test_a_retry_after_is_whole_seconds_or_nothing(header: str | None, wait: int | None) -> None:
    assert fault_of(429, header, b"{}").retry_after_s == wait
