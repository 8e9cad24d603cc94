"""The facts that are recorded of a call's sampling give vLLM's logprob again, or say that they don't, and `plain_only` leaves the call out.

Real: the servers (one of each mode of logprobs), what is detected of them, both modes of the proxy's engine, the builder with its filters,
the lines of `polar trajectories`, and the script of docs/ratios.md. Neither Kafka nor HTTP of the proxy's own is between them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec
import numpy as np
import pytest

from consumers.builders.base import BuiltFrom
from consumers.builders.prefix_merging import PrefixMerging
from examples import reproduce_logprobs
from examples.vllm_cpu.serve import Server
from polar.show.trajectory import line
from proxy.capture import CallSpec, answered_record
from proxy.chat import ChatRequest, Function, Message, Tool
from proxy.engines import probe
from proxy.engines.pool import Engines
from proxy.intake import imposed
from proxy.session.claim_state import ClaimState
from tests.consumers.token_tree.transcripts import build_record
from topics.environment.keys import KeyClaims
from topics.environment.settings import EngineSettings
from topics.types.completion import Completion
from topics.types.task import TRAINING_DEFAULTS

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

TRAIN: dict[str, Any] = TRAINING_DEFAULTS.model_dump(exclude_none=True)
TOKENS = 8
"""Of an answer: the whole distribution of each place is half a megabyte of JSON."""
SAME = 1e-4
"""Nats: the record gives the logprob again."""
SCHEMA = msgspec.json.encode({"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]})
LOOK, STRICT = (Tool(Function("look", parameters=msgspec.Raw(SCHEMA), strict=strict)) for strict in (None, True))
FORMAT = msgspec.Raw(b'{"type":"json_schema","json_schema":{"name":"x","schema":{"type":"object","required":["a"]}}}')


@cache
def detected(url: str, model: str, mode: str, unasked_grammar: bool | None) -> Mapping[str, EngineSettings]:
    """An engine's settings as a proxy has them after its start."""
    engine = EngineSettings(urls=(url,), model=model, mode=mode, unasked_grammar=unasked_grammar)
    return probe.with_detected({"tiny": engine}, lambda _: None)


def recorded(
    server: Server, mode: str, sampling: dict[str, Any], *, unasked_grammar: bool | None = None, **fields: Any
) -> Completion:
    """The record of a call with the key's sampling; `unasked_grammar` is configured."""
    engines = Engines.of(detected(server.url, server.model, mode, unasked_grammar))
    key = KeyClaims("t.0", 1, "c1", issued_at=0, expires_at=2**40, namespace="polar", sampling=sampling)
    claim = ClaimState(key)

    async def answered() -> Completion:
        await engines.start()
        try:
            replicas = engines.default
            asked = ChatRequest([Message("user", "Say a word.")], **fields)
            restored, transcript = claim.restore(asked, replicas.name if replicas.owns_prompts else None)
            request = imposed(restored, key, replicas.unasked_grammar)
            answer = await replicas.complete(request, "t.0")
            return answered_record(CallSpec("c", claim, "openai_chat", "tiny", request, transcript, 0.0), answer)
        finally:
            await engines.stop()

    return asyncio.run(answered())


def trace_of(call: Completion, **filters: Any) -> dict[str, Any] | None:
    """The call's trace as a line of `polar trajectories` has it; None: the filters left it out."""
    traces = line(PrefixMerging(filters=filters).build(BuiltFrom(build_record(), [call])))["traces"]
    return dict(traces[0]) if traces else None


def checked(scorer: Server, record: Completion) -> tuple[float, float] | None:
    """How far a call's logprobs are, in nats, from those that its record gives, and from the model's own.

    None: the record says that it doesn't suffice.
    """
    trace = trace_of(record)
    assert trace is not None
    [call] = trace["calls"]
    assert len(trace["token_ids"]) > call["start"]
    if not reproduce_logprobs.is_reproducible(call):
        return None
    plain = reproduce_logprobs.distributions(scorer.url, scorer.model, trace["token_ids"])
    own = call | {"plain": True}
    reproduced, from_own = (np.abs(reproduce_logprobs.differences(plain, trace, one)).max() for one in (call, own))
    return float(reproduced), float(from_own)


