"""What docs/builder.md says of calls, by what really happened: the parent of each, and the reason why its tokens aren't trained."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from tests.faithfulness.agents import PLAIN
from tests.faithfulness.lived import UNPROVEN, Lived, Read, Session, images_of
from topics.types.building import Filters
from topics.types.completion import CallOutcome

TRAINED_BY_DEFAULT = ("main", "subagent", "compaction")
MANY_WORDS = 10_000
"""From this size of a vocabulary on, no two texts meet by chance."""
PLACELESS = frozenset({"base_missing", "invalid_tokens", "chain_differs"})
"""Reasons of a call whose prompt can't be restored, so that it is in no tree."""
IN_ORDER = (
    "prompt_differs",
    "media_unknown",
    "invalid_logprobs",
    "disowned",
    "side_call",
    "rejected",
    "undelivered",
    "filtered_status",
    "filtered_kind",
    "filtered_engine",
    "filtered_grammar",
    "filtered_truncated_sampling",
    "filtered_penalised",
    "filtered_not_plain",
    "filtered_truncated",
    "filtered_media",
    "filtered_long",
)
"""Of several reasons of a call in the tree, the first counts."""


def placeless(session: Session) -> dict[str, set[str]]:
    """The calls whose prompts can't be restored from the log, with their reasons: of their own record, or for want of its base."""
    bases = {record.call_id: record.prompt.base for record in session.records}
    found: dict[str, set[str]] = {}
    known: set[str] = set()
    for call in session.calls:
        if call.damage == "gone":
            found[call.call_id] = {"gone"}
            continue
        reasons = PLACELESS & {call.damage}
        if (base := bases[call.call_id]) is not None and (base not in known or base in found):
            reasons |= {"base_missing"}
        if reasons:
            found[call.call_id] = {reason for reason in reasons if reason is not None}
        known.add(call.call_id)
    return found


def parent_of(call: Lived, placed: Sequence[Lived]) -> Lived | None:
    """The answer that a call goes on from: the longest that its prompt begins with, of its own thread if several are equal, then the last.

    `placed`: the answered calls whose prompts are known, in log order.
    """
    before = placed[: placed.index(call)]
    fits = [at for at, other in enumerate(before) if _is_answer(other) and _begins(call.prompt, other.whole)]
    best = max(fits, key=lambda at: (len(before[at].whole), before[at].thread == call.thread, at), default=None)
    return None if best is None else before[best]


def _is_answer(call: Lived) -> bool:
    """Whether a harness may have seen an answer of it."""
    return bool(call.sampled) and not call.is_disowned


def placed_calls(session: Session, unplaced: Mapping[str, set[str]]) -> list[Lived]:
    """The answered calls whose prompts can be restored, in log order."""
    return [call for call in session.calls if call.call_id not in unplaced and call.outcome is CallOutcome.ANSWERED]


def reasons(session: Session, unplaced: Mapping[str, set[str]], filters: Filters) -> dict[str, set[str | None]]:
    """The reason of each call in the tree, None if it is trained; several where the log doesn't tell which."""
    placed = placed_calls(session, unplaced)
    unused = _unused(session, placed)
    found: dict[str, set[str | None]] = {}
    for call in placed:
        own = _own(session, call, filters)
        possible = unused.get(call.call_id, {None})
        if filters.rejected == "train":
            possible = {None if excuse == "rejected" else excuse for excuse in possible}
        first = {_first(own | {excuse}) for excuse in possible}
        is_short = None in first and filters.min_trainable_tokens > 1
        found[call.call_id] = first | ({"filtered_short"} if is_short else set())
    return found


def _first(holding: set[str | None]) -> str | None:
    """The reason that counts; None if there is none."""
    return next((reason for reason in IN_ORDER if reason in holding), None)


