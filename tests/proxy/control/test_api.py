"""The control API as its clients see it. The coordinator's part is played by the test, on a real Kafka."""

from __future__ import annotations

import asyncio
import io
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import msgspec
import pytest

from polar.scripted.engine import Engine as ScriptedEngine
from proxy.app import Proxy
from proxy.control import opening
from proxy.control.port import token_in
from tests.proxy.conftest import Bench, proxied
from tests.waiting import eventually
from topics import control, events
from topics.control import CloseKey, Control, Grant, Revoke
from topics.environment.keys import Limits
from topics.environment.settings import Settings
from topics.events import CancelRequested, Fact, SessionCloseRequested, SessionOpenRequested, SessionOpenWithdrawn
from topics.log.follow import Follower, Since
from topics.log.producer import LogProducer
from topics.types.errors import InputError

TOKEN = "the-control-token"
T = TypeVar("T", bound=Fact)


@dataclass
class Coordinator:
    """Sees all facts, and answers as it is told."""

    log: LogProducer
    facts: list[Fact] = field(default_factory=list)

    async def fact(self, kind: type[T], nth: int = 0) -> T:
        await eventually(lambda: len(self._of(kind)) > nth)
        return self._of(kind)[nth]

    def _of(self, kind: type[T]) -> list[T]:
        return [fact for fact in self.facts if isinstance(fact, kind)]

    async def say(self, *records: Control) -> None:
        for record in records:
            await self.log.send(control.TOPIC, record, key="any")


