"""Several proxies of one fleet, in the test's own loop: whoever is asked, a session's owner answers. Kafka is real."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp.test_utils import make_mocked_request
from prometheus_client.parser import text_string_to_metric_families

from polar.scripted.app import running
from polar.scripted.engine import Engine as ScriptedEngine
from polar.scripted.faults import Slow, Status
from proxy.app import Proxy
from proxy.errors import Refusal, RefusalError
from proxy.peers import forwarding
from proxy.peers.forwarding import FORWARDED, REFUSED, Forwarder, PeerError
from proxy.peers.ownership import Ownership
from proxy.session_key import KEY_HEADER
from tests.proxy.conftest import Bench, proxied
from tests.proxy.peers.test_ownership import Log, beat
from tests.proxy.talks import Talk
from tests.waiting import eventually
from topics.environment.keys import Keyring, ensure_keys_file
from topics.types.completion import CallOutcome, Completion

SESSIONS = [f"t{number}.0" for number in range(12)]


@asynccontextmanager
async def two(bench: Bench, engine_url: str) -> AsyncIterator[tuple[Proxy, Proxy]]:
    """Two proxies that know of one another."""
    async with proxied(bench, engine_url) as a, proxied(bench, engine_url) as b:
        await eventually(lambda: len(a._ownership.peers) == len(b._ownership.peers) == 2)
        yield a, b


@pytest.fixture
async def pair(bench: Bench, engine_url: str) -> AsyncIterator[tuple[Proxy, Proxy]]:
    async with two(bench, engine_url) as pair:
        yield pair


def owned_by(proxy: Proxy) -> str:
    return next(session for session in SESSIONS if proxy._ownership.is_mine(session))


def figure(proxy: Proxy, name: str, **labels: str) -> float:
    families = text_string_to_metric_families(proxy._metrics.text().decode())
    samples = [sample for family in families for sample in family.samples]
    return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())


def ask(
    http: aiohttp.ClientSession, proxy: Proxy, key: str, text: str = "hi", **fields: object
) -> aiohttp.client._RequestContextManager:
    body = {"model": "m", "messages": [{"role": "user", "content": text}]} | fields
    return http.post(proxy.url + "/v1/chat/completions", headers={KEY_HEADER: key}, json=body)


async def test_whoever_is_asked_the_owner_answers_and_the_call_is_on_the_log_once(
    pair: tuple[Proxy, Proxy], bench: Bench, scripted: ScriptedEngine, http: aiohttp.ClientSession
) -> None:
    for session in SESSIONS:
        for proxy in pair:
            async with ask(http, proxy, bench.key(session, session)) as response:
                assert response.status == 200
                answered = (await response.json())["id"]
            [*_, call] = await bench.calls(1 + (proxy is pair[1]), session)
            assert call.call_id == answered
        assert len(scripted.record.calls(session)) == 2
    assert sum(len(proxy._claims) for proxy in pair) == len(SESSIONS)
    assert sum(figure(proxy, "polar_proxy_forwarded_total", outcome="answered") for proxy in pair) == len(SESSIONS)
    assert not sum(figure(proxy, "polar_proxy_held_total") for proxy in pair)


async def test_whether_a_forwarded_answer_reached_its_harness_isn_t_known_so_it_is_never_rejected(
    pair: tuple[Proxy, Proxy], bench: Bench, http: aiohttp.ClientSession
) -> None:
    asked, owner = pair
    session, answered = owned_by(owner), []
    for proxy in (asked, owner, owner):
        async with ask(http, proxy, bench.key(session), n=2) as response:
            answered.append((await response.json())["id"])
    rejects = {call.call_id: call.rejects for call in await bench.calls(6, session) if call.rejects}
    assert rejects == {answered[2]: [answered[1], f"{answered[1]}.1"]}, "each is named once, by the first choice"


async def test_a_forwarded_stream_is_kept_alive_by_who_was_asked(
    pair: tuple[Proxy, Proxy],
    bench: Bench,
    scripted: ScriptedEngine,
    http: aiohttp.ClientSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("proxy.streaming.QUIET_S", 0.2)
    asked, owner = pair
    scripted.faults.add(Slow(delay_s=0.7))
    async with ask(http, asked, bench.key(owned_by(owner)), stream=True) as response:
        assert response.status == 200
        told = await response.read()
    assert told.startswith(b": keep-alive\n\n")
    assert told.endswith(b"data: [DONE]\n\n")
    async with ask(http, asked, bench.key(owned_by(owner)), stream=True) as response:
        at_once = await response.read()
    assert at_once.startswith(b"data: ")


async def test_a_harness_that_hangs_up_ends_its_call_at_the_owner(
    pair: tuple[Proxy, Proxy], bench: Bench, scripted: ScriptedEngine, http: aiohttp.ClientSession
) -> None:
    asked, owner = pair
    session = owned_by(owner)
    scripted.faults.add(Slow(delay_s=30))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await ask(http, asked, bench.key(session))
    [call] = await bench.calls(1, session)
    assert (call.outcome, call.error and call.error.code) == (CallOutcome.ABANDONED, "hung_up")
    await eventually(lambda: not asked._model_api.replies and not owner._model_api.replies)


class Silent(asyncio.Protocol):
    """Takes requests and answers none."""

    def __init__(self, asked: asyncio.Event) -> None:
        self._asked = asked

    def data_received(self, _: bytes) -> None:
        self._asked.set()


@pytest.mark.parametrize("ends", ["hung up", "lost"])
async def test_a_forwarded_call_that_ends_unanswered_leaves_no_task_behind(ends: str, tmp_path: Path) -> None:
    ensure_keys_file(tmp_path / "keys.json")
    keyring = Keyring(tmp_path / "keys.json")
    loop, asked, ownership = asyncio.get_running_loop(), asyncio.Event(), Ownership("asked")
    log, forwarder = Log(ownership), Forwarder("asked", ownership, keyring)
    server = await loop.create_server(lambda: Silent(asked), "127.0.0.1", 0)
    log.write(beat("owner", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"))
    await forwarder.start()
    try:
        before, owner = asyncio.all_tasks(), ownership.peers["owner"]
        request = make_mocked_request("POST", "/v1/chat/completions")
        sending = asyncio.ensure_future(forwarder.send(owner, request, b"{}"))
        await asked.wait()
        if ends == "lost":
            log.write(beat("the owner's next", owner.address))
        else:
            sending.cancel()
        with pytest.raises(PeerError if ends == "lost" else asyncio.CancelledError):
            await sending
        assert asyncio.all_tasks() == before
    finally:
        await forwarder.stop()
        server.close()


async def test_a_refusal_is_told_as_the_owner_would_tell_it(bench: Bench, http: aiohttp.ClientSession) -> None:
    scripted = ScriptedEngine(max_model_len=200)
    async with running(scripted) as url, two(bench, url) as (asked, owner):
        key = bench.key(owned_by(owner))
        scripted.faults.add(Status(status=429, retry_after_s=60, times=2))
        busy = [await refused(http, proxy, key, "hi") for proxy in (owner, asked)]
        too_long = [await refused(http, proxy, key, "one two " * 300) for proxy in (owner, asked)]
    assert busy[0] == busy[1]
    assert busy[0][0] == 429
    assert busy[0][1] is not None
    assert too_long[0] == too_long[1]
    assert "context_length_exceeded" in too_long[0][2]


async def refused(http: aiohttp.ClientSession, proxy: Proxy, key: str, text: str) -> tuple[int, str | None, str]:
    async with ask(http, proxy, key, text) as response:
        return response.status, response.headers.get("Retry-After"), await response.text()


async def test_a_refusal_after_the_headers_is_an_event_of_the_stream(
    pair: tuple[Proxy, Proxy],
    bench: Bench,
    scripted: ScriptedEngine,
    http: aiohttp.ClientSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("proxy.streaming.QUIET_S", 0.2)
    asked, owner = pair
    session = owned_by(owner)
    scripted.faults.add(Slow(delay_s=30))
    async with ask(http, asked, bench.key(session), stream=True) as response:
        await response.content.readuntil(b"\n\n")
        await bench.close_key(session)
        told = (await response.read()).split(b"\n\n")[-2]
    assert json.loads(told.removeprefix(b"data: "))["error"]["code"] == "session_closed"


async def test_what_was_forwarded_is_never_forwarded_again(
    pair: tuple[Proxy, Proxy], bench: Bench, http: aiohttp.ClientSession
) -> None:
    asked, owner = pair
    key = bench.key(owned_by(owner))
    http.headers[FORWARDED] = forwarded_by(owner, key)
    async with ask(http, asked, key) as response:
        assert (response.status, response.headers[REFUSED]) == (421, "not_owner")
    assert figure(asked, "polar_proxy_misdirected_total") == 1
    async with ask(http, owner, key) as response:
        assert response.status == 200


def forwarded_by(proxy: Proxy, key: str) -> str:
    """The header with which a proxy forwards requests of a key."""
    return proxy._forwarder.header(make_mocked_request("POST", "/", headers={KEY_HEADER: key}))


@pytest.mark.parametrize(
    ("answer", "is_recorded"),
    [
        (forwarding.refusal(RefusalError(Refusal.SPENT, "no calls are left")).body, True),
        (b'{"refusal":"spent","message":"no calls are left"}', False),
    ],
)
def test_who_forwards_records_what_an_older_owner_refuses(answer: bytes, is_recorded: bool) -> None:
    refused = forwarding._refusal_in(answer)
    assert (refused.refusal, refused.message) == (Refusal.SPENT, "no calls are left")
    assert refused.is_recorded is is_recorded


async def test_a_forged_header_of_a_forwarder_changes_nothing(
    pair: tuple[Proxy, Proxy], bench: Bench, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither is the request refused or waited for as a proxy's, nor are errors told as to a proxy."""
    asked, owner = pair
    key = bench.key(owned_by(owner))
    worker_id, mac, offset = forwarded_by(owner, key).split(" ")
    of_another_key = forwarded_by(owner, bench.key(owned_by(owner), "c2"))
    waited_for: list[int] = []

    async def wait_for(as_of: int) -> None:
        waited_for.append(as_of)

    for proxy in pair:
        monkeypatch.setattr(proxy._ownership, "caught_up", wait_for)
    for forged in (
        "someone", f"{worker_id} {offset}", f"{worker_id} {mac[:-1]} {offset}", f"{worker_id} {mac} {10**18 - 1}",
        f"x{worker_id} {mac} {offset}", of_another_key, "\xff \xff -1", f"{worker_id} {'0' * 64} {offset}",
    ):  # fmt: skip
        http.headers[FORWARDED] = forged
        async with ask(http, asked, key) as response:
            assert response.status == 200, await response.text()
        async with ask(http, asked, "sk-polar-x") as response:
            assert (response.status, REFUSED in response.headers) == (401, False)
            assert (await response.json())["error"]["code"] == "invalid_api_key"
    # What the asked proxy forwarded in its own name is a proxy's.
    assert set(waited_for) == {asked._ownership.as_of}


