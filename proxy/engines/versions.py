"""Policy versions of an answer's tokens, from the weights that an engine reports.

vLLM's `/inference/v1/generate` and SGLang's `meta_info` report spans of output tokens with the name of the weights that sampled them
(`weight_versions: [{version, start, end}]`). The updater of the weights chooses the name. A policy version is an integer, so only names in
decimal digits are versions. Nothing is guessed: spans that don't cover every token exactly once are discarded.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import msgspec

from proxy.chat import Doubt
from topics.types.completion import PolicySpan, are_whole

LARGEST = 2**63 - 1
"""The largest version that the log can hold."""


class NamedSpan(msgspec.Struct, frozen=True):
    """Tokens `[start, end)` of an answer, in the engines' format."""

    version: str | int | None
    start: int
    end: int


class Versions(NamedTuple):
    """The fields of an `Answer` that describe its versions."""

    policy_version: int | None = None
    policy_spans: tuple[PolicySpan, ...] = ()
    policy_doubt: Doubt | None = None


def versions(reported: Sequence[NamedSpan] | None, sampled: int) -> Versions:
    """The versions of `sampled` tokens; empty if the engine reported none. Spans are set only if there are several versions."""
    named = [span for span in reported or () if span.start < span.end]
    if not named:
        return Versions()
    spans: list[PolicySpan] = []
    for span in named:
        version = version_of(span.version)
        if version is None:
            return Versions(policy_doubt="not_ours" if len({each.version for each in named}) == 1 else "mixed")
        spans.append(PolicySpan(version, span.start, span.end))
    if not are_whole(spans, sampled):
        return Versions(policy_doubt="gaps")
    joined = [
        PolicySpan(version, run[0].start, run[-1].end)
        for version, run in ((version, list(run)) for version, run in groupby(spans, lambda span: span.version))
    ]
    return Versions(joined[0].version, tuple(joined) if len(joined) > 1 else ())


def version_of(name: str | int | None) -> int | None:
    """The version that a name of weights stands for; None for any other name."""
    if isinstance(name, str):
        if not (name.isascii() and name.isdecimal() and len(name) <= len(str(LARGEST))):
            return None
        name = int(name)
    return name if name is not None and 0 <= name <= LARGEST else None