@dataclass
class Client:
    """Someone who has the token."""

    http: aiohttp.ClientSession
    url: str

    async def post(self, path: str, body: object = None, *, token: str | None = TOKEN) -> tuple[int, dict[str, Any]]:
        raw = body if isinstance(body, bytes) else msgspec.json.encode(body) if body is not None else b""
        data = io.BytesIO(raw) if raw else None
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        async with self.http.post(self.url + path, data=data, headers=headers) as answer:
            assert answer.content_type == "application/json"
            return answer.status, await answer.json()

    def later(self, path: str, body: object = None) -> asyncio.Task[tuple[int, dict[str, Any]]]:
        return asyncio.create_task(self.post(path, body))


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds become tenths."""
    monkeypatch.setattr(opening, "ANSWER_S", 1.5)
    monkeypatch.setattr(opening, "ASK_AGAIN_S", 0.3)
    monkeypatch.setattr(opening, "CLOSED_S", 0.5)


@pytest.fixture
async def proxy(bench: Bench, engine_url: str, tmp_path: Path) -> AsyncIterator[Proxy]:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    bench.settings = Settings(**bench.settings.model_dump() | {"control_token_file": tmp_path / "token"})
    async with proxied(bench, engine_url) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: Proxy, http: aiohttp.ClientSession) -> Client:
    return Client(http, proxy.control_url)


@asynccontextmanager
async def coordinating(settings: Settings) -> AsyncIterator[Coordinator]:
    coordinator = Coordinator(LogProducer(settings))
    follower = Follower(settings, events.TOPIC, lambda fact, _: coordinator.facts.append(fact), since=Since.BEGINNING)
    await coordinator.log.start()
    try:
        await follower.start()
        yield coordinator
    finally:
        await follower.stop()
        await coordinator.log.stop(1.0)


@pytest.fixture
async def coordinator(bench: Bench, proxy: Proxy) -> AsyncIterator[Coordinator]:
    async with coordinating(bench.settings) as coordinator:
        yield coordinator


async def test_an_open_is_a_fact_and_its_grant_becomes_a_key(
    client: Client, coordinator: Coordinator, bench: Bench, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    asking = client.later(
        "/v1/sessions",
        {
            "task_id": "t",
            "ttl_s": 90,
            "num_samples": 3,
            "mode": "eval",
            "run": "night",
            "label": "a é",
            "limits": {"calls": 5},
        },
    )
    fact = await coordinator.fact(SessionOpenRequested)
    assert (fact.task_id, fact.ttl_ms, fact.num_samples, fact.mode, fact.run) == ("t", 90_000, 3, "eval", "night")
    assert fact.label == "a é"
    await coordinator.say(Grant("t.1", 1, "another's"), Grant("t.0", 1, fact.claim_id, 2, 17))
    status, told = await asking
    assert (status, told["session_id"]) == (201, "t.0")
    left = datetime.fromisoformat(told["expires_at"]) - datetime.now(UTC)
    assert timedelta(seconds=80) < left <= timedelta(seconds=90)
    key = bench.signer.check(told["key"], 0)
    assert (key.session_id, key.attempt, key.claim_id, key.mode, key.sampling) == ("t.0", 1, fact.claim_id, "eval", {})
    assert (key.log_partition, key.log_offset, key.limits) == (2, 17, Limits(calls=5))
    assert told["env"] == {
        "OPENAI_BASE_URL": f"{proxy.url}/v1",
        "OPENAI_API_KEY": told["key"],
        "ANTHROPIC_BASE_URL": proxy.url,
        "ANTHROPIC_API_KEY": told["key"],
        "GOOGLE_GEMINI_BASE_URL": proxy.url,
        "GEMINI_API_KEY": told["key"],
    }
    assert told["key"] not in caplog.text


async def test_without_a_body_a_task_of_one_training_session_is_opened_for_an_hour(
    client: Client, coordinator: Coordinator, bench: Bench
) -> None:
    asking = client.later("/v1/sessions")
    fact = await coordinator.fact(SessionOpenRequested)
    assert (fact.ttl_ms, fact.num_samples, fact.mode) == (3_600_000, None, "train")
    await coordinator.say(Grant(f"{fact.task_id}.0", 1, fact.claim_id, 0, 0))
    _, told = await asking
    key = bench.signer.check(told["key"], 0)
    assert (key.mode, key.sampling["temperature"], key.sampling["top_k"]) == ("train", 1, -1)


async def test_an_open_is_asked_again_unchanged_until_it_is_answered(
    client: Client, coordinator: Coordinator, patience: None
) -> None:
    asking = client.later("/v1/sessions", {"task_id": "t"})
    first, second = await coordinator.fact(SessionOpenRequested), await coordinator.fact(SessionOpenRequested, 1)
    assert first == second
    await coordinator.say(Grant("t.0", 1, first.claim_id, 0, 0))
    assert (await asking)[0] == 201


async def test_a_refused_open_says_why(client: Client, coordinator: Coordinator) -> None:
    for nth, reason in enumerate(("submitted", "taken", "samples", "mode", "cancelled", "ended", "a newer reason")):
        asking = client.later("/v1/sessions", {"task_id": "t"})
        fact = await coordinator.fact(SessionOpenRequested, nth)
        await coordinator.say(Revoke("t", fact.claim_id, reason))
        status, told = await asking
        assert (status, told["error"]["code"]) == (409, reason)
        assert "{" not in told["error"]["message"]


async def test_an_open_that_nobody_answers_is_withdrawn_and_says_so(
    client: Client, coordinator: Coordinator, patience: None
) -> None:
    status, told = await client.post("/v1/sessions", {"task_id": "t"})
    assert (status, told["error"]["code"]) == (503, "unanswered")
    assert "no coordinator answers" in told["error"]["message"]
    asked = await coordinator.fact(SessionOpenRequested)
    assert (await coordinator.fact(SessionOpenWithdrawn)).claim_id == asked.claim_id


async def test_of_a_client_that_hangs_up_the_task_made_for_it_is_cancelled(
    client: Client, coordinator: Coordinator
) -> None:
    asking = client.later("/v1/sessions")
    fact = await coordinator.fact(SessionOpenRequested)
    asking.cancel()
    cancelled = await coordinator.fact(CancelRequested)
    assert (cancelled.task_id, cancelled.session_id) == (fact.task_id, None)


async def test_of_closes_at_once_each_gets_the_answer_of_its_own(client: Client, coordinator: Coordinator) -> None:
    """The key's end alone would tell both, and one's reward was lost."""
    asking = [client.later("/v1/sessions/t.0/close", {"reward": reward}) for reward in (0.5, 0.75)]
    first, second = await coordinator.fact(SessionCloseRequested), await coordinator.fact(SessionCloseRequested, 1)
    assert (first.session_id, {first.reward, second.reward}) == ("t.0", {0.5, 0.75})
    await coordinator.say(
        CloseKey("t.0", "o-1"), Revoke("t.0", first.fact_id, "ended"), Grant("t.0", 1, second.fact_id)
    )
    answers = {(await one)[0] for one in asking}
    assert answers == {202, 409}


async def test_a_close_that_is_on_the_log_is_accepted_though_nobody_answers(
    client: Client, coordinator: Coordinator, patience: None
) -> None:
    assert (await client.post("/v1/sessions/t.0/close"))[0] == 202
    assert (await coordinator.fact(SessionCloseRequested)).reward is None
    assert (await client.post("/v1/sessions/t.0/close", {"reward": 1, "force": True}))[0] == 202
    assert (await coordinator.fact(SessionCloseRequested, 1)).is_forced


async def test_a_close_of_what_is_not_open_says_why(client: Client, coordinator: Coordinator) -> None:
    reasons = {"unknown": 404, "submitted": 409, "unopened": 409, "ended": 409}
    for nth, (reason, expected) in enumerate(reasons.items()):
        asking = client.later("/v1/sessions/t.0/close")
        fact = await coordinator.fact(SessionCloseRequested, nth)
        await coordinator.say(Revoke("t.0", fact.fact_id, reason))
        status, told = await asking
        assert (status, told["error"]["code"]) == (expected, reason)
        assert "t.0" in told["error"]["message"]


async def test_tokens_become_text_by_the_engines_own_tokenizer(client: Client, scripted: ScriptedEngine) -> None:
    texts = ["", "def f(x):", "naïve ☃"]
    ids = [scripted.tokenizer.encode(text).tolist() for text in texts]
    assert await client.post("/v1/detokenize", {"token_ids": ids}) == (200, {"texts": texts})
    status, told = await client.post("/v1/detokenize", {"token_ids": [[1], [10**6]]})
    assert (status, told["error"]["field"]) == (400, "token_ids"), "the engine has no such token"


BAD: list[tuple[str, object, str | None]] = [
    ("/v1/sessions", b"{", None),
    ("/v1/sessions", b"\xff", None),
    ("/v1/sessions", b"[" * 60_000, None),
    ("/v1/sessions", [], None),
    ("/v1/sessions", {"task_id": "a b"}, "task_id"),
    ("/v1/sessions", {"task_id": 7}, "task_id"),
    ("/v1/sessions", {"ttl_s": 0}, "ttl_s"),
    ("/v1/sessions", {"ttl_s": 86_401}, "ttl_s"),
    ("/v1/sessions", {"ttl_s": "1h"}, "ttl_s"),
    ("/v1/sessions", b'{"ttl_s": NaN}', "ttl_s"),
    ("/v1/sessions", {"num_samples": 0}, "num_samples"),
    ("/v1/sessions", {"num_samples": 1025}, "num_samples"),
    ("/v1/sessions", {"mode": "test"}, "mode"),
    ("/v1/sessions", {"limits": {"calls": 0}}, "limits.calls"),
    ("/v1/sessions", {"tll_s": 5}, "tll_s"),
    ("/v1/sessions/t/close", {}, "session_id"),
    ("/v1/sessions/t.0x/close", {}, "session_id"),
    ("/v1/sessions/t.0/close", {"reward": "1"}, "reward"),
    ("/v1/sessions/t.0/close", {"reward": True}, "reward"),
    ("/v1/sessions/t.0/close", b'{"reward": Infinity}', "reward"),
    ("/v1/sessions/t.0/close", b'{"reward": 1e999}', "reward"),
    ("/v1/detokenize", {}, "token_ids"),
    ("/v1/detokenize", {"token_ids": [1]}, "token_ids.0"),
    ("/v1/detokenize", {"token_ids": [[-1]]}, "token_ids.0.0"),
    ("/v1/detokenize", {"token_ids": [[1, 2**31]]}, "token_ids.0.1"),
]


async def test_what_is_no_request_is_told_with_its_field_and_stops_nothing(client: Client) -> None:
    for path, body, at in BAD:
        status, told = await client.post(path, body)
        assert (status, told["error"].get("field")) == (400, at), (path, body, told)
        assert told["error"]["message"]
    assert (await client.post("/v1/sessions", b" " * (9 * 2**20)))[0] == 413
    assert (await client.post("/v1/nosuch"))[0] == 404
    async with client.http.get(client.url + "/v1/sessions") as answer:
        assert (answer.status, (await answer.json())["error"]["code"]) == (405, "method_not_allowed")
    async with client.http.get(client.url + "/readyz") as answer:
        assert answer.status == 200


async def test_a_body_of_millions_of_wrong_things_ends_at_the_first(client: Client) -> None:
    began = time.process_time()
    for path, body, status, at in (
        ("/v1/detokenize", b'{"token_ids": [[' + b"-1," * 2_500_000 + b"1]]}", 400, "token_ids.0.0"),
        ("/v1/detokenize", b'{"token_ids": [' + b"1," * 3_500_000 + b"1]}", 400, "token_ids.0"),
        ("/v1/detokenize", b'{"token_ids": [' + b"[]," * 70_000 + b"[]]}", 400, "token_ids"),
        ("/v1/sessions", b'{"x": ' + b"1" * 70_000 + b"}", 413, None),
        ("/v1/sessions/t.0/close", b" " * 70_000, 413, None),
    ):
        answered, told = await client.post(path, body)
        assert (answered, told["error"].get("field")) == (status, at), path
    assert time.process_time() - began < 5, "no other request is served meanwhile"


async def test_the_api_is_behind_the_token(client: Client) -> None:
    for path in ("/v1/sessions", "/v1/sessions/t.0/close", "/v1/detokenize"):
        for token in (None, "", "wrong", "naïve"):
            status, told = await client.post(path, {}, token=token)
            assert (status, told["error"]["code"]) == (401, "unauthenticated")


async def test_a_proxy_without_a_token_opens_nothing(
    bench: Bench, engine_url: str, http: aiohttp.ClientSession
) -> None:
    async with proxied(bench, engine_url) as proxy:
        status, told = await Client(http, proxy.control_url).post("/v1/sessions")
    assert (status, told["error"]["code"]) == (503, "no_token")


@pytest.mark.parametrize("written", [b"", b" \n", b"\xff"], ids=["empty", "blank", "no text"])
def test_a_file_without_a_token_lets_nobody_in(tmp_path: Path, written: bytes) -> None:
    (tmp_path / "token").write_bytes(written)
    with pytest.raises(InputError, match="POLAR_CONTROL_TOKEN_FILE: must hold a token"):
        token_in(tmp_path / "token")