async def test_a_request_is_forwarded_however_its_key_and_body_came(
    pair: tuple[Proxy, Proxy], bench: Bench, http: aiohttp.ClientSession
) -> None:
    asked, owner = pair
    session = owned_by(owner)
    key = bench.key(session)
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
    path = "/v1/chat/completions"
    for url, headers, sent in (
        (f"{asked.url}/s/{key}{path}", {}, body),
        (f"{asked.url}{path}?key={key}&more=1%2F2", {}, body),
        (asked.url + path, {KEY_HEADER: key, "Content-Encoding": "gzip"}, gzip.compress(body)),
    ):
        async with http.post(url, headers=headers, data=sent) as response:
            assert response.status == 200, await response.text()
    assert len(await bench.calls(3, session)) == 3
    assert figure(asked, "polar_proxy_forwarded_total", outcome="answered") == 3


async def test_sessions_go_on_wherever_they_move_and_each_prompt_is_a_delta(
    bench: Bench, engine_url: str, http: aiohttp.ClientSession
) -> None:
    """A alone, then some are B's, then all A's again; keys and the address that harnesses know stay."""
    async with proxied(bench, engine_url) as a:
        keys = {session: bench.key(session, session, **await bench.open(session)) for session in SESSIONS}
        talks = {session: Talk(http, keys[session], "openai_chat") for session in SESSIONS}

        async def all_say(*texts: str) -> None:
            for text in texts:
                await asyncio.gather(*(talk.say(a.url, text) for talk in talks.values()))

        await all_say("one", "two")
        async with proxied(bench, engine_url) as b:
            await eventually(lambda: len(a._ownership.peers) == 2)
            moved = sum(not a._ownership.is_mine(session) for session in SESSIONS)
            assert moved
            await all_say("three", "four")
            assert [figure(each, "polar_proxy_read_back_total") for each in (a, b)] == [0, moved]
        await all_say("five")
        assert figure(a, "polar_proxy_read_back_total") == moved
    for session in SESSIONS:
        calls = await bench.calls(5, session)
        assert [call.prompt.base for call in calls] == [None, *(call.call_id for call in calls[:4])]
        assert [call.messages.base for call in calls] == [None, *(call.call_id for call in calls[:4])]


