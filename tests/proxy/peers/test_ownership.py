"""Who lives, by the log alone, and who owns what: the same at every proxy, and nobody's that nobody need give."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from proxy.peers.ownership import LAG_S, LiveSet, Ownership
from topics.log import kafka
from topics.log.liveness import GAP_MS, LEASE_MS
from topics.workers import Heartbeat, Probe, Sign

SESSIONS = [f"t{n}.0" for n in range(200)]
START_MS = 1_000_000


def beat(worker_id: str, address: str | None = None, *, role: str = "proxy", leaving: bool = False) -> Heartbeat:
    return Heartbeat(worker_id, role, "host", 1, address=address or f"http://{worker_id}", leaving=leaving)


@dataclass
class At:
    """A record's envelope, as far as it is looked at."""

    timestamp: int
    topic: str = "workers"
    partition: int = 0
    offset: int = 0
    key: bytes | None = None
    value: bytes | None = None
    headers: kafka.Headers = ()


class Log:
    """What `polar.workers` holds, and who has read it."""

    def __init__(self, *readers: Ownership) -> None:
        self.readers = readers
        self.now = START_MS
        self.offset = -1

    def write(self, sign: Sign) -> None:
        self.offset += 1
        for reader in self.readers:
            reader.on_sign(sign, At(self.now, offset=self.offset))

    def pass_s(self, seconds: float, *beating: str) -> None:
        """Time in which these beat every 2 s, and a coordinator probes every second."""
        for second in range(1, int(seconds) + 1):
            self.now += 1000
            self.write(Probe("coordinator"))
            for worker_id in beating if second % 2 == 0 else ():
                self.write(beat(worker_id))


def names(owned: Ownership) -> set[str]:
    return set(owned.peers)


def test_a_proxy_is_live_while_it_beats_and_for_six_seconds_after() -> None:
    owned = Ownership("a", lambda: 0.0)
    log = Log(owned)
    log.write(beat("a"))
    log.write(beat("b"))
    log.pass_s(LEASE_MS / 1000, "a")
    assert names(owned) == {"a", "b"}
    log.pass_s(1, "a")
    assert names(owned) == {"a"}


def test_workers_and_proxies_that_do_not_serve_yet_own_nothing() -> None:
    live = LiveSet()
    live.apply(beat("w", role="worker"), 0)
    live.apply(Heartbeat("p", "proxy", "host", 1), 0)
    assert live.owners == {}


def test_an_outage_of_kafka_empties_nothing() -> None:
    owned = Ownership("a", lambda: 0.0)
    log = Log(owned)
    log.write(beat("a"))
    log.write(beat("b"))
    log.now += 60_000
    log.write(beat("a"))
    log.pass_s(LEASE_MS / 1000, "a")
    assert names(owned) == {"a", "b"}
    log.pass_s(1, "a")
    assert names(owned) == {"a"}


def test_a_proxy_alone_lives_by_its_own_heartbeats() -> None:
    """They are never further apart than the gap that counts as an outage, and whatever they are, its own lease is the newest."""
    owned = Ownership("a", lambda: 0.0)
    log = Log(owned)
    for gap_ms in (0, 2_000, GAP_MS, GAP_MS + 1, 60_000):
        log.now += gap_ms
        log.write(beat("a"))
        assert names(owned) == {"a"}


def test_who_leaves_owns_nothing_and_keeps_its_lease_for_the_calls_under_way() -> None:
    owned = Ownership("a", lambda: 0.0)
    log = Log(owned)
    log.write(beat("a"))
    log.write(beat("b"))
    leaving = owned.peers["b"]
    log.write(beat("b", leaving=True))
    assert names(owned) == {"a"}
    assert not owned.is_lost(leaving)
    change = owned.next_change()
    log.pass_s(8, "a")
    assert owned.is_lost(leaving)
    assert change.is_set()


def test_who_leaves_knows_it_before_the_log_does() -> None:
    owned = Ownership("a", lambda: 0.0)
    log = Log(owned)
    log.write(beat("a"))
    assert owned.is_mine("t.0")
    owned.leave()
    assert owned.owner_of("t.0") is None
    log.write(beat("a"))
    assert owned.owner_of("t.0") is None


def test_who_takes_over_an_address_supersedes_who_had_it() -> None:
    owned = Ownership("b", lambda: 0.0)
    log = Log(owned)
    log.write(beat("a", "http://here"))
    log.write(beat("b", "http://here"))
    assert names(owned) == {"b"}
    log.write(beat("a", "http://here"))
    assert names(owned) == {"b"}


def test_a_proxy_whose_address_a_lost_one_took_is_live_again() -> None:
    """As after rubbish, or after a proxy that advertised another's address by mistake."""
    owned = Ownership("a", lambda: 0.0)
    log = Log(owned)
    for worker_id in ("a", "stranger", "second stranger"):
        log.write(beat(worker_id, "http://a"))
    log.pass_s(4, "a")
    assert names(owned) == {"second stranger"}
    log.pass_s(LEASE_MS / 1000, "a")
    assert names(owned) == {"a"}


