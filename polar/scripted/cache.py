"""Which part of a prompt an engine with a prefix cache would not compute again: what earlier calls of the session, with the same salt,
left there.

Told in the usage and nowhere else; calls that are under way at the same time don't see each other's.
"""

from __future__ import annotations  # `array[int]` is no expression before Python 3.12

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

BLOCK: Final = 16
"""Tokens; only whole blocks are found again, as with vLLM."""
REMEMBERED_TOKENS: Final = 4_000_000
"""Of all sessions, 16 MB; those asked for longest ago are forgotten."""
BRANCHES: Final = 8
"""Of one session: its conversation, its sub-agents'."""


Tokens = npt.NDArray[np.int32]
Whose = tuple[str | None, str | None]
"""A session, and the `cache_salt` of its call."""


class PrefixCache:
    """Tokens that were computed, by session and salt."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[Whose, list[Tokens]] = OrderedDict()
        self._held = 0

    def hit(self, session: Whose, prompt: array[int]) -> int:
        """The tokens of a prompt that are there already: never all, since the last one must be computed to go on."""
        tokens = np.frombuffer(prompt, np.int32)
        shared = max((_shared(tokens, known) for known in self._sessions.get(session, ())), default=0)
        return min(shared, len(tokens) - 1) // BLOCK * BLOCK

    def keep(self, session: Whose, prompt: array[int], sampled: Sequence[int]) -> None:
        """Remembers a prompt and what was sampled after it."""
        kept = np.concatenate([np.frombuffer(prompt, np.int32), np.array(sampled, np.int32)])
        known = self._sessions.setdefault(session, [])
        self._sessions.move_to_end(session)
        branches = [each for each in known if _shared(kept, each) < len(each)][1 - BRANCHES :]
        self._held += sum(map(len, branches)) + len(kept) - sum(map(len, known))
        known[:] = [*branches, kept]
        while self._held > REMEMBERED_TOKENS:
            _, forgotten = self._sessions.popitem(last=False)
            self._held -= sum(map(len, forgotten))


def _shared(one: Tokens, other: Tokens) -> int:
    """How many tokens two sequences begin with alike."""
    length = min(len(one), len(other))
    differs = one[:length] != other[:length]
    return int(differs.argmax()) if differs.any() else length
