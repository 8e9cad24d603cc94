from clock import Clock
from ttlcache import Cache


def test_a_value_is_there_until_its_time_has_come() -> None:
    clock = Clock()
    cache = Cache(capacity=2, ttl=10, clock=clock)
    cache.put("a", 1)
    clock.now = 9.9
    assert cache.get("a") == 1


def test_a_value_is_gone_when_its_time_has_come() -> None:
    clock = Clock()
    cache = Cache(capacity=2, ttl=10, clock=clock)
    cache.put("a", 1)
    clock.now = 10
    assert cache.get("a", "gone") == "gone"


def test_putting_a_value_again_gives_it_new_time() -> None:
    clock = Clock()
    cache = Cache(capacity=2, ttl=10, clock=clock)
    cache.put("a", 1)
    clock.now = 6
    cache.put("a", 2)
    clock.now = 12
    assert cache.get("a") == 2