def test_a_session_is_ours_since_its_last_owner_went_and_may_still_act_on_what_it_knew() -> None:
    a, b = Ownership("a", lambda: 0.0), Ownership("b", lambda: 0.0)
    log = Log(a, b)
    log.write(beat("a"))
    started = log.now / 1000
    assert {a.since(session) for session in SESSIONS} == {started}
    log.pass_s(4, "a")
    log.write(beat("b"))
    joined = log.now / 1000
    for session in SESSIONS:
        mine, other = (a, b) if a.is_mine(session) else (b, a)
        assert mine.since(session) == (started if mine is a else joined + LAG_S)
        assert other.since(session) == float("inf")
    log.pass_s(8, "a")
    left = log.now / 1000 - 1
    for session in SESSIONS:
        assert a.since(session) in (started, left + LAG_S)
        assert (a.since(session) == started) == (b.since(session) == float("inf")) or not b.lives


def test_a_session_that_went_and_came_back_is_ours_since_then() -> None:
    a = Ownership("a", lambda: 0.0)
    log = Log(a)
    log.write(beat("a"))
    log.write(beat("b"))
    moved = next(session for session in SESSIONS if not a.is_mine(session))
    kept = next(session for session in SESSIONS if a.is_mine(session))
    log.pass_s(2, "a", "b")
    log.write(beat("b", leaving=True))
    assert a.since(moved) == log.now / 1000 + LAG_S
    assert a.since(kept) == START_MS / 1000


async def test_who_is_behind_waits_for_what_another_acts_on() -> None:
    ahead, behind = Ownership("a", lambda: 0.0), Ownership("b", lambda: 0.0)
    log = Log(ahead)
    log.write(beat("a"))
    log.write(beat("b"))
    waiting = asyncio.ensure_future(behind.caught_up(ahead.as_of))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    log.readers, log.offset = (behind,), -1
    log.write(beat("a"))
    log.write(beat("b"))
    await waiting
    assert behind.lives
    await behind.caught_up(-1)


SIGNS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]), st.booleans(), st.sampled_from([0, 500, 2_000, 3_500, 7_000]), st.booleans()
    ),
    max_size=40,
)


@given(SIGNS)
def test_proxies_that_have_read_as_far_agree_and_each_session_has_one_owner(
    signs: list[tuple[str, bool, int, bool]],
) -> None:
    views = {name: Ownership(name, lambda: 0.0) for name in "abc"}
    log = Log(*views.values())
    for name, leaving, gap_ms, is_probe in signs:
        log.now += gap_ms
        log.write(Probe(name) if is_probe else beat(name, leaving=leaving))
        for session in SESSIONS[:20]:
            owners = {view.owner_of(session) for view in views.values()}
            assert len(owners) == 1
            mine = [name for name, view in views.items() if view.is_mine(session)]
            assert mine == [owner.worker_id for owner in owners if owner is not None]


@given(st.lists(st.sets(st.sampled_from("abcd"), min_size=1), min_size=2, max_size=8))
def test_a_change_moves_only_the_sessions_of_who_came_or_went(sets: list[set[str]]) -> None:
    def owners(live: set[str]) -> dict[str, str]:
        owned = Ownership("a", lambda: 0.0)
        log = Log(owned)
        for name in live:
            log.write(beat(name))
        return {session: peer.worker_id for session in SESSIONS if (peer := owned.owner_of(session))}

    for before, after in pairwise(sets):
        then, now = owners(before), owners(after)
        for session in SESSIONS:
            assert then[session] == now[session] or then[session] not in after or now[session] not in before


def test_a_brokers_clock_that_is_put_back_keeps_no_lost_proxy_alive() -> None:
    owned = Ownership("a", lambda: 0.0)
    log = Log(owned)
    log.write(beat("a"))
    log.write(beat("b"))
    log.now -= 3_600_000
    log.pass_s(LEASE_MS / 1000, "a")
    assert names(owned) == {"a", "b"}
    log.pass_s(2, "a")  # the second in which it was put back counts for nothing
    assert names(owned) == {"a"}


def test_a_session_is_ours_since_no_earlier_than_our_own_clock_says_if_the_broker_s_is_behind() -> None:
    a = Ownership("a", lambda: START_MS / 1000 + 3600)
    log = Log(a)
    log.write(beat("a"))
    assert {a.since(session) for session in SESSIONS} == {START_MS / 1000 + 3600}


def test_now_is_no_earlier_than_the_broker_s_time_if_our_own_clock_is_behind() -> None:
    a = Ownership("a", lambda: START_MS / 1000 - 3600)
    log = Log(a)
    log.write(beat("a"))
    assert START_MS / 1000 <= a.now() < START_MS / 1000 + 1
