"""Requests that the proxy refuses before they are calls: what the log has of them. Kafka is real, the engine is the scripted one."""

from __future__ import annotations

import time
from pathlib import Path

import aiohttp
import pytest
from aiohttp.test_utils import make_mocked_request
from hypothesis import given
from hypothesis import strategies as st

from polar.scripted.engine import Engine as ScriptedEngine
from polar.scripted.faults import Status
from proxy.app import Proxy
from proxy.auth import Authenticator
from proxy.errors import Refusal, RefusalError
from proxy.refused_requests import RefusedRequests, counted_by
from tests.proxy.conftest import Bench, proxied
from topics.completions import FIRST_REFUSED, CallRecord, RefusedRequest
from topics.environment.keys import KeyClaims, Keyring, Limits, ensure_keys_file
from topics.types.completion import CallOutcome, Completion

CHAT = "/v1/chat/completions"


@given(st.integers(1, 10_000))
def test_few_records_count_at_least_half_of_the_requests_and_all_of_the_first(number: int) -> None:
    counts = [counted_by(each) for each in range(1, number + 1)]
    total = sum(counts)
    assert total == number if number <= FIRST_REFUSED else number / 2 < total <= number
    assert sum(map(bool, counts)) <= FIRST_REFUSED + number.bit_length()


def test_once_its_key_is_known_to_be_closed_nothing_of_a_claim_is_recorded(tmp_path: Path) -> None:
    ensure_keys_file(tmp_path / "keys.json")
    keyring, now = Keyring(tmp_path / "keys.json"), int(time.time())
    closed: set[str] = set()
    recorded: list[RefusedRequest] = []
    refused = RefusedRequests(Authenticator(keyring, "polar"), closed.__contains__, recorded.append)

    def refuse(claim_id: str) -> None:
        key = keyring.mint(KeyClaims("t.0", 1, claim_id, expires_at=now + 60, issued_at=now, namespace="polar"))
        request = make_mocked_request("GET", "/nowhere", headers={"X-Polar-Key": key})
        refused.add(request, RefusalError(Refusal.NOT_FOUND, "nothing is served"))

    refuse("c1")
    closed.add("c1")
    refuse("c1")
    refuse("c2")
    assert [each.claim_id for each in recorded] == ["c1", "c2"]


async def test_a_refused_request_with_a_valid_key_is_on_the_log_and_is_no_call(
    bench: Bench, scripted: ScriptedEngine, proxy: Proxy, http: aiohttp.ClientSession
) -> None:
    key, spent = bench.key(), bench.key(claim_id="c2", limits=Limits(calls=0))

    async def status(method: str, path: str, key: str | None = key, body: object = None) -> int:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        async with http.request(method, proxy.url + path, json=body, headers=headers) as response:
            return response.status

    hello = {"model": "any", "messages": [{"role": "user", "content": "hi"}]}
    # Nobody's: a wrong key, and none.
    assert await status("POST", "/v1/chat", key + "x") == 404
    assert await status("POST", CHAT, None) == 401
    # The session's.
    assert await status("POST", f"/v1/chat?key={key}") == 404
    assert await status("POST", f"/s/{key}/chat/{key}", None) == 404
    assert await status("POST", f"/s/{key}", None) == 404
    assert await status("POST", f"/v1/s/{key}/chat/completions", "dummy") == 404
    assert await status("PUT", CHAT) == 404
    assert await status("POST", CHAT, key, {"model": "any", "messages": 7}) == 400
    assert await status("POST", CHAT, spent, hello) == 403
    # A call's error is the call's.
    scripted.faults.add(Status(400))
    assert await status("POST", CHAT, key, hello) == 400
    assert await status("POST", CHAT, key, hello) == 200

    def are_there(log: list[CallRecord]) -> bool:
        return sum(isinstance(record, Completion) for record in log) == 2 and len(refused(log)) == 7

    log = await bench.log(are_there)
    assert key not in str(log)
    # Sent in the background, each on its own: in any order.
    found = {(each.method, each.path, each.status, each.code): each for each in refused(log)}
    unusable, used_up = ("POST", CHAT, 400, "invalid"), ("POST", CHAT, 403, "spent")
    assert found.keys() == {
        ("POST", "/v1/chat", 404, "not_found"),
        ("POST", "/chat/…", 404, "not_found"),
        ("POST", "/", 404, "not_found"),
        ("POST", "/v1/s/…/chat/completions", 404, "not_found"),
        ("PUT", CHAT, 404, "not_found"),
        unusable,
        used_up,
    }
    assert {(each.session_id, each.attempt, each.requests) for each in found.values()} == {("t.0", 1, 1)}
    assert {request: each.claim_id for request, each in found.items()} == dict.fromkeys(found, "c1") | {used_up: "c2"}
    lost = found["POST", "/v1/chat", 404, "not_found"]
    assert lost.message == "nothing is served at POST /v1/chat"
    assert "messages" in found[unusable].message
    assert lost.client is not None
    assert lost.client.startswith("Python")
    calls = [record for record in log if isinstance(record, Completion)]
    assert {call.outcome for call in calls} == {CallOutcome.FAILED, CallOutcome.ANSWERED}


async def test_a_request_that_another_proxy_forwards_is_recorded_once(
    bench: Bench, engine_url: str, proxy: Proxy, http: aiohttp.ClientSession
) -> None:
    headers = {"X-Polar-Key": bench.key(limits=Limits(calls=0))}
    hello = {"model": "any", "messages": [{"role": "user", "content": "hi"}]}
    async with proxied(bench, engine_url) as other:
        for each in (proxy, other):  # one of them owns the session
            async with http.post(each.url + CHAT, json=hello, headers=headers) as response:
                assert response.status == 403
            # Refused by whichever proxy is asked.
            async with http.get(each.url + "/nowhere", headers=headers) as response:
                assert response.status == 404
        log = await bench.log(lambda log: len(refused(log)) >= 4)
    assert [each.status for each in refused(log)].count(403) == 2
    assert len(refused(log)) == 4


async def test_a_stream_that_is_refused_after_its_headers_are_out_is_on_the_log(
    bench: Bench, proxy: Proxy, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.streaming.QUIET_S", 0.001)
    # Older than the proxy, so the claim is read back from the log first.
    issued_at = int(time.time()) - 100
    key = bench.key("t.0", "c1", issued_at=issued_at, limits=Limits(calls=0), **await bench.open("t.0", "c1"))
    hello = {"model": "any", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    async with http.post(proxy.url + CHAT, json=hello, headers={"X-Polar-Key": key}) as response:
        assert response.status == 200
        told = await response.text()
    assert "this session has had 0 of its 0 calls" in told
    (found,) = refused(await bench.log(lambda log: bool(refused(log))))
    assert (found.path, found.status, found.code) == (CHAT, 403, "spent")


async def test_a_client_that_loops_doesnt_fill_the_log(bench: Bench, proxy: Proxy, http: aiohttp.ClientSession) -> None:
    for _ in range(2 * FIRST_REFUSED):
        async with http.get(proxy.url + "/nowhere", headers={"X-Polar-Key": bench.key()}) as response:
            assert response.status == 404
    log = await bench.log(lambda log: sum(each.requests for each in refused(log)) == 2 * FIRST_REFUSED)
    assert len(refused(log)) == FIRST_REFUSED + 1


def refused(log: list[CallRecord]) -> list[RefusedRequest]:
    return [record for record in log if isinstance(record, RefusedRequest)]
