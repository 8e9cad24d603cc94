"""Routed experts and sampling masks on their way from vLLM's generate to the record: which rows are requested, and what isn't captured.

The server is the scripted engine, in vLLM's wire format, or a stand-in that is told what to say. Its experts depend on token and place, so
that a row of another token shows.
"""

from __future__ import annotations

import base64
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polar.scripted.app import running
from polar.scripted.drift import Drift
from polar.scripted.engine import Engine as ScriptedEngine
from polar.scripted.replay import experts_of, mask_of
from polar.scripted.scripts import Script, ScriptTurn, Variant
from proxy.blob_writer import Batch, BlobWriter
from proxy.capture import CallSpec, answered_record
from proxy.chat import Answer, ChatRequest, Message
from proxy.engines import vllm_replay
from proxy.engines.pool import Engines
from proxy.engines.vllm_tokens import GENERATE, RENDER, VllmTokens
from proxy.errors import EngineError
from proxy.metrics import ProxyMetrics
from proxy.replay_store import ReplayStore
from proxy.session.claim_state import ClaimState
from proxy.session.logged_calls import LoggedCall
from tests.proxy.engines.recorded import served, started
from tests.proxy.engines.test_vllm_tokens import RENDERED, Server, generated
from topics.environment.blobs import FolderBlobs
from topics.environment.keys import KeyClaims
from topics.environment.settings import EngineSettings
from topics.types.completion import Completion, ReplayField, Sampling
from topics.types.errors import InputError
from topics.types.replay import decode_experts, decode_mask
from topics.types.tokens import unpack_ids

BOTH: frozenset[ReplayField] = frozenset({"routed_experts", "sampling_mask"})
SAMPLING = Sampling(temperature=1.0, top_p=0.9, top_k=20)
VOCABULARY = ScriptedEngine().tokenizer.size
SAID = tuple(ScriptTurn(f"This is the answer of turn {n}.", f"What was asked in turn {n}?") for n in range(4))


class Talk:
    """A claim that asks one engine turn after turn, and its records."""

    def __init__(self, engine: VllmTokens, folder: Path, sampling: Sampling = SAMPLING) -> None:
        self.engine = engine
        self.sampling = sampling
        self.blobs = FolderBlobs(folder)
        self.metrics = ProxyMetrics()
        self.store = ReplayStore(BlobWriter(self.blobs), self.metrics)
        self.claim = ClaimState(KeyClaims("t.0", 1, "c1", issued_at=0, expires_at=2**31, namespace="polar"))
        self.messages: list[Message] = []
        self.records: list[Completion] = []
        self.tokens: list[list[int]] = []
        """Of each call: prompt and sampled tokens."""

    async def say(self, words: str) -> Answer:
        self.messages.append(Message("user", words))
        request, transcript = self.claim.restore(ChatRequest(self.messages, sampling=self.sampling), "default")
        spec = CallSpec(f"c{len(self.records)}", self.claim, "openai_chat", "default", request, transcript, 0.0)
        answer = await self.store.stored(spec.call_id, await self.engine.complete(request, "t.0"), Batch())
        record = answered_record(spec, answer)
        self.claim.add(LoggedCall(record, request.messages, transcript, answer.message), answer.prompt_ids)
        self.messages.append(answer.message)
        self.records.append(record)
        self.tokens.append([*unpack_ids(answer.prompt_ids).tolist(), *unpack_ids(answer.sampled_ids).tolist()])
        return answer


@asynccontextmanager
async def talking(
    scripted: ScriptedEngine, folder: Path, capture: frozenset[ReplayField] = BOTH
) -> AsyncIterator[Talk]:
    async with (
        running(scripted) as url,
        started(VllmTokens(url, "polar-scripted", logprobs_mode="processed", capture=capture)) as engine,
    ):
        talk = Talk(engine, folder)
        yield talk


