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

from consumers.token_tree.branches import Branch, Place, request_of, thread_of
from topics.types.building import TRAINED, Filters
from topics.types.completion import Completion
from topics.types.session import Status
from topics.types.tokens import unpack_logprobs

NO_LOGPROB = -9999.0
"""What vLLM's chat completions say where there is none (its `ChatCompletionLogProb`'s default), and less."""


class Masked(StrEnum):
    """Why sampled tokens are trained in no trace; where several hold, the first of this list is told."""

    BASE_MISSING = "base_missing"
    """What its prompt is a delta of isn't among the session's calls, has no place itself, or is shorter than what is shared."""
    INVALID_TOKENS = "invalid_tokens"
    """Its prompt's or sampled bytes are no token ids: no whole number of them, or one is negative."""
    CHAIN_DIFFERS = "chain_differs"
    """Its prompt as its delta says isn't the one that the proxy saw: the hash chain is another."""
    INVALID_LOGPROBS = "invalid_logprobs"
    """Not as many logprobs as tokens, or one that is no finite number, or the engine's stand-in for none."""
    DISOWNED = "disowned"
    """The proxy gave it up: no harness saw the answer."""
    SIDE_CALL = "side_call"
    """A title, a summary or the like, as a rule recognised it."""
    UNDELIVERED = "undelivered"
    """Asked again with the very same prompt by the same thread, and the harness went on from the other answer."""
    FILTERED_STATUS = "filtered_status"
    """The task's filter `statuses` leaves out sessions that end so."""
    FILTERED_KIND = "filtered_kind"
    """The task's filter `kinds` leaves out this kind of call, which is trained otherwise."""
    FILTERED_ENGINE = "filtered_engine"
    """The task's filter `engines` leaves out this engine: another model's, say."""
    FILTERED_TRUNCATED = "filtered_truncated"
    """The task's filter `drop_truncated`: the answer was cut at a length limit."""
    FILTERED_LONG = "filtered_long"
    """The task's filter `max_tokens`: its prompt and sampled tokens are more."""
    FILTERED_SHORT = "filtered_short"
    """The task's filter `min_trainable_tokens`: its trace would train fewer."""
    NO_TRACE = "no_trace"
    """The builder made no trace that trains it; the builders that come with Polar leave none so."""


FILTERS = frozenset(reason for reason in Masked if reason.startswith("filtered_"))


def masks(
    calls: Sequence[Completion],
    placed: Sequence[Place | Branch],
    disowned: Set[str],
    filters: Filters = Filters(),  # noqa: B008 - frozen
    status: Status = Status.COMPLETED,
) -> list[Masked | None]:
    """The reason of each call, by index; None for one that is trained. `status`: the session's."""
    answers = [p for p in placed if isinstance(p, Place) and p.sampled and p.call.call_id not in disowned]
    undelivered = _undelivered(answers, placed)

    def reason(call: Completion, place: Place | Branch) -> Masked | None:
        if isinstance(place, Branch):
            return Masked(place.value)
        if place.sampled and not has_logprobs(call):
            return Masked.INVALID_LOGPROBS
        if call.call_id in disowned:
            return Masked.DISOWNED
        if call.kind not in TRAINED and call.kind not in filters.kinds:
            return Masked.SIDE_CALL
        return Masked.UNDELIVERED if place in undelivered else _filtered(place, filters, status)

    return [reason(call, place) for call, place in zip(calls, placed, strict=True)]


def _filtered(place: Place, filters: Filters, status: Status) -> Masked | None:
    if filters.statuses is not None and status not in filters.statuses:
        return Masked.FILTERED_STATUS
    if place.call.kind not in filters.kinds:
        return Masked.FILTERED_KIND
    if filters.engines is not None and place.call.engine not in filters.engines:
        return Masked.FILTERED_ENGINE
    if filters.drop_truncated and place.call.finish_reason == "length":
        return Masked.FILTERED_TRUNCATED
    if filters.max_tokens is not None and place.end.end > filters.max_tokens:
        return Masked.FILTERED_LONG
    return None


def has_logprobs(call: Completion) -> bool:
    """Whether each sampled token has one."""
    if len(call.logprobs) != len(call.sampled):
        return False
    logprobs = unpack_logprobs(call.logprobs)
    return bool((np.isfinite(logprobs) & (logprobs > NO_LOGPROB)).all())


def _undelivered(answers: Iterable[Place], placed: Iterable[Place | Branch]) -> set[Place]:
    """Answers superseded by one to the same prompt.

    Those that a later prompt repeats were delivered, whole or as a template writes them; where there is none, the last in log order was.
    An edited one tells nothing of which it was. Threads are told apart, so that
    sub-agents that start alike don't supersede one another. The choices of one request were delivered, or not, together.
    """
    repeated = {place.parent for place in placed if isinstance(place, Place)}
    repeated |= {
        place.left.call
        for place in placed
        if isinstance(place, Place) and place.left and place.left.how is not Branch.EDITED_HISTORY
    }
    alike: defaultdict[object, defaultdict[str, list[Place]]] = defaultdict(lambda: defaultdict(list))
    for place in answers:
        alike[place.prompt, thread_of(place.call), place.call.kind][request_of(place.call)].append(place)
    superseded: set[Place] = set()
    for requests in alike.values():
        asked = list(requests.values())
        delivered = [choices for choices in asked if repeated.intersection(choices)] or asked[-1:]
        superseded.update(place for choices in asked if choices not in delivered for place in choices)
    return superseded
