"""What drift costs, and that mode tokens costs none of it: the same long conversations twice, on a server whose template and parser drift.

Real: the server, its weights, its template (earlier turns lose their reasoning, arguments are written anew) and parsers, Kafka, proxy,
builder. The model is tiny, thinks a sentence before each turn and calls tools; its words aren't always cut as its tokenizer cuts them.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.vllm_cpu.serve import FLAGS, PYTHON, Server, serving
from polar.sessions import Session
from tests.acceptance.up.running import Up
from tests.vllm import conftest
from tests.vllm.long_talks import WORDS, talk
from tests.vllm.scoring import Agreement, scores
from tests.vllm.test_faithful import trace_of
from tests.vllm.thinking import drifting
from tests.vllm.work import Work

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(2400)]

THINKING = ("tests.vllm.thinking", Path(__file__).with_name("thinking.py"))
TURNS = 30
SESSIONS = 2
"""Of each dialect."""
ANSWER_S = 60.0
ARGUMENTS = '"arguments": '
INVALID = "\ufffd"
"""What bytes that are no UTF-8 are decoded to: their text says nothing of how they were cut."""


@dataclass(frozen=True)
class Outcome:
    """What came of one mode's conversations: a line of `polar trajectories --format jsonl` for each."""

    lines: list[dict[str, Any]]
    answers: dict[str, int]
    """That each session's conversation had."""

    @property
    def traces(self) -> list[dict[str, Any]]:
        return [trace for line in self.lines for trace in line["traces"]]

    def total(self, field: str) -> int:
        return sum(line["stats"].get(field, 0) for line in self.lines)

    def counted(self, field: str) -> dict[str, int]:
        """Counts by reason, of all."""
        reasons = sorted({reason for line in self.lines for reason in line["stats"].get(field, {})})
        return {reason: sum(line["stats"].get(field, {}).get(reason, 0) for line in self.lines) for reason in reasons}

    def __str__(self) -> str:
        rows = sum(len(trace["token_ids"]) for trace in self.traces)
        return (
            f"{len(self.lines)} conversations of up to {TURNS} answers: {len(self.traces)} traces, {rows} tokens in rows for "
            f"{self.total('tokens')} of their own, {self.total('trainable_tokens')} of {self.total('sampled_tokens')} "
            f"sampled tokens trainable; branches {self.counted('branches')}, drift {self.counted('drift')}, "
            f"masked {self.counted('masked_tokens')}"
        )


@pytest.fixture(scope="module")
def drifting_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of the thinking model with the drifting template."""
    assert PYTHON.exists(), f"no vLLM at {PYTHON}: make vllm"
    folder, model = tmp_path_factory.mktemp("drifting"), conftest.tiny_model(*THINKING)
    template = folder / "drifting.jinja"
    template.write_text(drifting((model / "chat_template.jinja").read_text()))
    flags = [*FLAGS, "--chat-template", str(template), "--reasoning-parser", "deepseek_r1"]
    with serving(model, log=folder / "server.log", flags=flags) as server:
        yield server


@pytest.fixture(scope="module")
def outcomes(drifting_server: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """By mode."""
    return {mode: _outcome(drifting_server, mode, tmp_path_factory.mktemp(mode)) for mode in ("tokens", "chat")}


def _outcome(server: Server, mode: str, folder: Path) -> Outcome:
    up = Up(folder, "--engine", server.url, "--mode", mode)
    try:

        def work(dialect: str, seed: int) -> tuple[str, int]:
            with Session.open(up.data, ttl_s=600) as session:
                return session.session_id, talk(session.env, dialect, Work(seed), TURNS)

        with ThreadPoolExecutor() as pool:
            working = [pool.submit(work, dialect, seed) for dialect in WORDS for seed in range(SESSIONS)]
            answers = dict(each.result() for each in working)
        lines = up.polar("trajectories", "--format", "jsonl").stdout.splitlines()
    finally:
        up.process.terminate()
        up.process.wait()
    return Outcome([json.loads(line) for line in lines], answers)


def test_in_tokens_mode_a_conversation_is_one_trace_and_all_its_tokens_train(
    outcomes: dict[str, Outcome], capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = outcomes["tokens"]
    with capsys.disabled():
        print(f"\n  tokens: {outcome}")
    assert len(outcome.answers) == len(WORDS) * SESSIONS
    assert list(outcome.answers.values()).count(TURNS) > len(outcome.answers) / 2
    calls = {line["session_id"]: [len(trace["calls"]) for trace in line["traces"]] for line in outcome.lines}
    assert calls == {session_id: [answers] for session_id, answers in outcome.answers.items()}
    assert outcome.total("trainable_tokens") == outcome.total("sampled_tokens") > 0


def test_each_kind_of_drift_was_there(
    drifting_server: Server, outcomes: dict[str, Outcome], capsys: pytest.CaptureFixture[str]
) -> None:
    """Else one trace a conversation says nothing: what was sampled is cut otherwise, thought, and spelled as the template doesn't."""
    outcome = outcomes["tokens"]
    answers = [trace["token_ids"][call["start"] : call["end"]] for trace in outcome.traces for call in trace["calls"]]
    texts = [_detokenized(drifting_server, ids) for ids in answers]
    cut_otherwise = [
        ids
        for ids, text in zip(answers, texts, strict=True)
        if INVALID not in text and _tokenized(drifting_server, text) != ids
    ]
    # After `"arguments": `, which the template writes with its blank, too.
    spelled = [text for text in texts if '": ' in text.partition(ARGUMENTS)[2]]
    thinking = [text for text in texts if "</think>" in text]
    realigned = outcome.counted("drift").get("realign", 0)
    with capsys.disabled():
        print(
            f"\n  tokens: of {len(answers)} answers {len(cut_otherwise)} are cut as the tokenizer doesn't, {len(thinking)} think, "
            f"{len(spelled)} call with blanks; {realigned} prompts realigned"
        )
    assert cut_otherwise
    assert thinking
    assert spelled
    assert realigned > 0


def _detokenized(server: Server, ids: list[int]) -> str:
    text: str = _asked(server, "/detokenize", {"tokens": ids})["prompt"]
    return text


def _tokenized(server: Server, text: str) -> list[int]:
    found: list[int] = _asked(server, "/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]
    return found


def _asked(server: Server, route: str, body: dict[str, Any]) -> dict[str, Any]:
    payload = json.dumps({"model": server.model, **body}).encode()
    request = urllib.request.Request(server.url + route, payload, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=ANSWER_S) as response:
        found: dict[str, Any] = json.load(response)
    return found


def test_in_chat_mode_the_same_conversations_fork(
    outcomes: dict[str, Outcome], capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = outcomes["chat"]
    with capsys.disabled():
        print(f"\n  chat: {outcome}")
    assert len(outcome.lines) == len(WORDS) * SESSIONS
    assert len(outcome.traces) > 10 * len(outcome.lines)


def test_what_stands_as_it_was_sampled_was_sampled_there(
    drifting_server: Server, outcomes: dict[str, Outcome], capsys: pytest.CaptureFixture[str]
) -> None:
    """vLLM scores the long traces again: each trained token under its very prefix."""
    traces = [trace_of(trace) for trace in outcomes["tokens"].traces]
    found = [trace.deltas(scores(drifting_server, trace.token_ids)) for trace in traces]
    agreement = Agreement.of(np.concatenate(found))
    with capsys.disabled():
        print(f"\n  tokens, scored again: {agreement}")
    assert agreement.is_faithful
