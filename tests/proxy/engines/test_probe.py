"""`--engine` takes a URL with or without /v1, and its only model where none is named; what can't serve training is told.

The servers here are real HTTP, answers canned; the probe's is the scripted engine with its faults.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import pytest

from polar.scripted.app import running
from polar.scripted.engine import Engine as ScriptedEngine
from polar.scripted.faults import Garbage, Status
from proxy.engines import probe
from tests.proxy.engines.recorded import BARE, FULL, Answer, answering, rendering
from topics.environment.settings import EngineSettings
from topics.types.errors import InputError, NotReadyError


def serving(body: str, status: int = 200) -> AbstractContextManager[str]:
    return answering({"/v1/models": (status, body)})


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_the_only_model_is_taken(suffix: str) -> None:
    with serving('{"data": [{"id": "qwen"}]}') as url:
        assert probe.find_model(url + suffix, None) == probe.ServedModel(url, "qwen")


def test_of_several_models_one_must_be_named() -> None:
    with serving('{"data": [{"id": "a"}, {"id": "b"}]}') as url:
        assert probe.find_model(url, "b") == probe.ServedModel(url, "b")
        with pytest.raises(InputError, match=r"--model: .* serves a, b; name one"):
            probe.find_model(url, None)
        with pytest.raises(InputError, match=r"--model: .* serves a, b \(got 'c'\)"):
            probe.find_model(url, "c")


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ("{}", 200, "no inference server"),
        ("[]", 200, "no inference server"),
        ('{"data": [1]}', 200, "no inference server"),
        ("<html>", 200, "doesn't answer"),
        ("", 503, "is no inference server: /v1/models gives 503"),
    ],
)
def test_what_is_no_engine_is_told(body: str, status: int, said: str) -> None:
    with serving(body, status) as url, pytest.raises(NotReadyError, match=said):
        probe.find_model(url, None)


def test_servers_of_one_engine_have_its_model_as_far_as_they_answer() -> None:
    gone = "http://127.0.0.1:9"
    with serving('{"data": [{"id": "a"}]}') as a, serving('{"data": [{"id": "b"}]}') as b:
        assert probe.model_of([gone, a], None) == "a"
        assert probe.model_of([a, gone], "a") == "a"
        with pytest.raises(InputError, match=f"--model: {b} serves b .*'a'"):
            probe.model_of([a, b], None)
    with pytest.raises(NotReadyError, match=f"the engine at {gone} doesn't answer"):
        probe.model_of([gone], "a")


def test_an_engine_of_the_file_needs_a_server_only_where_its_model_is_not_named() -> None:
    gone = EngineSettings(urls=("http://127.0.0.1:9",), model="m")
    with serving('{"data": [{"id": "a"}]}') as url:
        there = EngineSettings(urls=(url,))
        assert {name: told.model for name, told in probe.with_models({"x": there, "y": gone}).items()} == {
            "x": "a",
            "y": "m",
        }
        with pytest.raises(InputError, match=r"engines\.x\.model: .* serves a \(got 'b'\)"):
            probe.with_models({"x": there.model_copy(update={"model": "b"})})
    with pytest.raises(NotReadyError, match="doesn't answer"):
        probe.with_models({"y": gone.model_copy(update={"model": None})})


async def test_an_engine_that_returns_token_ids_passes() -> None:
    async with running(ScriptedEngine()) as url:
        await probe.try_call(probe.ServedModel(url, "polar-scripted"))


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Garbage(form="no_token_ids"), r"it returns no token ids, .* vLLM 0\.10\.2 or newer does"),
        (Garbage(form="length_mismatch"), "it returns no logprob for each sampled token"),
        (Garbage(form="nan_logprobs"), "it returns no logprob for each sampled token"),
        (Garbage(form="not_json"), "it gave no usable answer"),
        (Status(status=404), "it gave no usable answer"),
    ],
)
async def test_what_an_engine_lacks_is_told(fault: Garbage | Status, said: str) -> None:
    scripted = ScriptedEngine()
    scripted.faults.add(fault)
    async with running(scripted) as url:
        with pytest.raises(NotReadyError, match=f"the engine at {url} .* can't be used: {said}"):
            await probe.try_call(probe.ServedModel(url, "polar-scripted"))


async def test_it_is_probed_in_the_mode_that_it_will_be_asked_in() -> None:
    async with running(ScriptedEngine()) as url:
        await probe.try_call(probe.ServedModel(url, "polar-scripted"), "tokens")
        with pytest.raises(InputError, match="--mode: must be chat, tokens, or an engine plug-in"):
            await probe.try_call(probe.ServedModel(url, "polar-scripted"), "telepathy")


async def test_an_engine_that_is_gone_is_told() -> None:
    with pytest.raises(NotReadyError, match="can't be used: it gave no usable answer"):
        await probe.try_call(probe.ServedModel("http://127.0.0.1:9", "m"))


def test_engines_get_the_logprobs_mode_that_their_servers_have() -> None:
    told: list[str] = []
    with answering(FULL) as full, answering(BARE) as bare:
        engines = {
            "full": EngineSettings(urls=(full,), model="tiny"),
            "bare": EngineSettings(urls=(bare,), model="tiny"),
            "gone": EngineSettings(urls=("http://127.0.0.1:9",), model="tiny"),
        }
        found = probe.with_detected(engines, told.append)
        assert {name: one.logprobs_mode for name, one in found.items()} == {
            "full": "processed",
            "bare": "raw",
            "gone": None,
        }
        assert [found[name].unasked_grammar for name in ("full", "bare", "gone")] == [False, None, None]
        assert [line.startswith(f"the engine at {bare}: ") for line in told] == [True] * 3
        wrong = {"bare": EngineSettings(urls=(bare,), model="tiny", logprobs_mode="processed")}
        with pytest.raises(InputError, match=r"engines\.bare\.logprobs_mode: its servers return raw logprobs"):
            probe.with_detected(wrong, told.append)
        mixed = {"both": EngineSettings(urls=(full, bare), model="tiny")}
        with pytest.raises(InputError, match=r"engines\.both\.urls: some return processed logprobs, others return raw"):
            probe.with_detected(mixed, told.append)


def test_a_server_that_constrains_tool_calls_unasked_is_told_and_can_t_be_configured_otherwise() -> None:
    told: list[str] = []
    with answering({**FULL, "/v1/chat/completions/render": constraining}) as url, answering(FULL) as other:
        engines = {"glm": EngineSettings(urls=(url,), model="tiny")}
        assert probe.with_detected(engines, told.append)["glm"].unasked_grammar is True
        assert "constrains tool calls that no request asks to constrain" in told[0]
        wrong = {"glm": EngineSettings(urls=(url,), model="tiny", unasked_grammar=False)}
        with pytest.raises(InputError, match=r"engines\.glm\.unasked_grammar: its servers constrain tool calls"):
            probe.with_detected(wrong, told.append)
        mixed = {"both": EngineSettings(urls=(url, other), model="tiny")}
        with pytest.raises(
            InputError, match=r"others don't constrain them: start all with the same --tool-strict-level"
        ):
            probe.with_detected(mixed, told.append)


def constraining(asked: dict[str, Any]) -> Answer:
    """As vLLM with --tool-strict-level function renders any request with tools."""
    return rendering(asked | {"parallel_tool_calls": False})


def test_what_is_configured_holds_where_nothing_is_detected() -> None:
    told = EngineSettings(urls=("http://127.0.0.1:9",), model="tiny", logprobs_mode="processed", unasked_grammar=False)
    assert probe.with_detected({"gone": told}, print) == {"gone": told}


def test_a_mode_that_a_server_cannot_serve_is_refused_with_the_way_out() -> None:
    with answering(BARE) as url:
        engines = {"bare": EngineSettings(urls=(url,), model="tiny", mode="tokens")}
        with pytest.raises(NotReadyError, match=r"can't be used: .* start vLLM with --enable-scale-out, or use mode"):
            probe.with_detected(engines, print)