KNOWN: dict[str, dict[str, Any]] = {
    "plain": {},
    "cooler": {"temperature": 0.5},
    "top_p": {"top_p": 0.9},
    "top_k": {"top_k": 3},
    "min_p": {"min_p": 0.1},
    "all": {"temperature": 1.4, "top_p": 0.8, "top_k": 30, "min_p": 0.01},
    "greedy": {"temperature": 0.0},
}
"""Settings whose record gives the logprobs again."""
UNKNOWN: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a strict tool": ({}, {"tools": [STRICT]}, "strict_tools"),
    "a forced tool": ({}, {"tools": [LOOK], "tool_choice": "required"}, "tool_choice"),
    "one call at a time": ({}, {"tools": [LOOK], "parallel_tool_calls": False}, "parallel_tool_calls"),
    "a grammar": ({}, {"response_format": FORMAT}, "response_format"),
    "a penalty": ({"repetition_penalty": 1.3}, {}, "none"),
}
"""Settings and requests whose record says that it doesn't."""


@pytest.mark.parametrize(("mode", "name"), [*(("tokens", name) for name in KNOWN), ("chat", "plain"), ("chat", "all")])
def test_processed_logprobs_follow_from_the_record(vllm_server: Server, mode: str, name: str, tell: Any) -> None:
    record = recorded(vllm_server, mode, TRAIN | {"max_tokens": TOKENS} | KNOWN[name])
    assert (record.logprobs_mode, record.sampling.grammar_source) == ("processed", "none")
    found = checked(vllm_server, record)
    assert found is not None
    reproduced, own = found
    tell(f"{name}, mode {mode}, processed: {reproduced:.1e}; from the model's own {own:.1e}")
    assert reproduced < SAME
    assert (own < SAME) is (name in ("plain", "greedy"))
    assert (trace_of(record, plain_only=True) is not None) is (name == "plain")


@pytest.mark.parametrize("name", ["plain", "all", "greedy"])
def test_raw_logprobs_are_the_model_s_own_whatever_the_sampling(
    vllm_server: Server, bare_server: Server, name: str, tell: Any
) -> None:
    """The server renders nothing, so whether it constrains tool calls unasked is configured."""
    settings = TRAIN | {"max_tokens": TOKENS} | KNOWN[name]
    record = recorded(bare_server, "chat", settings, unasked_grammar=False)
    assert record.logprobs_mode == "raw"
    found = checked(vllm_server, record)
    assert found is not None
    tell(f"{name}, mode chat, raw: {found[0]:.1e}")
    assert max(found) < SAME
    assert (trace_of(record, plain_only=True) is not None) is (name == "plain")


@pytest.mark.parametrize(
    ("mode", "name"), [*(("tokens", name) for name in UNKNOWN), ("chat", "a strict tool"), ("chat", "a penalty")]
)
def test_what_the_record_does_not_give_is_marked_and_left_out(vllm_server: Server, mode: str, name: str) -> None:
    sampling, fields, source = UNKNOWN[name]
    record = recorded(vllm_server, mode, TRAIN | {"max_tokens": TOKENS} | sampling, **fields)
    assert record.sampling.grammar_source == source
    assert checked(vllm_server, record) is None
    assert trace_of(record, plain_only=True) is None
    assert trace_of(record, **{"penalised" if source == "none" else "grammar": "mask"}) is None


def test_a_grammar_of_a_server_that_returns_raw_logprobs_is_marked_too(bare_server: Server) -> None:
    settings = TRAIN | {"max_tokens": TOKENS}
    record = recorded(bare_server, "chat", settings, unasked_grammar=False, response_format=FORMAT)
    assert (record.logprobs_mode, record.sampling.grammar_source) == ("raw", "response_format")
    assert trace_of(record, plain_only=True) is None


def test_without_the_key_s_settings_mode_tokens_knows_the_server_s_and_mode_chat_does_not(vllm_server: Server) -> None:
    in_tokens, in_chat = (recorded(vllm_server, mode, {"max_tokens": TOKENS}) for mode in ("tokens", "chat"))
    assert in_tokens.sampling.plain
    assert (in_chat.sampling.temperature, in_chat.sampling.top_p, in_chat.sampling.plain) == (None, None, False)


def test_a_server_that_renders_nothing_leaves_the_grammar_unknown(bare_server: Server) -> None:
    record = recorded(bare_server, "chat", TRAIN | {"max_tokens": TOKENS})
    assert (record.sampling.grammar, record.sampling.grammar_source) == (False, "unknown")
    assert trace_of(record, plain_only=True) is None
    assert trace_of(record) is not None
