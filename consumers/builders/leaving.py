"""How a prompt leaves an earlier answer: which call's it was, and whether its end, a part of it or all of it is another.

Judged by token ids alone: nothing here knows a template or a tokenizer. Invariant: an answer that a prompt repeats whole was not left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from consumers.builders.place import Branch, Place
from consumers.builders.prefixes import Run
from polar.types.tokens import Ids, common_prefix, unpack_ids

GENERATION_TOKENS = 16
"""Most tokens of what a template adds to have the model answer: some write it otherwise once the answer is history (`<think>` in it)."""
TRIED = 256
"""Places of an answer where what a prompt goes on with is looked for: it is there at the first, and a bound on answers of one token."""
TOLD_APART = 4
"""Tokens of an answer's end that must stand in a prompt which left before the answer began: its end-of-turn alone tells nothing."""


@dataclass(frozen=True, slots=True)
class Left:
    """A call whose answer a prompt left, and how."""

    call: Place
    how: Branch
    """END_OF_TURN, STRIPPED or EDITED_HISTORY."""


def left_after(prompt: Run, asked: Sequence[Place]) -> Left:
    """How a prompt goes on that extends the prompt of the calls `asked`, and none of their answers."""
    top = asked[-1].prompt
    best = Left(asked[-1], Branch.EDITED_HISTORY)
    for call in reversed(asked):
        sampled = unpack_ids(call.call.sampled)
        then = _below(top, prompt, 2 * len(sampled))
        kept = common_prefix(then, sampled)
        if kept < len(then) and kept == len(sampled) - 1 > 0 and call.call.finish_reason != "length":
            return Left(call, Branch.END_OF_TURN)
        if _is_without_a_part(sampled[kept + 1 :], then[kept:]):
            best = Left(call, Branch.STRIPPED)
    return best


def left_before(prompt: Run, prompts: Mapping[Run, Sequence[Place]], top: Run | None) -> Left | None:
    """The call whose generation prompt this prompt left, and whose answer's end it has all the same; None: no such below `top`."""
    fork, own = _fork(prompt, top)
    if fork is None or own is None:
        return None
    for run in _near(fork, own):
        for call in reversed(prompts.get(run, ())):
            sampled = unpack_ids(call.call.sampled)
            then = _below(fork, prompt, GENERATION_TOKENS + len(sampled))
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


def _near(fork: Run, own: Run) -> Iterator[Run]:
    """Positions at most `GENERATION_TOKENS` below `fork`, on other paths than `own`'s."""
    waiting = [child for child in fork.children.values() if child is not own]
    while waiting:
        run = waiting.pop()
        if run.end - fork.end <= GENERATION_TOKENS:
            yield run
            waiting.extend(run.children.values())


def _below(top: Run, end: Run, most: int) -> Ids:
    """The first `most` tokens after `top` on the path to `end`."""
    parts: list[Ids] = []
    for run in end.up():
        if run is top:
            break
        parts.append(run.ids)
    return np.concatenate(parts[::-1])[:most] if parts else np.empty(0, dtype=np.int32)
