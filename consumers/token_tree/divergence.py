"""Where a prompt diverges from an earlier answer: from which call's answer, and why.

A prompt diverges in one of two places, `|` in these lines:

    prompt of a call, part of its answer | …                       `after_prompt`: inside the answer, or at its first token
    beginning of a call's prompt | its answer without its start …  `before_answer`: the template writes the turn's opening otherwise

Judged by token ids alone: nothing here knows a template or a tokenizer. Invariant: a prompt never diverges from an answer that it
repeats in full.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice, takewhile

import numpy as np

from consumers.token_tree.branches import Divergence, PlacedCall
from consumers.token_tree.prefixes import Segment, joined
from topics.types.token_tree import Branch
from topics.types.tokens import WIDTH, Ids, common_prefix, unpack_ids

GENERATION_TOKENS = 16
"""Limit for the tokens that a template adds to start an answer. Some templates change them once the answer is history (`<think>`)."""
TRIED = 256
"""Positions in an answer at which the prompt's continuation is searched: the first one matches, unless answers repeat one token."""
END_TOKENS = 4
"""Tokens of an answer's end that a prompt must contain if it diverges before the answer: an end token alone proves nothing."""
END_BYTES = END_TOKENS * WIDTH
SAME_END = 256
"""Newest answers with the same end that are considered: tool calls end alike."""
COMPARED = 16
"""Newest of these whose answers are compared with the prompt."""


def after_prompt(prompt: Segment, calls: Sequence[PlacedCall]) -> Divergence:
    """The divergence of a prompt that extends the prompt of all `calls` and repeats none of their answers in full."""
    below = joined(prompt.below(calls[-1].prompt))
    best, longest = Divergence(calls[-1], Branch.EDITED_HISTORY), 0
    for call in reversed(calls):
        sampled = unpack_ids(call.call.sampled)
        continuation = below[: 2 * len(sampled)]
        repeated = common_prefix(continuation, sampled)
        # Of several answers, the one that the prompt repeats most of; among equals the last, which a harness that retries uses.
        is_all_but_the_end = longest < repeated == len(sampled) - 1 and repeated < len(continuation)
        if is_all_but_the_end and call.call.finish_reason != "length":
            best, longest = Divergence(call, Branch.END_OF_TURN), repeated
        elif best.reason is Branch.EDITED_HISTORY and _starts_inside(continuation[repeated:], sampled[repeated + 1 :]):
            best = Divergence(call, Branch.STRIPPED)
    return best


def end_of(call: PlacedCall) -> bytes:
    """The last END_TOKENS of its answer, by which `before_answer` finds it. It never finds a shorter answer."""
    return call.call.sampled[-END_BYTES:]


def before_answer(
    prompt: Segment, ends: Mapping[bytes, Sequence[PlacedCall]], top: Segment | None
) -> Divergence | None:
    """The divergence of a prompt that leaves a call's prompt in its last GENERATION_TOKENS and then contains the answer's end.

    None if there is no such call below `top`. `ends`: the earlier calls, by `end_of`, so time is linear in the prompt's own tokens.
    """
    fork, branch = _fork(prompt, top)
    if fork is None or branch is None:
        return None
    below = joined(prompt.below(fork))
    data = below.tobytes()
    read = {data[at : at + END_BYTES] for at in range(0, len(data) - END_BYTES + 1, WIDTH)}
    found = {
        call for end in read & ends.keys() for call in ends[end][-SAME_END:] if _is_near(call.prompt, fork, branch)
    }
    for call in sorted(found, key=lambda call: call.index, reverse=True)[:COMPARED]:
        sampled = unpack_ids(call.call.sampled)
        continuation = below[: GENERATION_TOKENS + len(sampled)]
        starts = range(min(GENERATION_TOKENS, len(continuation)))
        if any(_starts_inside(continuation[start:], sampled, END_TOKENS) for start in starts):
            return Divergence(call, Branch.STRIPPED)
    return None


def _starts_inside(continuation: Ids, answer: Ids, least: int = 1) -> bool:
    """Whether `continuation` begins with an end of `answer` that has `least` tokens or more."""
    if not len(continuation):
        return False
    starts = np.flatnonzero(answer[: len(answer) - least + 1] == continuation[0])
    return any(common_prefix(answer[at:], continuation) == len(answer) - at for at in islice(starts.tolist(), TRIED))


def _fork(prompt: Segment, top: Segment | None) -> tuple[Segment | None, Segment | None]:
    """The deepest position between `top` and `prompt` at which another path starts, and this path's next segment."""
    branch = None
    for segment in prompt.up():
        if segment is top:
            break
        if branch is not None and len(segment.children) > 1:
            return segment, branch
        branch = segment
    return None, None


def _is_near(segment: Segment, fork: Segment, branch: Segment) -> bool:
    """Whether `segment` lies at most GENERATION_TOKENS below `fork`, on another path than `branch`."""
    if not 0 < segment.end - fork.end <= GENERATION_TOKENS:
        return False
    *_, first = takewhile(lambda above: above.end > fork.end, segment.up())
    return first is not branch and first.parent is fork
