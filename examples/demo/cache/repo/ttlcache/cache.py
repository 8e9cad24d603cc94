"""The cache itself: which entries stay, and which make room."""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable

from ttlcache.entry import Entry


class Cache:
    """At most `capacity` values, each for `ttl` seconds after it was put."""

    def __init__(self, capacity: int, ttl: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._capacity = capacity
        self._ttl = ttl
        self._clock = clock
        self._entries: OrderedDict[Hashable, Entry] = OrderedDict()
        """The least recently used comes first."""

    def get(self, key: Hashable, default: object = None) -> object:
        """The value under a key, which counts as a use; `default` where there is none, or no longer."""
        entry = self._entries.get(key)
        if entry is None or entry.is_expired(self._clock()):
            return default
        return entry.value

    def put(self, key: Hashable, value: object) -> None:
        """Keep a value. Where there is no room, what has expired goes first, then what was used least recently."""
        self._entries[key] = Entry(value, self._clock() + self._ttl)
        while len(self._entries) > self._capacity:
            self._entries.popitem(last=False)
