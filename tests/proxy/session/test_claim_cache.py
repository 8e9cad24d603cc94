"""Which keys are honoured, and what is forgotten when."""

from __future__ import annotations

import asyncio

import pytest

from proxy.chat import Message
from proxy.errors import Refusal, RefusalError
from proxy.session import claim_cache as session
from proxy.session.claim_cache import ClaimCache, OwnerChangedError
from proxy.session.endings import Ending
from proxy.session.recovery import ClaimLog
from topics.environment.keys import KeyClaims


def key(claim_id: str, issued_at: int = 100) -> KeyClaims:
    return KeyClaims("t.0", 1, claim_id, expires_at=10_000, issued_at=issued_at, namespace="polar")


class Log:
    """The log as a proxy reads it back: which claims are over there, and how often it was asked."""

    def __init__(self, *over: str) -> None:
        self.over = over
        self.asked: list[str] = []

    async def read_back(self, key: KeyClaims, start: int) -> ClaimLog:
        self.asked.append(key.claim_id)
        await asyncio.sleep(0)
        return ClaimLog([], frozenset(), start, key.claim_id in self.over)


class Ended:
    """A call in flight that notes why it was ended."""

    def __init__(self) -> None:
        self.reasons: list[Ending] = []

    def end(self, reason: Ending) -> None:
        self.reasons.append(reason)


def claims(log: Log, follows_since: float = 50.0, owned_since: float = 0.0) -> ClaimCache:
    made = ClaimCache(log.read_back, lambda _: owned_since, lambda: 200.0)
    made.follows_since(follows_since)
    return made


async def refuses(claims: ClaimCache, key: KeyClaims) -> bool:
    try:
        await claims.get(key)
    except RefusalError as refused:
        return refused.refusal is Refusal.CLOSED
    return False


async def test_a_key_minted_since_the_start_is_honoured_without_a_look_at_the_log() -> None:
    log = Log()
    known = claims(log)
    assert await known.get(key("a")) is await known.get(key("a"))
    assert log.asked == []


async def test_an_older_key_is_looked_up_once_for_all_that_ask_together() -> None:
    log = Log("b")
    known = claims(log)
    first, second = await asyncio.gather(known.get(key("a", 10)), known.get(key("a", 10)))
    assert first is second
    assert await refuses(known, key("b", 10))
    assert await refuses(known, key("b", 10))
    assert log.asked == ["a", "b"]


async def test_before_the_start_every_key_is_old() -> None:
    log = Log()
    await ClaimCache(log.read_back, lambda _: 0.0, lambda: 200.0).get(key("a"))
    assert log.asked == ["a"]


async def test_a_close_is_known_without_a_look_at_the_log() -> None:
    log = Log("b")
    known = claims(log)
    known.close("a")
    assert known.knows_closed("a")
    assert not known.knows_closed("b")
    assert log.asked == []


async def test_closing_ends_the_calls_in_flight_and_refuses_the_next() -> None:
    known = claims(Log())
    call = Ended()
    (await known.get(key("a"))).in_flight.add(call)
    known.close("a")
    assert call.reasons == [Ending.KEY_CLOSED]
    assert await refuses(known, key("a"))
    assert not await refuses(known, key("b"))


async def test_a_close_during_the_look_up_counts() -> None:
    known = claims(Log())
    asking = asyncio.ensure_future(refuses(known, key("a", 10)))
    await asyncio.sleep(0)
    known.close("a")
    assert await asking


async def test_idle_claims_are_forgotten_and_read_back_and_busy_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "CLAIMS", 2)
    log = Log()
    known = claims(log)
    busy, idle = await known.get(key("busy")), await known.get(key("idle"))
    busy.in_flight.add(Ended())
    await known.get(key("third"))
    assert len(known) == 2
    assert await known.get(key("busy")) is busy
    assert await known.get(key("idle")) is not idle
    assert log.asked == ["idle"]


async def test_beyond_a_limit_of_bytes_other_idle_claims_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    known = claims(log)
    for claim_id in ("busy", "idle", "newer"):
        claim = await known.get(key(claim_id))
        claim.turns.add("call", b"", Message("assistant", "x" * 1000))
        if claim_id == "busy":
            claim.in_flight.add(Ended())
    monkeypatch.setattr(session, "BYTES", 2 * claim.size)
    for claim_id in ("busy", "newer"):
        await known.get(key(claim_id))
    assert len(known) == 3, "what the oldest takes wasn't known before it was asked for"
    await known.get(key("idle"))
    assert len(known) == 2
    await known.get(key("newer"))
    assert log.asked == ["newer"], "it was the one that nobody used"
    for claim_id in ("busy", "newer"):
        await known.get(key(claim_id))
    known.close("busy")
    known.close("newer")
    known.close("idle")
    assert (len(known), known.size) == (0, 0)


async def test_a_key_older_than_the_newest_forgotten_close_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "CLOSED", 1)
    log = Log("a")
    known = claims(log)
    known.close("a")
    known.close("b")
    assert await refuses(known, key("b"))
    assert await refuses(known, key("a"))
    assert log.asked == ["a"]


async def test_a_key_that_another_proxy_may_have_served_is_read_back_once() -> None:
    log = Log()
    known = claims(log, owned_since=150.0)
    assert await known.get(key("a", 100)) is await known.get(key("a", 100))
    await known.get(key("b", 200))
    assert log.asked == ["a"]


async def test_a_session_that_went_and_came_back_is_read_back_and_its_calls_in_flight_are_kept() -> None:
    log = Log()
    known = claims(log)
    busy, idle = await known.get(key("busy")), await known.get(key("idle"))
    call = Ended()
    busy.in_flight.add(call)
    known.release(lambda _: False)
    assert known.cached(key("busy")) is None
    assert await known.get(key("busy")) is busy
    assert await known.get(key("busy")) is busy
    assert log.asked == ["busy"]
    assert len(known) == 1
    assert idle is not await known.get(key("idle"))
    known.close("busy")
    assert call.reasons == [Ending.KEY_CLOSED]


async def test_a_session_of_another_owner_is_not_served() -> None:
    with pytest.raises(OwnerChangedError):
        await claims(Log(), owned_since=float("inf")).get(key("a"))


async def test_a_session_that_moves_while_it_is_read_back_is_not_served() -> None:
    log = Log()
    known = ClaimCache(log.read_back, lambda _: float("inf") if log.asked else 150.0, lambda: 200.0)
    known.follows_since(50.0)
    with pytest.raises(OwnerChangedError):
        await known.get(key("a", 100))
    assert len(known) == 0


async def test_whether_a_key_is_open_is_read_back_once_whoever_owns_its_session() -> None:
    log = Log("over")
    known = claims(log, owned_since=float("inf"))
    await known.require_open(key("new", 100))
    for _ in range(2):
        await known.require_open(key("old", 10))
        with pytest.raises(RefusalError) as refused:
            await known.require_open(key("over", 10))
        assert refused.value.refusal is Refusal.CLOSED
    assert log.asked == ["old", "over"]
    for closed in (key("new", 100), key("old", 10)):
        known.close(closed.claim_id)
        with pytest.raises(RefusalError):
            await known.require_open(closed)
