"""Sessions written as words, and traces read back as one line: a token is a word, the trained ones stand in brackets.

`Log` makes the records that a proxy would have written, deltas included; nothing here stands in for a part of ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

import numpy as np

from consumers.builders.base import Builder, BuiltFrom
from consumers.builders.prefix_merging import PrefixMerging
from topics.completions import Build
from topics.types.completion import CallOutcome, Completion, MessageDelta, TokenDelta
from topics.types.session import Status
from topics.types.tokens import common_prefix, pack_ids, pack_logprobs, unpack_ids
from topics.types.trajectory import Trace, Trajectory, expand

_ids: dict[str, int] = {}
_words: list[str] = []


def ids_of(text: str) -> list[int]:
    """A token a word."""
    for word in text.split():
        if word not in _ids:
            _ids[word] = len(_words)
            _words.append(word)
    return [_ids[word] for word in text.split()]


def logprobs_for(call_id: str, sampled: list[int]) -> list[float]:
    """Such that no two calls and no two positions have the same, exact in float32."""
    return [-(sum(map(ord, call_id)) % 1000) - position / 1024 for position in range(len(sampled))]


def build_record(**fields: Any) -> Build:
    """The Build of session `t.0`."""
    defaults: dict[str, Any] = {
        "session_id": "t.0",
        "task_id": "t",
        "sample_index": 0,
        "num_samples": 1,
        "attempt": 1,
        "claim_id": "claim",
        "status": Status.COMPLETED,
        "builder": "prefix_merging",
        "builder_config": b"{}",
        "harness": "shell",
        "reward": 1.0,
    }
    return Build(**(defaults | fields))


def completion(call_id: str, prompt: TokenDelta, sampled: list[int], **fields: Any) -> Completion:
    """An answered call, unless `fields` say otherwise."""
    defaults: dict[str, Any] = {
        "session_id": "t.0",
        "attempt": 1,
        "claim_id": "claim",
        "outcome": CallOutcome.ANSWERED,
        "dialect": "openai_chat",
        "engine": "default",
        "received_at": 0,
        "completed_at": 0,
        "messages": MessageDelta(rest=b"[]"),
        "sampled": pack_ids(sampled),
        "logprobs": pack_logprobs(logprobs_for(call_id, sampled)),
        "finish_reason": "stop",
    }
    return Completion(call_id=call_id, prompt=prompt, **(defaults | fields))


def delta(prompt: list[int], base: str | None = None, known: list[int] | None = None) -> TokenDelta:
    """`prompt` against the tokens `known` of the call `base`; in full without."""
    if base is None or known is None:
        return TokenDelta(rest=pack_ids(prompt))
    shared = common_prefix(np.array(prompt, np.int32), np.array(known, np.int32))
    return TokenDelta(rest=pack_ids(prompt[shared:]), shared=shared, base=base)


class Log:
    """One session's calls, in the order of the log."""

    def __init__(self) -> None:
        self.calls: list[Completion] = []
        self._known: dict[str, list[int]] = {}

    def call(
        self,
        call_id: str,
        prompt: str,
        sampled: str | list[int] = "",
        *,
        written: TokenDelta | None = None,
        **fields: Any,
    ) -> None:
        """A call; its delta is `written`, else against the earlier call that shares most, as the proxy's is. Ten ms a call, half of
        them under way."""
        ids = ids_of(prompt)
        answer = sampled if isinstance(sampled, list) else ids_of(sampled)
        array = np.array(ids, np.int32)
        base = max(self._known, key=lambda i: common_prefix(array, np.array(self._known[i], np.int32)), default=None)
        written = written or delta(ids, base, self._known[base] if base else None)
        fields.setdefault("received_at", 10 * len(self.calls))
        fields.setdefault("completed_at", fields["received_at"] + 5)
        self.calls.append(completion(call_id, written, answer, **fields))
        self._known[call_id] = ids + answer

    def build(
        self, builder: Builder | None = None, *, disowned: frozenset[str] = frozenset(), **fields: Any
    ) -> Trajectory:
        return (builder or PrefixMerging()).build(BuiltFrom(build_record(**fields), self.calls, disowned))


def line(trajectory: Trajectory, trace: Trace) -> str:
    """The trace as words; what one call sampled and this trace trains stands in one pair of brackets."""
    expanded = expand(trajectory, trace)
    owner: list[str | None] = [None] * len(expanded.token_ids)
    for span in expanded.spans:
        owner[span.start : span.end] = [span.call.call_id] * (span.end - span.start)
    words = [_words[i] for i in expanded.token_ids]
    parts = []
    for call_id, group in groupby(zip(owner, words, strict=True), key=lambda pair: pair[0]):
        text = " ".join(word for _, word in group)
        parts.append(f"[{text}]" if call_id else text)
    return " ".join(parts)


def lines(trajectory: Trajectory) -> list[str]:
    """All traces, in their order."""
    return [line(trajectory, trace) for trace in trajectory.traces]


def branches(trajectory: Trajectory) -> Mapping[str, str | None]:
    """Branch reason by call id."""
    return {call.call_id: call.branch for call in trajectory.calls}


def parents(trajectory: Trajectory) -> Mapping[str, str | None]:
    """Parent by call id."""
    return {call.call_id: call.parent for call in trajectory.calls}


def tokens_of(data: bytes) -> list[int]:
    return [int(i) for i in unpack_ids(data)]
