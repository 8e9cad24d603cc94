"""Compares the prompt that goes to the log with the prompt that an engine reports to have read."""

from __future__ import annotations

from proxy.chat import PromptDoubt
from topics.types.tokens import count


def doubt_of_prompt(recorded: bytes, read_tokens: int | None, other_ids: bytes | None = None) -> PromptDoubt | None:
    """Why the engine read another prompt than is recorded; None: nothing shows that.

    `recorded` and `other_ids`, the same prompt as the engine's other side has it, are int32 LE; `read_tokens` is the engine's own count of
    the prompt. None: not reported.
    """
    if other_ids is not None and other_ids != recorded:
        return "ids"
    return None if read_tokens in (None, count(recorded)) else "count"