def returning(returns: frozenset[ReplayField] = BOTH) -> ScriptedEngine:
    return ScriptedEngine([Script("s", "", (Variant(SAID),))], drifts=frozenset(Drift), returns=returns)


async def test_a_call_stores_the_rows_that_the_calls_before_have_not(tmp_path: Path) -> None:
    async with talking(returning(), tmp_path) as talk:
        for turn in range(3):
            await talk.say(f"turn {turn}")
    for index, (record, tokens) in enumerate(zip(talk.records, talk.tokens, strict=True)):
        assert record.routed_experts is not None
        assert record.sampling_mask is not None
        experts = decode_experts(talk.blobs.get(record.routed_experts))
        before = len(talk.tokens[index - 1]) - 1 if index else 0
        assert (experts.start, experts.base) == (before, f"c{index - 1}" if index else None)
        assert np.array_equal(experts.experts, experts_of(tokens[before:-1], before))
        sampled = unpack_ids(record.sampled).tolist()
        mask = decode_mask(talk.blobs.get(record.sampling_mask))
        assert [mask.at(n).tolist() for n in range(len(mask))] == [mask_of(one, 20, VOCABULARY) for one in sampled]
        assert record.uncaptured == {}


async def test_an_edited_history_begins_anew(tmp_path: Path) -> None:
    """Its prompt doesn't repeat the tokens of a call, so no call has its first rows."""
    async with talking(returning(), tmp_path) as talk:
        await talk.say("one")
        talk.messages[-1] = Message("assistant", "Something else.")
        await talk.say("two")
    experts = decode_experts(talk.blobs.get(str(talk.records[1].routed_experts)))
    assert (experts.start, experts.base) == (0, None)
    assert np.array_equal(experts.experts, experts_of(talk.tokens[1][:-1]))


async def test_after_a_call_without_experts_all_rows_are_requested(tmp_path: Path) -> None:
    async with talking(returning(), tmp_path) as talk:
        (tmp_path / "file").touch()
        talk.store = ReplayStore(BlobWriter(FolderBlobs(tmp_path / "file")), talk.metrics)
        await talk.say("one")
        talk.store = ReplayStore(BlobWriter(talk.blobs), talk.metrics)
        await talk.say("two")
    assert talk.records[0].uncaptured == {"routed_experts": "unstored", "sampling_mask": "unstored"}
    assert (talk.records[0].routed_experts, talk.records[0].sampling_mask) == (None, None)
    assert talk.metrics.uncaptured.labels("routed_experts", "unstored")._value.get() == 1
    assert decode_experts(talk.blobs.get(str(talk.records[1].routed_experts))).start == 0


async def test_a_server_that_returns_nothing_costs_no_call(tmp_path: Path) -> None:
    async with talking(returning(frozenset()), tmp_path) as talk:
        await talk.say("one")
    assert talk.records[0].uncaptured == {"routed_experts": "missing", "sampling_mask": "missing"}


async def test_without_the_setting_nothing_is_captured(tmp_path: Path) -> None:
    async with talking(returning(), tmp_path, frozenset()) as talk:
        answer = await talk.say("one")
    assert (answer.stored, answer.uncaptured) == ({}, {})
    assert not list(tmp_path.rglob("??/*"))


