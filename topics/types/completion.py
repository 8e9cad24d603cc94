"""One captured model call, as the log keeps it.

Prompt and messages are deltas against an acknowledged call of the same claim (protocol 21): `base` names it, `shared` says how much
of base's prompt + sampled tokens (or messages + answer) is common, `rest` is what follows. Without a base `shared` is 0 and `rest`
is all of it. `topics/calls/delta.py` makes and resolves them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise

import msgspec


class CallOutcome(StrEnum):
    """How a call ended, as seen by the proxy."""

    ANSWERED = "answered"
    """The engine answered; the harness got it once this record was acknowledged."""
    FAILED = "failed"
    """No usable answer; the harness got an error."""
    ABANDONED = "abandoned"
    """The harness hung up, or its key was closed, before an answer."""


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a call was sampled with; None: the engine's default."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    truncated: bool = False
    """Sampled from a truncated distribution (top_p, top_k, min_p), so that logprobs need the same transform."""
    grammar: bool = False
    """Constrained by structured output or a forced tool."""


class TokenDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """A prompt: the first `shared` tokens of base's prompt + sampled tokens, then `rest`."""

    rest: bytes
    """int32 LE."""
    shared: int = 0
    base: str | None = None
    """Call id; None: `rest` is the whole prompt."""
    chain: bytes = b""
    """Last link of the hash chain over the prompt's whole blocks of 256 tokens; empty for a shorter prompt."""


class MessageDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """The canonical messages: the first `shared` of base's messages + answer, then `rest`."""

    rest: bytes
    """JSON array of canonical chat messages."""
    shared: int = 0
    base: str | None = None


class PolicySpan(msgspec.Struct, frozen=True, array_like=True):
    """The sampled tokens `[start, end)` of a call are of one policy version; a list of three on the wire."""

    version: int
    start: int
    end: int


def are_whole(spans: Sequence[PolicySpan], tokens: int) -> bool:
    """Whether each of so many tokens lies in one of the spans, which ascend."""
    ends = [0, *(span.end for span in spans)]
    return (
        ends[-1] == tokens
        and all(start < end for start, end in pairwise(ends))
        and all(span.start == before for span, before in zip(spans, ends, strict=False))
    )


class CallError(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a call has no answer."""

    code: str
    message: str
    status: int | None = None
    """The engine's HTTP status, where there was one."""


class Completion(msgspec.Struct, frozen=True, tag="completion", omit_defaults=True):
    """One model call. Key: session id. Written by the proxy alone, acknowledged before the answer leaves."""

    call_id: str
    session_id: str
    attempt: int
    claim_id: str
    outcome: CallOutcome
    dialect: str
    engine: str
    received_at: int
    """Unix ms on the proxy's clock."""
    completed_at: int
    prompt: TokenDelta
    messages: MessageDelta
    sampled: bytes = b""
    """int32 LE; empty unless answered."""
    logprobs: bytes = b""
    """float32 LE, as many as `sampled`."""
    logprobs_mode: str = "processed"
    """The engine's: `raw` or `processed` (after temperature and truncation)."""
    answer: bytes = b""
    """JSON: the canonical assistant message; empty unless answered."""
    tools: bytes | None = None
    """JSON array of tool definitions where they differ from base's; None: the same as base's, or none without a base."""
    finish_reason: str | None = None
    stop_sequence: str | None = None
    """The stop string that ended it, where one did: its last token is then none that ends turns."""
    model_requested: str | None = None
    model_served: str | None = None
    policy_version: int | None = None
    """Of the weights that sampled it, its first token where `policy_spans` tell more; None: not known."""
    sampling: Sampling = Sampling()
    reasoning_effort: str | None = None
    """As asked for: with messages and tools what the prompt was rendered of."""
    tool_choice: str | None = None
    """Where it may shape the prompt, too: `none`, or `function:` and the only one that may be called. None: the model chose."""
    kind: str = "main"
    """`main`, or the side call that a rule recognised (`title`, `summary`, …)."""
    kind_rule: str | None = None
    lineage: dict[str, str] | None = None
    """The harness's own session, thread, agent, parent and retry headers, by canonical name."""
    stream: bool = False
    error: CallError | None = None
    choice: int = 0
    """Which of the answers that one request asked for (OpenAI's `n`); they are siblings, and none supersedes another."""
    stored_from: int | None = None
    """Another call may continue this one (OpenAI's `store`): the first message that it inherits, which are not this one's own
    instructions. None: this one isn't stored."""
    policy_spans: list[PolicySpan] = []
    """Where weights changed within one answer and the engine tells: ascending, without gaps, over all of `sampled`. Empty:
    `policy_version` is every token's."""
    realigned: int = 0
    """Tokens of the prompt that stand as they were sampled where the engine's own rendering spelled them otherwise: tokens mode."""
    unsaid_calls: int = 0
    """Calls of tools that were sampled and that the harness wasn't told of, since it takes one at a time: tokens mode."""
