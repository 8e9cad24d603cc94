"""What a session may use of the model, and what a request may bring: refused in the provider's own shape, and nothing else suffers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from polar.scripted.engine import Engine as ScriptedEngine
from polar.scripted.faults import Hang, Slow, Status
from proxy.app import Proxy
from proxy.errors import Refusal, RefusalError
from proxy.request_limits import HEAD_BYTES
from proxy.session.limits import ClaimUsage, admit
from proxy.session_key import KEY_HEADER
from tests.proxy.conftest import Bench, proxied
from tests.proxy.talks import DIALECTS
from tests.waiting import eventually
from topics.environment.keys import CONCURRENT_CALLS, KeyClaims, Limits, Signer
from topics.types.completion import CallOutcome
from topics.types.tokens import count

RefusalBody = tuple[int, dict[str, Any], str | None]
Ask = Callable[..., Awaitable[RefusalBody]]


def sort_of(refusal: dict[str, Any]) -> Any:
    """Where a provider's error says what sort it is; Google's has another field."""
    return refusal["error"].get("type") or refusal["error"]["status"]


@pytest.fixture
async def ask(proxy: Proxy, http: aiohttp.ClientSession) -> Ask:
    """A request in a dialect: status, body, Retry-After."""

    async def ask(
        key: str, dialect: str = "openai_chat", *, text: str = "hi", at: Proxy = proxy, **fields: Any
    ) -> RefusalBody:
        words = DIALECTS[dialect]
        body = words.body([words.user(text)]) | fields
        async with http.post(at.url + words.path, headers={KEY_HEADER: key}, json=body) as response:
            return response.status, await response.json(), response.headers.get("Retry-After")

    return ask


def refusal(limits: Limits, spent: ClaimUsage, under_way: int, more: int = 1) -> Refusal | None:
    try:
        admit(limits, spent, under_way, more)
    except RefusalError as refused:
        return refused.refusal
    return None


@pytest.mark.parametrize(
    ("limits", "spent", "under_way", "more", "expected"),
    [
        (Limits(), ClaimUsage(10**6, 10**9), CONCURRENT_CALLS - 1, 1, None),
        (Limits(), ClaimUsage(), CONCURRENT_CALLS, 1, Refusal.OVERLOADED),
        (Limits(concurrent_calls=2), ClaimUsage(), 1, 1, None),
        (Limits(concurrent_calls=2), ClaimUsage(), 1, 2, Refusal.OVERLOADED),
        (Limits(concurrent_calls=2), ClaimUsage(), 0, 4, None),
        (Limits(calls=3), ClaimUsage(calls=2), 0, 1, None),
        (Limits(calls=3), ClaimUsage(calls=3), 0, 1, Refusal.SPENT),
        (Limits(calls=3), ClaimUsage(calls=2), 0, 2, Refusal.SPENT),
        (Limits(calls=3), ClaimUsage(calls=1), 1, 1, None),
        (Limits(calls=3), ClaimUsage(calls=1), 2, 1, Refusal.OVERLOADED),
        (Limits(tokens=100), ClaimUsage(tokens=99), 5, 1, None),
        (Limits(tokens=100), ClaimUsage(tokens=100), 0, 1, Refusal.SPENT),
    ],
)
def test_what_is_left_decides(
    limits: Limits, spent: ClaimUsage, under_way: int, more: int, expected: Refusal | None
) -> None:
    assert refusal(limits, spent, under_way, more) is expected


def test_a_key_tells_its_limits_and_an_older_one_has_none() -> None:
    signer = Signer({"k": "s" * 32})
    claims = KeyClaims(
        "t.0", 1, "c", expires_at=2**31, issued_at=0, limits=Limits(calls=5, concurrent_calls=2), namespace="polar"
    )
    assert signer.check(signer.mint(claims), 0).limits == Limits(5, None, 2)
    bare = KeyClaims("t.0", 1, "c", expires_at=2**31, issued_at=0, namespace="polar")
    assert signer.check(signer.mint(bare), 0).limits == Limits(None, None, 64)
    assert len(signer.mint(claims)) < len(signer.mint(bare)) + 80


async def test_answered_calls_are_counted_and_failed_ones_are_not(
    ask: Ask, bench: Bench, scripted: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.engines.retry.PAUSES_S", ())
    key = bench.key(limits=Limits(calls=2))
    # Of the call, and of the proxy's own request after it.
    scripted.faults.add(Status(status=500, times=2))
    assert [(await ask(key))[0] for _ in range(4)] == [502, 200, 200, 403]
    status, told, wait = await ask(key)
    assert (status, told["error"]["message"], wait) == (403, "this session has had 2 of its 2 calls", None)
    assert len(scripted.record.calls("t.0")) == 2
    assert (await ask(bench.key("t.1", "c2")))[0] == 200


async def test_sampled_tokens_are_counted(ask: Ask, bench: Bench) -> None:
    key = bench.key(limits=Limits(tokens=1))
    assert [(await ask(key))[0] for _ in range(2)] == [200, 403]
    [call] = await bench.calls(1)
    wide = bench.key("t.1", "c2", limits=Limits(tokens=count(call.sampled) + 500))
    assert [(await ask(wide))[0] for _ in range(2)] == [200, 200]


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_limits_are_told_as_the_provider_would(
    ask: Ask, bench: Bench, scripted: ScriptedEngine, dialect: str
) -> None:
    spent = bench.key(limits=Limits(calls=1))
    assert (await ask(spent, dialect))[0] == 200
    status, told, _ = await ask(spent, dialect)
    assert (status, bool(sort_of(told))) == (403, True)
    scripted.faults.add(Hang())
    busy = bench.key("t.1", "c2", limits=Limits(concurrent_calls=1))
    under_way = asyncio.ensure_future(ask(busy, dialect))
    await eventually(lambda: not scripted.faults.pending())
    status, told, wait = await ask(busy, dialect, text="ho")
    assert (status, wait, bool(sort_of(told))) == (429, "1", True)
    assert "may have 1" in told["error"]["message"]
    under_way.cancel()


async def test_who_repeats_a_request_needs_no_room_of_its_own(ask: Ask, bench: Bench, scripted: ScriptedEngine) -> None:
    scripted.faults.add(Slow(delay_s=0.5))
    key = bench.key(limits=Limits(calls=1, concurrent_calls=1))
    assert [told[0] for told in await asyncio.gather(ask(key), ask(key))] == [200, 200]
    assert (await ask(key))[0] == 403


async def test_each_choice_is_a_call(ask: Ask, bench: Bench) -> None:
    key = bench.key(limits=Limits(calls=3))
    assert [(await ask(key, n=2))[0] for _ in range(2)] == [200, 403]
    assert (await ask(key))[0] == 200


async def test_each_key_of_a_claim_has_its_own_limits_and_counts_the_calls_of_all(ask: Ask, bench: Bench) -> None:
    first, second = bench.key(limits=Limits(calls=1)), bench.key(limits=Limits(calls=3))
    assert [(await ask(first))[0] for _ in range(2)] == [200, 403]
    assert [(await ask(second))[0] for _ in range(3)] == [200, 200, 403]
    assert (await ask(first))[0] == 403


async def test_what_was_spent_is_known_to_the_next_owner(ask: Ask, bench: Bench, engine_url: str) -> None:
    lies: dict[str, Any] = await bench.open()
    key = bench.key(issued_at=int(time.time()) - 60, limits=Limits(calls=2, tokens=10_000), **lies)
    told = []
    for _ in range(3):
        async with proxied(bench, engine_url) as proxy:
            told.append((await ask(key, at=proxy))[0])
    assert told == [200, 200, 403]
    assert [call.outcome for call in await bench.calls(2)] == [CallOutcome.ANSWERED] * 2


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_head_that_is_too_large_is_told_as_the_provider_would(
    proxy: Proxy, bench: Bench, http: aiohttp.ClientSession, dialect: str
) -> None:
    words = DIALECTS[dialect]
    path, body = words.path, words.body([words.user("hi")])
    headers = {KEY_HEADER: bench.key(), "X-Long": "x" * (HEAD_BYTES // 2), "X-Longer": "y" * (HEAD_BYTES // 2)}
    async with http.post(proxy.url + path, headers=headers, json=body) as response:
        assert (response.status, bool(sort_of(await response.json()))) == (413, True)
    del headers["X-Longer"]
    async with http.post(proxy.url + path, headers=headers, json=body) as response:
        assert response.status == 200
    async with http.post(f"{proxy.url}{path}?x={'x' * HEAD_BYTES}", headers=headers, json=body) as response:
        assert response.status == 413


async def test_endless_nesting_is_told_as_the_provider_would(
    proxy: Proxy, bench: Bench, http: aiohttp.ClientSession
) -> None:
    for words in DIALECTS.values():
        for field in (b"messages", b"input", b"contents", b"tools", b"unknown"):
            for opened in (b"[", b'{"a":'):
                body = b'{"' + field + b'":' + opened * 100_000
                async with http.post(proxy.url + words.path, headers={KEY_HEADER: bench.key()}, data=body) as response:
                    assert (response.status, bool(sort_of(await response.json()))) == (400, True)