async def test_rows_beyond_the_limit_are_not_even_requested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that is larger than the largest body would fail the call."""
    scripted = returning()
    async with talking(scripted, tmp_path) as talk:
        monkeypatch.setattr(vllm_replay, "CALL_BYTES", 2_000)
        await talk.say("a prompt that is longer than the answer: " + "word " * 400)
        monkeypatch.undo()
        await talk.say("two")
    assert talk.records[0].uncaptured == {"routed_experts": "too_large"}
    assert talk.records[0].sampling_mask is not None
    first = next(iter(scripted.record.calls()))
    assert first.parameters["sampling_params"]["routed_experts_prompt_start"] == len(first.prompt_token_ids)
    assert decode_experts(talk.blobs.get(str(talk.records[1].routed_experts))).start == 0


def npy(array: Any) -> str:
    file = io.BytesIO()
    np.save(file, array)
    return base64.b64encode(file.getvalue()).decode()


MASK = [[5, 9], [6], [1, 7]]


@pytest.mark.parametrize(
    ("experts", "mask", "lost"),
    [
        (npy(np.zeros((5, 2, 2), np.uint8)), MASK, {}),
        (npy(np.zeros((6, 2, 2), np.uint8)), MASK, {"routed_experts": "malformed"}),
        (npy(np.zeros((5, 2), np.uint8)), MASK, {"routed_experts": "malformed"}),
        (npy(np.zeros((5, 2, 2), np.float32)), MASK, {"routed_experts": "malformed"}),
        (npy(np.zeros((5, 2, 2), np.uint8))[:-8], MASK, {"routed_experts": "malformed"}),
        ("no base64!", MASK, {"routed_experts": "malformed"}),
        (base64.b64encode(b"no array").decode(), MASK, {"routed_experts": "malformed"}),
        ([[1]], MASK, {"routed_experts": "malformed"}),
        (None, MASK, {"routed_experts": "missing"}),
        (npy(np.zeros((5, 2, 2), np.uint8)), MASK[:2], {"sampling_mask": "malformed"}),
        (npy(np.zeros((5, 2, 2), np.uint8)), [[5], [6], [8]], {"sampling_mask": "malformed"}),
        (npy(np.zeros((5, 2, 2), np.uint8)), [[5], [6], [7, 2**40]], {"sampling_mask": "malformed"}),
        (npy(np.zeros((5, 2, 2), np.uint8)), "none", {"sampling_mask": "malformed"}),
    ],
)
async def test_what_is_not_as_it_should_be_is_left_out(
    experts: object, mask: object, lost: dict[str, str], tmp_path: Path
) -> None:
    """Three prompt tokens and three sampled ones: five rows."""
    rendered = RENDERED | {"sampling_params": {"top_k": 4}}
    server = Server(**{RENDER: rendered}, **generated(routed_experts=experts, sampling_mask=mask))
    store = ReplayStore(BlobWriter(FolderBlobs(tmp_path)), ProxyMetrics())
    async with served(server.answer, lambda url: VllmTokens(url, "m", capture=BOTH)) as engine:
        answer = await store.stored("c", await engine.complete(ChatRequest([Message("user", "hi")]), "t.0"), Batch())
    assert answer.uncaptured == lost
    assert set(answer.stored) == BOTH - set(lost)


@pytest.mark.parametrize("params", [{}, {"top_k": 0}, {"top_k": -1}, {"top_k": 4, "temperature": 0.0}])
async def test_sampling_that_the_server_has_no_masks_of_is_refused_with_the_way_out(params: dict[str, Any]) -> None:
    """vLLM answers 500 without a word, which would be retried."""
    server = Server(**{RENDER: RENDERED | {"sampling_params": params}})
    async with served(server.answer, lambda url: VllmTokens(url, "m", capture=BOTH)) as engine:
        with pytest.raises(EngineError, match="set them in the task") as refused:
            await engine.complete(ChatRequest([Message("user", "hi")]), "t.0")
    assert (refused.value.code, refused.value.retryable) == ("refused", False)
    assert GENERATE not in server.asked


@pytest.mark.parametrize("mode", ["chat", "sglang_tokens"])
def test_a_mode_that_can_not_capture_is_refused(mode: str) -> None:
    settings = EngineSettings(urls=("http://e",), model="m", mode=mode, capture=BOTH)
    with pytest.raises(InputError, match=r"engines\.a\.capture: mode .* can't return routed_experts, sampling_mask"):
        Engines.of({"a": settings})


def test_an_unknown_value_to_capture_is_refused() -> None:
    with pytest.raises(ValueError, match="routed_experts"):
        EngineSettings.model_validate({"urls": ["http://e"], "capture": ["logits"]})
