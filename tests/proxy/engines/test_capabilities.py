"""What a server says of itself is read right, and each thing that it can't do has its flag. Answers as real servers gave them."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from polar.scripted.app import running
from polar.scripted.engine import Engine as ScriptedEngine
from proxy.engines import capabilities
from proxy.engines.capabilities import Capabilities, RouteState, detect, logprobs_mode_of, missing_features
from proxy.engines.connection import UnreachableError
from tests.proxy.engines.recorded import (
    AT_TWO,
    BARE,
    FULL,
    LOGPROBS,
    NOT_FOUND,
    Answer,
    CannedAnswer,
    answering,
    generation,
)


async def asked(told: dict[str, CannedAnswer]) -> Capabilities:
    with answering(told) as url:
        found = await detect(f"{url}/v1", "tiny")
    assert found is not None
    return found


def said(found: Capabilities, mode: str) -> list[tuple[str, bool]]:
    return [(missing.name, missing.is_fatal) for missing in missing_features(found, mode)]


async def test_a_server_with_all_flags_lacks_nothing() -> None:
    found = await asked(FULL)
    works = RouteState.WORKS
    assert found == Capabilities(
        "0.32.0", 8192, "processed", True, True, works, works, works, "default", False, frozenset()
    )
    assert said(found, "chat") == said(found, "tokens") == []
    assert found.summary == (
        "vLLM 0.32.0, 8192 tokens of context, processed logprobs, tool calls, render, generate and derender, weights 'default'"
    )


async def test_a_server_without_flags_is_told_which_it_wants() -> None:
    found = await asked(BARE)
    off = RouteState.OFF
    assert found == Capabilities("0.32.0", 8192, "raw", False, True, off, off, off, None)
    assert said(found, "chat") == [("logprobs", False), ("tool calls", False), ("versions", False)]
    fatal, *_ = missing_features(found, "tokens")
    assert fatal.is_fatal
    assert str(fatal) == (
        'mode "tokens" needs render, generate, derender: switched off: start vLLM with --enable-scale-out, or use mode "chat"'
    )
    flags = " ".join(missing.remedy for missing in missing_features(found, "tokens"))
    for flag in ("--logprobs-mode processed_logprobs", "--enable-auto-tool-choice", "--tool-call-parser", "DEV_MODE=1"):
        assert flag in flags


GENERATE = "/inference/v1/generate"


def generated(**beside: object) -> dict[str, CannedAnswer]:
    """All flags, and an answer of `generate` as vLLM gives it."""
    fields = {"stop_reason": None, "routed_experts": None, "sampling_mask": None} | beside
    return {**FULL, GENERATE: generation({"token_id": 4, "logprob": -0.5, "rank": 1}, **fields)}


async def test_what_is_to_be_captured_and_is_not_returned_is_named_with_its_flag() -> None:
    found = await asked(generated(sampling_mask=[[4]]))
    assert found.returns == frozenset({"sampling_mask"})
    fatal, *others = missing_features(found, "tokens", {"routed_experts", "sampling_mask"})
    assert fatal.is_fatal
    assert str(fatal) == (
        "the server returns no routed_experts: start vLLM with --enable-return-routed-experts (mixture-of-experts models only), "
        "or leave 'routed_experts' out of the engine's `capture` in polar.toml"
    )
    assert ["top_k" in str(other) for other in others] == [True]


async def test_what_is_returned_is_missed_by_nobody() -> None:
    found = await asked(generated(routed_experts="k05VTVBZ"))
    assert list(missing_features(found, "tokens", {"routed_experts"})) == []


@pytest.mark.parametrize("answer", [(400, {"error": {"message": "no"}}), (500, {}), (200, {"choices": []})])
async def test_an_answer_that_shows_nothing_is_not_said_to_lack_anything(answer: CannedAnswer) -> None:
    found = await asked({**FULL, GENERATE: answer})
    assert found.returns is None
    assert not any(missing.is_fatal for missing in missing_features(found, "tokens", {"routed_experts"}))


async def test_routes_that_an_older_server_has_not_are_told_apart_from_those_that_are_off() -> None:
    found = await asked({**FULL, "/v1/chat/completions/derender": NOT_FOUND})
    [fatal] = missing_features(found, "tokens")
    assert str(fatal).startswith('mode "tokens" needs derender: not found: use vLLM 0.32 or newer')


OF_VLLM_31 = {"token": "token_id:2452", "logprob": -7.1, "bytes": [116], "top_logprobs": []}


@pytest.mark.parametrize(
    "answer",
    [
        generation(OF_VLLM_31),
        generation(OF_VLLM_31, stop_reason=None),
        generation({"token_id": 2452, "logprob": -7.1}),
        (200, {"choices": [{"index": 0, "token_ids": [2452], "logprobs": None, "stop_reason": None}]}),
        (200, []),
    ],
)
async def test_a_server_whose_generate_lacks_what_the_mode_reads_is_too_old(answer: Answer) -> None:
    found = await asked({**FULL, "/inference/v1/generate": answer})
    [fatal] = missing_features(found, "tokens")
    assert fatal.is_fatal
    assert str(fatal) == (
        'mode "tokens" needs generate: answers without the token_id of each logprob or without stop_reason: '
        'use vLLM 0.32 or newer, or use mode "chat"'
    )
    assert said(found, "chat") == []


async def test_a_generate_that_rejects_token_0_is_not_said_to_be_too_old() -> None:
    found = await asked({**FULL, "/inference/v1/generate": (400, {"error": {"message": "token 0"}})})
    assert found.generate is RouteState.WORKS


async def test_a_gateway_that_knows_chat_alone_can_be_used_in_chat_mode() -> None:
    found = await asked({"/v1/chat/completions": FULL["/v1/chat/completions"]})
    assert (found.version, found.context, found.logprobs_mode) == (None, None, "processed")
    assert said(found, "chat") == [("tokenizer", False), ("versions", False)]


@pytest.mark.parametrize("body", [None, [], "words", {"choices": []}, {"choices": [{"logprobs": None}]}])
async def test_answers_that_make_no_sense_show_no_logprobs(body: Any) -> None:
    found = await asked(
        {**FULL, "/v1/chat/completions": (200, body), "/version": (200, body), "/v1/models": (200, body)}
    )
    assert (found.version, found.context, found.logprobs_mode) == (None, None, None)
    assert said(found, "chat") == [("logprobs", False)]


@pytest.mark.parametrize(
    ("at_one", "at_two", "mode"),
    [
        (LOGPROBS, LOGPROBS, "raw"),
        (LOGPROBS, AT_TWO, "processed"),
        ({"a": -1e-6, "b": -14.0}, {"a": -1e-3, "b": -7.0}, "processed"),
        ({"a": -1e-6, "b": -14.0}, {"b": -14.0, "a": -1e-6}, "raw"),
        ({"a": -0.693, "b": -0.693}, {"a": -0.693, "b": -0.693}, None),
        ({"a": -0.1}, {"a": -0.2}, None),
        ({"a": -0.1, "b": -3.0}, {"c": -0.1, "d": -3.0}, None),
        ({}, LOGPROBS, None),
    ],
)
def test_two_temperatures_show_the_mode(at_one: dict[str, float], at_two: dict[str, float], mode: str | None) -> None:
    assert logprobs_mode_of(at_one, at_two) == mode


async def test_a_server_that_hangs_is_not_said_to_refuse_nor_to_lack_its_routes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(capabilities, "DETECTION_S", 0.2)

    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:  # takes connections, and that is all
        found = await detect(f"http://127.0.0.1:{silent.getsockname()[1]}", "tiny")
    assert found is not None
    assert {found.render, found.generate, found.derender} == {RouteState.SILENT}
    silent_routes = next(missing_features(found, "tokens"))
    assert "paused or overloaded" in str(silent_routes)
    assert not silent_routes.is_fatal
    assert (found.tools, found.tokenizer, found.logprobs_mode) == (True, True, None)


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_server_that_is_overloaded_is_not_said_to_lack_its_routes(status: int) -> None:
    found = await asked({**FULL, "/inference/v1/generate": (status, {"error": {"message": "busy"}})})
    assert found.generate is RouteState.SILENT
    assert said(found, "tokens") == [("mode tokens", False)]


async def test_the_scripted_engine_is_asked_nothing() -> None:
    scripted = ScriptedEngine()
    async with running(scripted) as url:
        assert await detect(url, "polar-scripted") is None
    assert scripted.record.calls() == []


async def test_nobody_there_is_not_a_server_that_can_do_nothing() -> None:
    with pytest.raises(UnreachableError):
        await detect("http://127.0.0.1:9", "tiny")
