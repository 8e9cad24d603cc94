from clock import Clock
from ttlcache import Cache


def test_a_full_cache_forgets_what_was_put_first() -> None:
    clock = Clock()
    cache = Cache(capacity=2, ttl=10, clock=clock)
    for key in "abc":
        cache.put(key, key.upper())
    assert [cache.get(key) for key in "abc"] == [None, "B", "C"]


def test_what_was_read_lately_stays() -> None:
    clock = Clock()
    cache = Cache(capacity=2, ttl=10, clock=clock)
    cache.put("a", 1)
    cache.put("b", 2)
    cache.get("a")
    cache.put("c", 3)
    assert (cache.get("a"), cache.get("b")) == (1, None)


def test_what_was_put_again_counts_as_used() -> None:
    clock = Clock()
    cache = Cache(capacity=2, ttl=10, clock=clock)
    cache.put("a", 1)
    cache.put("b", 2)
    cache.put("a", 3)
    cache.put("c", 4)
    assert (cache.get("a"), cache.get("b")) == (3, None)


def test_what_has_expired_makes_room_before_what_lives() -> None:
    clock = Clock()
    cache = Cache(capacity=2, ttl=10, clock=clock)
    cache.put("a", 1)
    clock.now = 5
    cache.put("b", 2)
    cache.get("a")
    clock.now = 12
    cache.put("c", 3)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (None, 2, 3)
