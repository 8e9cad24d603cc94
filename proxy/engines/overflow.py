"""A prompt that doesn't fit, in the words that vLLM and SGLang have had for it: they change with releases, and no code beside them says so.

What counts is that it is this error and no other, and its numbers, by which harnesses shorten their history.
"""

from __future__ import annotations

import re

OVERFLOW = re.compile(
    r"maximum context length|context length is only|context_length_exceeded|longer than the maximum model length"
    r"|cannot be greater than max_model_len|longer than the model's context length",
    re.IGNORECASE,
)
LIMIT = re.compile(
    r"(?:context length is(?: only)? |maximum model length of |context length \()(\d{1,9})", re.IGNORECASE
)
PROMPT = (
    re.compile(r"(?<!\d)(?<!upper bound for )(\d{1,9}) input tokens"),
    re.compile(r"(?<!\d)(\d{1,9})(?: tokens)? in the messages"),
    re.compile(r"prompt \(length (\d{1,9})\)"),
    re.compile(r"input \((\d{1,9}) tokens\)"),
)


def is_overflow(words: str) -> bool:
    """Whether a refusal says that the prompt, or the prompt and the answer asked for, don't fit."""
    return OVERFLOW.search(words) is not None


def overflow_numbers(words: str) -> tuple[int, int] | None:
    """The prompt's tokens and the most that fit; None where not both are told, or it is the answer that doesn't fit.

    A vLLM that stops counting where it is too much tells the least that the prompt can be ("at least 4097").
    """
    limit = LIMIT.search(words)
    prompt = next((found for pattern in PROMPT if (found := pattern.search(words))), None)
    if limit is None or prompt is None or int(prompt[1]) <= int(limit[1]):
        return None
    return int(prompt[1]), int(limit[1])
