"""Computes how many tokens of a prompt a prefix cache would contain: those of earlier calls of the session with the same salt.

The number is only reported in `usage`. Concurrent calls don't see each other's tokens.
"""

from __future__ import annotations  # `array[int]` is no expression before Python 3.12

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import numpy as np

from topics.types.tokens import Ids, common_prefix

BLOCK: Final = 16
"""Tokens; as in vLLM, only complete blocks are cached."""
REMEMBERED_TOKENS: Final = 4_000_000
"""Of all sessions, 16 MB; the least recently used sessions are dropped."""
BRANCHES: Final = 8
"""Per session: its conversation and those of sub-agents."""

CacheKey = tuple[str | None, str | None]
"""A session and the `cache_salt` of its call."""


class PrefixCache:
    """Cached tokens by session and salt."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[CacheKey, list[Ids]] = OrderedDict()
        self._size = 0

    def hit(self, session: CacheKey, prompt: array[int]) -> int:
        """The number of a prompt's tokens in the cache; never all, since an engine must compute the last one."""
        tokens = np.frombuffer(prompt, np.int32)
        shared = max((common_prefix(tokens, known) for known in self._sessions.get(session, ())), default=0)
        return min(shared, len(tokens) - 1) // BLOCK * BLOCK

    def keep(self, session: CacheKey, prompt: array[int], sampled: Sequence[int]) -> None:
        """Add a prompt and the tokens sampled after it."""
        kept = np.concatenate([np.frombuffer(prompt, np.int32), np.array(sampled, np.int32)])
        known = self._sessions.setdefault(session, [])
        self._sessions.move_to_end(session)
        branches = [each for each in known if common_prefix(kept, each) < len(each)][1 - BRANCHES :]
        self._size += sum(map(len, branches)) + len(kept) - sum(map(len, known))
        known[:] = [*branches, kept]
        while self._size > REMEMBERED_TOKENS:
            _, forgotten = self._sessions.popitem(last=False)
            self._size -= sum(map(len, forgotten))
