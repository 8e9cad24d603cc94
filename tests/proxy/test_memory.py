"""What a proxy is done with is gone at once: no cycles that would wait for Python's collector, which looks seldom here (`proxy/run.py`)."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Iterator

import aiohttp
import pytest

from proxy.app import Proxy
from tests.proxy.conftest import Bench, eventually

SESSIONS = 3
TURNS = 4
OURS = ("proxy.", "topics.", "polar.types.")


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Nothing is collected until the test does it, and then it is kept to be looked at."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def test_calls_and_sessions_that_end_leave_no_cycles(
    proxy: Proxy, bench: Bench, http: aiohttp.ClientSession, uncollected: None
) -> None:
    for number in range(SESSIONS):
        session, claim = f"t.{number}", f"c{number}"
        await ask(proxy, http, bench.key(session, claim))
        await bench.close_key(session, claim)
    await eventually(lambda: not len(proxy._claims))
    await asyncio.sleep(0)  # callbacks of the last task
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    left = Counter(f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.garbage)
    assert not {name: count for name, count in left.items() if name.startswith(OURS)}


async def ask(proxy: Proxy, http: aiohttp.ClientSession, key: str) -> None:
    """A conversation of some turns."""
    messages = [{"role": "user", "content": "hi"}]
    for _ in range(TURNS):
        body = {"model": "m", "messages": messages, "max_tokens": 20}
        headers = {"Authorization": f"Bearer {key}"}
        async with http.post(f"{proxy.url}/v1/chat/completions", json=body, headers=headers) as response:
            assert response.status == 200
            told = await response.json()
        messages += [told["choices"][0]["message"], {"role": "user", "content": "go on"}]
