"""What an engine says of the weights behind an answer, in policy versions.

vLLM's `/inference/v1/generate` and SGLang's `meta_info` tell spans of output tokens with the name of the weights that sampled them
(`weight_versions: [{version, start, end}]`), text that whoever updates the weights has given them. A policy version is an integer: so
only names that are one in decimal digits are versions. Nothing is guessed: what doesn't cover every token once tells nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import msgspec

from proxy.chat import Doubt
from topics.types.completion import PolicySpan, are_whole

LARGEST = 2**63 - 1
"""As the log has it."""


class NamedSpan(msgspec.Struct, frozen=True):
    """Tokens `[start, end)` of an answer, as engines write it."""

    version: str | int | None
    start: int
    end: int


class Versions(NamedTuple):
    """For an `Answer`, by its fields."""

    policy_version: int | None = None
    policy_spans: tuple[PolicySpan, ...] = ()
    policy_doubt: Doubt | None = None


def versions(told: Sequence[NamedSpan] | None, sampled: int) -> Versions:
    """Of so many sampled tokens; nothing where the engine told nothing. Spans only where there are several versions."""
    named = [span for span in told or () if span.start < span.end]
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
    """The version that a name of weights is; None for any other name."""
    if isinstance(name, str):
        if not (name.isascii() and name.isdecimal() and len(name) <= len(str(LARGEST))):
            return None
        name = int(name)
    return name if name is not None and 0 <= name <= LARGEST else None
