"""Which calls' sampled tokens are trained, and why the others are not.

Invariant: a call without a reason was sampled by the engine in exactly that position under exactly that prefix,
with one finite logprob for each token, for the harness's work, and nothing on the log shows that its answer went unused.

Known limit (protocol 22): a session's last answer may be acknowledged, lost in a proxy's crash and never requested again. It looks
like any other last answer and is trained.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence, Set

import numpy as np

from consumers.token_tree.branches import PlacedCall, request_of
from topics.calls.media_marks import MARKS
from topics.calls.threads import thread_of
from topics.types.building import TRAINED, Filters
from topics.types.completion import Completion
from topics.types.session import Status
from topics.types.token_tree import Branch, Masked
from topics.types.tokens import unpack_logprobs

NO_LOGPROB = -9999.0
"""vLLM's placeholder for a missing logprob in chat completions (the default of its `ChatCompletionLogProb`); lower values count too."""


def masks(
    calls: Sequence[Completion],
    placed: Sequence[PlacedCall | Branch],
    disowned: Set[str],
    filters: Filters = Filters(),  # noqa: B008 - frozen
    status: Status = Status.COMPLETED,
) -> list[Masked | None]:
    """The reason of each call, by index; None for a call that is trained. `status`: the session's."""
    found = [each for each in placed if isinstance(each, PlacedCall)]
    superseded = _superseded([p for p in found if p.sampled and p.call.call_id not in disowned], found)
    rejected = {call_id for call in calls for call_id in call.rejects}

    def reason(call: Completion, place: PlacedCall | Branch) -> Masked | None:
        if isinstance(place, Branch):
            return Masked(place.value)
        if call.prompt_doubt is not None:
            return Masked.PROMPT_DIFFERS
        if any(medium.unproven for medium in place.media):
            return Masked.MEDIA_UNKNOWN
        if place.sampled and not has_logprobs(call):
            return Masked.INVALID_LOGPROBS
        if call.call_id in disowned:
            return Masked.DISOWNED
        if call.kind not in TRAINED and call.kind not in filters.kinds:
            return Masked.SIDE_CALL
        if place in superseded and call.call_id not in rejected:
            return Masked.UNDELIVERED
        if place in superseded and filters.rejected == "mask":
            return Masked.REJECTED
        return _filtered(place, filters, status)

    return [reason(call, place) for call, place in zip(calls, placed, strict=True)]


def _filtered(place: PlacedCall, filters: Filters, status: Status) -> Masked | None:
    if filters.statuses is not None and status not in filters.statuses:
        return Masked.FILTERED_STATUS
    if place.call.kind not in filters.kinds:
        return Masked.FILTERED_KIND
    if filters.engines is not None and place.call.engine not in filters.engines:
        return Masked.FILTERED_ENGINE
    sampling = place.call.sampling
    if filters.grammar == "mask" and sampling.grammar:
        return Masked.FILTERED_GRAMMAR
    if filters.truncated == "mask" and sampling.truncated:
        return Masked.FILTERED_TRUNCATED_SAMPLING
    if filters.penalised == "mask" and sampling.penalised:
        return Masked.FILTERED_PENALISED
    if filters.plain_only and not sampling.plain:
        return Masked.FILTERED_NOT_PLAIN
    if filters.drop_truncated and place.call.finish_reason == "length":
        return Masked.FILTERED_TRUNCATED
    if filters.drop_media and place.media:
        return Masked.FILTERED_MEDIA
    if filters.max_tokens is not None and place.end.end - MARKS * len(place.media) > filters.max_tokens:
        return Masked.FILTERED_LONG
    return None


def has_logprobs(call: Completion) -> bool:
    """Whether each sampled token has a usable logprob."""
    if len(call.logprobs) != len(call.sampled):
        return False
    logprobs = unpack_logprobs(call.logprobs)
    return bool((np.isfinite(logprobs) & (logprobs > NO_LOGPROB)).all())


def _superseded(answers: Iterable[PlacedCall], placed: Iterable[PlacedCall]) -> set[PlacedCall]:
    """Answers superseded by another answer to the same prompt.

    An answer that a later prompt repeats, in full or as a template writes it, was used; without such a prompt, the last one in log
    order was. A prompt with an edited answer doesn't show which answer was used. Threads are kept apart, so sub-agents that start alike
    don't supersede one another. The choices of one request are used, or not, together.
    """
    repeated = {place.parent for place in placed}
    repeated |= {
        place.divergence.call
        for place in placed
        if place.divergence is not None and place.divergence.reason is not Branch.EDITED_HISTORY
    }
    alike: defaultdict[object, defaultdict[str, list[PlacedCall]]] = defaultdict(lambda: defaultdict(list))
    for place in answers:
        alike[place.prompt, thread_of(place.call.lineage), place.call.kind][request_of(place.call)].append(place)
    superseded: set[PlacedCall] = set()
    for requests in alike.values():
        choices = list(requests.values())
        used = [each for each in choices if repeated.intersection(each)] or choices[-1:]
        superseded.update(place for each in choices if each not in used for place in each)
    return superseded
