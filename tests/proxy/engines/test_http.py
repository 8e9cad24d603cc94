"""The EngineError for each error of an inference server; among them prompts that don't fit, in the words of several releases."""

from __future__ import annotations

import pytest

from proxy.engines.http import fault_of, is_overflow, overflow_numbers

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


SAID = """
0.10, prompt: 5000 of 4096
This model's maximum context length is 4096 tokens. However, your request has 5000 input tokens. Please reduce the length of the
input messages.

0.10, answer: no numbers
'max_tokens' or 'max_completion_tokens' is too large: 32768. This model's maximum context length is 40960 tokens and your
request has 9519 input tokens (32768 > 40960 - 9519).

0.10, engine: 5000 of 4096
The decoder prompt (length 5000) is longer than the maximum model length of 4096. Make sure that `max_model_len` is no smaller
than the number of text tokens.

older, prompt: 5000 of 4096
This model's maximum context length is 4096 tokens. However, you requested 5000 tokens in the messages, Please reduce the length
of the messages.

older, both: 5000 of 4096
This model's maximum context length is 4096 tokens. However, you requested 5100 tokens (5000 in the messages, 100 in the
completion). Please reduce the length of the messages or completion.

0.16, both: 5000 of 4096
You passed 5000 input tokens and requested 64 output tokens. However, the model's context length is only 4096 tokens, resulting
in a maximum input length of 4032 tokens. Please reduce the length of the input prompt.

0.16, characters: no numbers
You passed 90000 input characters and requested 0 output tokens. However, the model's context length is only 4096 tokens,
resulting in a maximum input length of 4096 tokens (at most 81920 characters).

0.25, prompt: 4097 of 4096
This model's maximum context length is 4096 tokens. However, you requested 0 output tokens and your prompt contains at least
4097 input tokens, for a total of at least 4097 tokens. Please reduce the length of the input prompt or the number of requested
output tokens.

0.25, answer: no numbers
This model's maximum context length is 8192 tokens. However, you requested 4096 output tokens and your prompt contains at least
4097 input tokens, for a total of at least 8193 tokens.

0.25, characters: no numbers
This model's maximum context length is 8192 tokens. However, you requested 64 output tokens and your prompt contains 100000
characters (more than 81280 characters, which is the upper bound for 8128 input tokens).

0.25, answer alone: no numbers
max_completion_tokens=131072cannot be greater than max_model_len=max_total_tokens=65536. Please request fewer output tokens.

SGLang: 5000 of 4096
The input (5000 tokens) is longer than the model's context length (4096 tokens).
"""
"""By release and cause: tokens of the prompt and of the context where the words name them, then the words, wrapped."""


@pytest.mark.parametrize("said", SAID.strip().split("\n\n"), ids=lambda said: said.partition(":")[0])
def test_what_does_not_fit_is_known_with_its_numbers(said: str) -> None:
    head, *lines = said.splitlines()
    words, numbers = " ".join(lines), overflow_numbers(" ".join(lines))
    assert is_overflow(words)
    assert head.partition(": ")[2] == ("no numbers" if numbers is None else f"{numbers[0]} of {numbers[1]}")


@pytest.mark.parametrize(
    "words",
    [
        "top_p must be in (0, 1], got 2.0.",
        "The model `m` does not exist.",
        "max_tokens must be at least 1, got 0.",
        "Input length is unknown",
        "",
    ],
)
def test_other_refusals_are_not_taken_for_it(words: str) -> None:
    assert not is_overflow(words)
    assert overflow_numbers(words) is None
