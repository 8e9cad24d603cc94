"""Which calls' sampled tokens are trained, and why the others are not.

Owns the reason codes. Invariant: a call without a reason was sampled by the engine in that very position under that very prefix,
with as many finite logprobs, for the harness's work, and nothing on the log says that its answer went unused.

Known limit (protocol 22): the last answer of a session, acknowledged but lost in a proxy's crash and never asked for again, looks
like any other last answer, and is trained.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from enum import StrEnum

import numpy as np

from consumers.builders.history import Place, thread_of
from polar.types.completion import Completion
from polar.types.tokens import unpack_logprobs

TRAINED = frozenset({"main", "subagent", "compaction"})
"""Kinds of call that are trained: main work, a sub-agent's, and the summaries that work goes on from. The others are side calls."""


class Masked(StrEnum):
    """Why sampled tokens are trained in no trace; where several hold, the first of this list is told."""

    BASE_MISSING = "base_missing"
    """What its prompt is a delta of isn't among the session's calls, has no place itself, or is shorter than what is shared."""
    INVALID_LOGPROBS = "invalid_logprobs"
    """Not as many logprobs as tokens, or one that is no finite number."""
    DISOWNED = "disowned"
    """The proxy gave it up: no harness saw the answer."""
    SIDE_CALL = "side_call"
    """A title, a summary or the like, as a rule recognised it."""
    UNDELIVERED = "undelivered"
    """Asked again with the very same prompt by the same thread, and the harness went on from the other answer."""


def masks(calls: Sequence[Completion], placed: Sequence[Place | None], disowned: Set[str]) -> list[Masked | None]:
    """The reason of each call, by index; None for one that is trained."""
    undelivered = _undelivered(
        [p for p in placed if p is not None and p.sampled and p.call.call_id not in disowned], placed
    )

    def reason(call: Completion, place: Place | None) -> Masked | None:
        if place is None:
            return Masked.BASE_MISSING
        if place.sampled and not has_logprobs(call):
            return Masked.INVALID_LOGPROBS
        if call.call_id in disowned:
            return Masked.DISOWNED
        if call.kind not in TRAINED:
            return Masked.SIDE_CALL
        return Masked.UNDELIVERED if place in undelivered else None

    return [reason(call, place) for call, place in zip(calls, placed, strict=True)]


def has_logprobs(call: Completion) -> bool:
    """Whether each sampled token has a finite logprob."""
    return len(call.logprobs) == len(call.sampled) and bool(np.isfinite(unpack_logprobs(call.logprobs)).all())


def _undelivered(answers: Iterable[Place], placed: Iterable[Place | None]) -> set[Place]:
    """Answers superseded by one to the same prompt.

    Those that a later prompt repeats were delivered; where there is none, the last in log order was. Threads are told apart, so that
    sub-agents that start alike don't supersede one another. The choices of one request were delivered, or not, together.
    """
    repeated = {place.parent for place in placed if place is not None}
    alike: defaultdict[object, defaultdict[str, list[Place]]] = defaultdict(lambda: defaultdict(list))
    for place in answers:
        alike[place.prompt, thread_of(place.call), place.call.kind][_request_of(place.call)].append(place)
    superseded: set[Place] = set()
    for requests in alike.values():
        asked = list(requests.values())
        delivered = [choices for choices in asked if repeated.intersection(choices)] or asked[-1:]
        superseded.update(place for choices in asked if choices not in delivered for place in choices)
    return superseded


def _request_of(call: Completion) -> str:
    """Choices after the first are named after it: `<its id>.<choice>`."""
    return call.call_id.rpartition(".")[0] if call.choice else call.call_id