def _own(session: Session, call: Lived, filters: Filters) -> set[str | None]:
    """The reasons that hold for a call whatever other calls there are."""
    is_work = call.kind in TRAINED_BY_DEFAULT
    images = [image for read in call.prompt for image in images_of(read)]
    holds = {
        "prompt_differs": call.prompt_doubt is not None,
        "media_unknown": UNPROVEN in images,
        "invalid_logprobs": call.damage == "invalid_logprobs",
        "disowned": call.is_disowned,
        "side_call": not is_work and call.kind not in filters.kinds,
        "filtered_status": filters.statuses is not None and session.build.status not in filters.statuses,
        "filtered_kind": is_work and call.kind not in filters.kinds,
        "filtered_engine": filters.engines is not None and call.engine not in filters.engines,
        "filtered_grammar": filters.grammar == "mask" and call.sampling.grammar,
        "filtered_truncated_sampling": filters.truncated == "mask" and call.sampling.top_p == 0.9,
        "filtered_penalised": filters.penalised == "mask" and call.sampling.repetition_penalty == 1.1,
        "filtered_not_plain": filters.plain_only and call.sampling != PLAIN,
        "filtered_truncated": filters.drop_truncated and call.finish_reason == "length",
        "filtered_media": filters.drop_media and bool(images),
        "filtered_long": filters.max_tokens is not None and len(call.whole) > filters.max_tokens,
    }
    return {reason for reason, is_true in holds.items() if is_true}


def _unused(session: Session, placed: Sequence[Lived]) -> dict[str, set[str | None]]:
    """For each call whose thread asked its very question again: what the log allows to say of its answer.

    `rejected` if its proxy knows that the harness had the answer before, else `undelivered`; None where it may be the answer in use.
    """
    alike: defaultdict[object, defaultdict[str, list[Lived]]] = defaultdict(lambda: defaultdict(list))
    for call in placed:
        if _is_answer(call):
            alike[tuple(call.prompt), call.thread, call.kind][call.request].append(call)
    asked_again = [list(requests.values()) for requests in alike.values() if len(requests) > 1]
    surely_used = {parent_of(call, placed) for call in placed} if asked_again else set()
    found: dict[str, set[str | None]] = {}
    for requests in asked_again:
        question = requests[0][0].prompt
        answers = [call for choices in requests for call in choices]
        repeats_none = [later for later in placed if not any(_begins(later.prompt, call.whole) for call in answers)]
        is_vague = any(_may_repeat(session, later.prompt, question) for later in repeats_none)
        is_used = [not surely_used.isdisjoint(choices) for choices in requests]
        is_repeated = [any(_begins(p.prompt, call.whole) for p in placed for call in choices) for choices in requests]
        for number, choices in enumerate(requests):
            is_last_resort = number == len(requests) - 1 and not any(is_used[:-1])
            for call in choices:
                excuse = "rejected" if _is_rejected(session, call) else "undelivered"
                if is_used[number]:
                    found[call.call_id] = {None}
                elif is_vague or is_repeated[number] or (is_last_resort and any(is_repeated)):
                    found[call.call_id] = {None, excuse}
                else:
                    found[call.call_id] = {None if is_last_resort else excuse}
    return found


def _begins(prompt: list[Read], beginning: list[Read]) -> bool:
    return prompt[: len(beginning)] == beginning


def _may_repeat(session: Session, prompt: list[Read], question: list[Read]) -> bool:
    """Whether a prompt may hold an answer to a question, as a template or a harness changed it. With few words any prompt may."""
    return session.words < MANY_WORDS or (len(prompt) > len(question) and _begins(prompt, question[:-1]))


def _is_rejected(session: Session, call: Lived) -> bool:
    """Whether the log says so: the next request with its question, of the same proxy, came when the harness had the answer."""
    later = [
        other
        for other in session.calls
        if other.thread == call.thread
        and other.prompt == call.prompt
        and other.proxy == call.proxy
        and call.seen_at is not None
        and other.received_at >= call.seen_at
    ]
    next_at = min((other.received_at for other in later), default=None)
    return any(other.received_at == next_at and not other.is_retry and other.damage != "gone" for other in later)
