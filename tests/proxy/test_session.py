"""Which keys are honoured, and what is forgotten when."""

from __future__ import annotations

import asyncio

import pytest

from polar.keys import KeyClaims
from proxy import session
from proxy.errors import Refusal, Refused
from proxy.session import Claims, Ending


def key(claim_id: str, issued_at: int = 100) -> KeyClaims:
    return KeyClaims("t.0", 1, claim_id, expires_at=10_000, issued_at=issued_at)


class Log:
    """The log as a proxy reads it back: which claims are over there, and how often it was asked."""

    def __init__(self, *over: str) -> None:
        self.over = over
        self.asked: list[str] = []

    async def is_over(self, key: KeyClaims) -> bool:
        self.asked.append(key.claim_id)
        await asyncio.sleep(0)
        return key.claim_id in self.over


class Ended:
    """A call in flight that notes why it was ended."""

    def __init__(self) -> None:
        self.reasons: list[Ending] = []

    def end(self, reason: Ending) -> None:
        self.reasons.append(reason)


def claims(log: Log, known_from: float = 50.0) -> Claims:
    made = Claims(log.is_over)
    made.known_from(known_from)
    return made


async def refuses(claims: Claims, key: KeyClaims) -> bool:
    try:
        await claims.of(key)
    except Refused as refused:
        return refused.refusal is Refusal.CLOSED
    return False


async def test_a_key_minted_since_the_start_is_honoured_without_a_look_at_the_log() -> None:
    log = Log()
    known = claims(log)
    assert await known.of(key("a")) is await known.of(key("a"))
    assert log.asked == []


async def test_an_older_key_is_looked_up_once_for_all_that_ask_together() -> None:
    log = Log("b")
    known = claims(log)
    first, second = await asyncio.gather(known.of(key("a", 10)), known.of(key("a", 10)))
    assert first is second
    assert await refuses(known, key("b", 10))
    assert await refuses(known, key("b", 10))
    assert log.asked == ["a", "b"]


async def test_before_the_start_every_key_is_old() -> None:
    log = Log()
    await Claims(log.is_over).of(key("a"))
    assert log.asked == ["a"]


async def test_closing_ends_the_calls_in_flight_and_refuses_the_next() -> None:
    known = claims(Log())
    call = Ended()
    (await known.of(key("a"))).in_flight.add(call)
    known.close("a")
    assert call.reasons == ["closed"]
    assert await refuses(known, key("a"))
    assert not await refuses(known, key("b"))


async def test_a_close_during_the_look_up_counts() -> None:
    known = claims(Log())
    asking = asyncio.ensure_future(refuses(known, key("a", 10)))
    await asyncio.sleep(0)
    known.close("a")
    assert await asking


async def test_idle_claims_are_forgotten_and_busy_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "CLAIMS", 2)
    known = claims(Log())
    busy, idle = await known.of(key("busy")), await known.of(key("idle"))
    busy.in_flight.add(Ended())
    await known.of(key("third"))
    assert len(known) == 2
    assert await known.of(key("busy")) is busy
    assert await known.of(key("idle")) is not idle


async def test_a_key_older_than_the_newest_forgotten_close_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "CLOSED", 1)
    log = Log("a")
    known = claims(log)
    known.close("a")
    known.close("b")
    assert await refuses(known, key("b"))
    assert await refuses(known, key("a"))
    assert log.asked == ["a"]
