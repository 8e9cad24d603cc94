"""Bodies that real CLIs sent, recorded by `tests/harnesses/test_recording.py`: what each comes to, and that a run of them only grows.

`recorded/<run>.json` has the calls of one plain run: of each request the fields that differ from the one before, and the log's answer.
`recorded/<run>.expected.json` has what the dialect makes of them; `pytest tests/proxy/dialects --accept` writes it anew.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from proxy.chat import Answer, ChatRequest, Message, Usage
from proxy.dialects.base import Dialect, Serves, Wire, dialects
from proxy.session.turns import SampledTurns
from topics.types.tokens import pack_ids, pack_logprobs

RECORDED = Path(__file__).parent / "recorded"
RUNS = sorted(path for path in RECORDED.glob("*.json") if not path.name.endswith(".expected.json"))
DIALECTS = {dialect.name: dialect for dialect in dialects()}


@dataclass(frozen=True)
class Recorded:
    """One call."""

    wire: Wire
    answer: Answer


@pytest.fixture(params=RUNS, ids=lambda path: path.stem)
def run(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def dialect_of(run: Path) -> Dialect:
    return DIALECTS[json.loads(run.read_text())["dialect"]]


async def calls_of(run: Path) -> list[Recorded]:
    told = json.loads(run.read_text())
    app = web.Application()
    for route in DIALECTS[told["dialect"]].routes:
        if route.serves is Serves.CALL:
            app.router.add_route(route.method, route.path, _nothing)
    found: list[Recorded] = []
    body: dict[str, Any] = {}
    for call in told["calls"]:
        body = {name: value for name, value in body.items() if name not in call["without"]} | call["body"]
        request = make_mocked_request("POST", call["path"], headers=call["headers"])
        match = await app.router.resolve(request)
        assert match.http_exception is None, call["path"]
        wire = Wire(json.dumps(body).encode(), dict(match), dict(request.query), request.headers)
        found.append(Recorded(wire, _answer(call)))
    return found


async def _nothing(_: web.Request) -> web.Response:
    raise AssertionError


def _answer(call: dict[str, Any]) -> Answer:
    return Answer(
        message=msgspec.convert(call["answer"], Message),
        finish_reason=call["finish_reason"],
        usage=Usage(prompt=10, sampled=1),
        prompt_ids=pack_ids(list(range(10))),
        sampled_ids=pack_ids([1]),
        logprobs=pack_logprobs([0.0]),
        model="m",
    )


def told_of(requests: list[ChatRequest]) -> Iterator[dict[str, Any]]:
    """Requests for people, each without what it shares with the one before."""
    before: list[Any] = []
    for request in requests:
        messages = msgspec.to_builtins(request.messages)
        same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(before, messages, strict=False))
        shared = sum(1 for _ in same)
        before = messages
        yield {
            "model": request.model,
            "messages_as_before": shared,
            "messages": messages[shared:],
            "tools": [tool.function.name for tool in request.tools],
            "tools_digest": sha256(msgspec.json.encode(request.tools)).hexdigest()[:16],
            "tool_choice": msgspec.to_builtins(request.tool_choice),
            "parallel_tool_calls": request.parallel_tool_calls,
            "sampling": msgspec.to_builtins(request.sampling),
            "stop": request.stop,
            "response_format": bytes(request.response_format).decode(),
            "reasoning_effort": request.reasoning_effort,
            "stream": request.stream,
        }


async def test_what_a_cli_sent_comes_to_what_is_expected(run: Path, request: pytest.FixtureRequest) -> None:
    dialect = dialect_of(run)
    found = list(told_of([dialect.parse(call.wire) for call in await calls_of(run)]))
    expected = run.with_suffix(".expected.json")
    if request.config.getoption("--accept", default=False):
        expected.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n")
    assert found == json.loads(expected.read_text())


async def test_each_request_is_the_one_before_with_its_answer_and_what_is_new(run: Path) -> None:
    dialect = dialect_of(run)
    remembered, before = SampledTurns(), list[Message]()
    for number, call in enumerate(await calls_of(run)):
        request = dialect.parse(call.wire)
        messages, spelled = remembered.restore(request.messages, request.tools)
        assert messages[: len(before)] == before
        assert len(messages) > len(before)
        remembered.add(f"c{number}", spelled.link, call.answer.message)
        before = [*messages, call.answer.message]
    assert number >= 3


async def test_its_answers_are_told_in_its_dialect(run: Path) -> None:
    dialect = dialect_of(run)
    for call in await calls_of(run):
        request = dialect.parse(call.wire)
        told = dialect.body(f"{dialect.id_prefix}0", 0, request, [call.answer])
        streamed = dialect.stream(f"{dialect.id_prefix}0", 0, request, [call.answer])
        for tool_call in call.answer.message.tool_calls:
            assert tool_call.function.name.encode() in told
            assert tool_call.function.name.encode() in streamed


def test_there_is_a_recording_of_every_dialect_and_none_is_large_or_private() -> None:
    assert {dialect_of(run).name for run in RUNS} == set(DIALECTS)
    for file in RECORDED.iterdir():
        text = file.read_text()
        assert len(text) < 150_000, file
        for private in ("/tmp/", "/root", "/home/", "pytest"):
            assert private not in text.replace("/home/agent", ""), (file, private)