async def test_an_answer_that_was_under_way_at_the_last_owner_is_read_before_it_is_gone_on_from(
    bench: Bench, engine_url: str, scripted: ScriptedEngine, http: aiohttp.ClientSession
) -> None:
    async with proxied(bench, engine_url) as a:
        key, slow = {}, {}
        for session in SESSIONS:
            key[session] = bench.key(session, session, **await bench.open(session))
            scripted.faults.add(Slow(delay_s=3.0))
            talk = Talk(http, key[session], "openai_chat")
            slow[session] = talk, asyncio.ensure_future(talk.say(a.url, "slow"))
            await eventually(lambda: not scripted.faults.pending())
        async with proxied(bench, engine_url) as b:
            session = owned_by(b)
            await Talk(http, key[session], "openai_chat").say(b.url, "quick")
            talk, answer = slow[session]
            assert not answer.done()
            await answer
            await talk.say(b.url, "more")
            assert figure(b, "polar_proxy_read_back_total") == 2
        await asyncio.gather(*(answer for _, answer in slow.values()))
    first, more = [call for call in await bench.calls(3, session) if message_texts(call) != ["quick"]]
    assert (more.prompt.base, more.messages.base) == (first.call_id, first.call_id)


def message_texts(call: Completion) -> list[str]:
    return [message["content"] for message in json.loads(call.messages.rest)]


async def test_who_leaves_finishes_its_calls_and_sends_new_ones_to_the_others(
    pair: tuple[Proxy, Proxy], bench: Bench, scripted: ScriptedEngine, http: aiohttp.ClientSession
) -> None:
    leaving, other = pair
    session = owned_by(leaving)
    key = bench.key(session, "c1", **await bench.open(session))
    scripted.faults.add(Slow(delay_s=1.0))
    under_way = asyncio.ensure_future(ask(http, leaving, key, "first"))
    await eventually(lambda: not scripted.faults.pending())
    stopping = asyncio.ensure_future(leaving.stop())
    async with ask(http, leaving, key, "second") as response:
        assert response.status == 200
    async with await under_way as response:
        assert response.status == 200
    await stopping
    assert {message_texts(call)[0] for call in await bench.calls(2, session)} == {"first", "second"}
    assert figure(other, "polar_proxy_calls_total", outcome="answered") == 1
