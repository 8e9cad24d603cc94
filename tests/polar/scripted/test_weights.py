"""Which weights sampled a token: each token by itself says the same as the spans."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import aiohttp
from hypothesis import example, given
from hypothesis import strategies as st

from polar.scripted.app import running
from polar.scripted.engine import Engine
from polar.scripted.faults import Slow
from polar.scripted.weights import FIRST, Weights
from tests.waiting import eventually

UPDATES = st.lists(st.tuples(st.integers(0, 20), st.sampled_from("abc")), max_size=6).map(
    lambda told: sorted(told, key=lambda one: one[0])
)


@example([(0, "a"), (5, "b"), (5, "a")], 0, 10, 10)
@given(UPDATES, st.integers(0, 20), st.integers(1, 16), st.integers(0, 12))
def test_a_token_is_of_what_was_served_when_it_was_sampled(
    updates: list[tuple[int, str]], began: int, took: int, tokens: int
) -> None:
    weights = Weights()
    for at, name in updates:
        weights.update(name, at)
    spans = weights.spans(began, began + took, tokens)

    def served(token: int) -> str:
        before = [name for at, name in updates if at * tokens <= began * tokens + token * took]
        return before[-1] if before else FIRST

    assert [span.version for span in spans for _ in range(span.start, span.end)] == [served(at) for at in range(tokens)]
    assert all(one.end == other.start and one.version != other.version for one, other in pairwise(spans))
    assert weights.name == (updates[-1][1] if updates else FIRST)


async def test_an_answer_by_tokens_tells_which_weights_sampled_it_as_does_the_record_of_any() -> None:
    engine = Engine()
    engine.faults.add(Slow(delay_s=0.5, times=2))
    async with running(engine) as url, aiohttp.ClientSession(url) as http:
        chat = {"messages": [{"role": "user", "content": "hi"}], "cache_salt": "policy-1"}
        async with http.post("/v1/chat/completions/render", json=chat) as response:
            rendered = await response.json()
        await name(http, "1")
        asked = [
            asyncio.ensure_future(ask(http, path, body))
            for path, body in (("/inference/v1/generate", rendered), ("/v1/chat/completions", chat))
        ]
        await eventually(lambda: not engine.faults.pending(), 5)
        await name(http, "2")
        generated, completed = await asyncio.gather(*asked)
    told = generated["choices"][0]["weight_versions"]
    tokens, change = len(generated["choices"][0]["token_ids"]), told[0]["end"]
    assert [(span["version"], span["start"], span["end"]) for span in told] == [("1", 0, change), ("2", change, tokens)]
    assert "weight_versions" not in completed["choices"][0], "nor does vLLM tell"
    recorded = [[span.version for span in call.weight_versions] for call in engine.record.calls()]
    assert recorded == [["1", "2"], ["1", "2"]]


async def name(http: aiohttp.ClientSession, version: str) -> None:
    """Gives the weights a name, and asks for it."""
    await ask(http, "/update_weight_version", {"new_version": version})
    async with http.get("/weight_info") as response:
        assert await response.json() == {"weight_version": version}


async def ask(http: aiohttp.ClientSession, path: str, body: Any) -> Any:
    async with http.post(path, json=body) as response:
        assert response.status == 200, await response.text()
        return await response.json()
