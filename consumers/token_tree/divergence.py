"""How a prompt leaves an earlier answer: which call's it was, and whether its end, a part of it or all of it is another.

Judged by token ids alone: nothing here knows a template or a tokenizer. Invariant: an answer that a prompt repeats whole was not left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice, takewhile

import numpy as np

from consumers.token_tree.branches import Branch, Left, Place
from consumers.token_tree.prefixes import Run
from topics.types.tokens import WIDTH, Ids, common_prefix, unpack_ids

GENERATION_TOKENS = 16
"""Most tokens of what a template adds to have the model answer: some write it otherwise once the answer is history (`<think>` in it)."""
TRIED = 256
"""Places of an answer where what a prompt goes on with is looked for: it is there at the first, and a bound on answers of one token."""
TOLD_APART = 4
"""Tokens of an answer's end that must stand in a prompt which left before the answer began: its end-of-turn alone tells nothing."""
END_BYTES = TOLD_APART * WIDTH
ALIKE = 256
"""Answers of one end that are looked at, the newest: tool calls end alike."""
COMPARED = 16
"""Of these, answers that a prompt could have left and that are compared with it, the newest."""


def left_after(prompt: Run, asked: Sequence[Place]) -> Left:
    """How a prompt goes on that extends the prompt of the calls `asked`, and none of their answers."""
    below = _below(asked[-1].prompt, prompt)
    best, longest = Left(asked[-1], Branch.EDITED_HISTORY), 0
    for call in reversed(asked):
        sampled = unpack_ids(call.call.sampled)
        then = below[: 2 * len(sampled)]
        kept = common_prefix(then, sampled)
        # Of several the one that the prompt has most of, and of these the last, which is what a harness that asks again uses.
        if kept < len(then) and kept == len(sampled) - 1 > longest and call.call.finish_reason != "length":
            best, longest = Left(call, Branch.END_OF_TURN), kept
        elif best.how is Branch.EDITED_HISTORY and _is_without_a_part(sampled[kept + 1 :], then[kept:]):
            best = Left(call, Branch.STRIPPED)
    return best


def end_of(call: Place) -> bytes:
    """The last `TOLD_APART` tokens of its answer, by which `left_before` finds it; all of a shorter one, which it never finds."""
    return call.call.sampled[-END_BYTES:]


def left_before(prompt: Run, ends: Mapping[bytes, Sequence[Place]], top: Run | None) -> Left | None:
    """The call whose generation prompt this prompt left, and whose answer's end it has all the same; None: no such below `top`.

    `ends`: the calls before, by `end_of`, so that time is linear in the tokens that the prompt has to itself.
    """
    fork, own = _fork(prompt, top)
    if fork is None or own is None:
        return None
    below = _below(fork, prompt)
    data = below.tobytes()
    read = {data[at : at + END_BYTES] for at in range(0, len(data) - END_BYTES + 1, WIDTH)}
    found = {call for end in read & ends.keys() for call in ends[end][-ALIKE:] if _is_near(call.prompt, fork, own)}
    for call in sorted(found, key=lambda call: call.index, reverse=True)[:COMPARED]:
        sampled = unpack_ids(call.call.sampled)
        then = below[: GENERATION_TOKENS + len(sampled)]
        starts = range(min(GENERATION_TOKENS, len(then)))
        if any(_is_without_a_part(sampled, then[start:], TOLD_APART) for start in starts):
            return Left(call, Branch.STRIPPED)
    return None


def _is_without_a_part(rest: Ids, then: Ids, least: int = 1) -> bool:
    """Whether `then` begins with the end of `rest`, `least` tokens of it or more."""
    if not len(then):
        return False
    starts = np.flatnonzero(rest[: len(rest) - least + 1] == then[0])
    return any(common_prefix(rest[at:], then) == len(rest) - at for at in islice(starts.tolist(), TRIED))


def _fork(prompt: Run, top: Run | None) -> tuple[Run | None, Run | None]:
    """The deepest position above `prompt` and below `top` from which another path goes on, and the next one of this path."""
    own = None
    for run in prompt.up():
        if run is top:
            break
        if own is not None and len(run.children) > 1:
            return run, own
        own = run
    return None, None


def _is_near(run: Run, fork: Run, own: Run) -> bool:
    """Whether it is a position at most `GENERATION_TOKENS` below `fork`, on another path than `own`'s."""
    if not 0 < run.end - fork.end <= GENERATION_TOKENS:
        return False
    *_, first = takewhile(lambda above: above.end > fork.end, run.up())
    return first is not own and first.parent is fork


def _below(top: Run, end: Run) -> Ids:
    """The tokens after `top` on the path to `end`."""
    parts: list[Ids] = []
    for run in end.up():
        if run is top:
            break
        parts.append(run.ids)
    return np.concatenate(parts[::-1]) if parts else np.empty(0, dtype=np.int32)
