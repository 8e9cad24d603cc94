"""Chat clients and a model that thinks in every turn: its reasoning stays in the conversation, and all that it sampled is trained.

The API of Chat Completions has no field for reasoning, so most of these clients omit it; the proxy puts it back (`proxy/session/turns.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.acceptance.up.running import STOP_S, Up
from tests.clients.test_matrix import engine_calls, worked
from tests.clients.trials import TRIALS, Trial

pytestmark = [pytest.mark.clients, pytest.mark.timeout(1200)]

REWRITING = {
    "aider": "root",
    "smolagents": "edited_history",
}
"""Clients that rewrite what they have sent before, and why each of their later calls is a trace of its own."""


def thinking(trial: Trial) -> Trial:
    turns = [{**turn, "reasoning": f"Thought {number} of this work."} for number, turn in enumerate(trial.turns)]
    return replace(trial, turns=turns)


CHAT = [thinking(trial) for trial in TRIALS if trial.dialect == "openai_chat"]


@pytest.fixture(scope="module", params=["chat", "tokens"])
def thinker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A whole system with the model, whose proxy works in this mode."""
    folder = tmp_path_factory.mktemp("thinking")
    (folder / "scripts.yaml").write_text("\n---\n".join(json.dumps(trial.script) for trial in CHAT))
    running = Up(folder, "--scripts", str(folder / "scripts.yaml"), "--mode", request.param)
    try:
        yield running
    finally:
        running.process.terminate()
        running.process.wait(STOP_S)


@pytest.mark.parametrize("trial", CHAT, ids=str)
def test_what_a_model_thought_is_trained_with_what_it_said(
    trial: Trial, thinker: Up, tmp_path: Path, newest: bool
) -> None:
    done = worked(trial, thinker, tmp_path, newest=newest)
    main = [each for each in done.trajectory.calls if each.kind == "main"]
    sampled = [call for call in engine_calls(thinker, done.session_id) if "Thought" in call["text"]]
    assert len(main) == len(sampled) == len(trial.turns), done.output
    traces = [trace for trace in done.trajectory.expanded() if trace.trace.kind == "main"]
    assert len(traces) == trial.traces, done.trajectory.stats
    trained = [trace.token_ids[span.start : span.end].tolist() for trace in traces for span in trace.spans]
    assert sorted(trained) == sorted(call["token_ids"] for call in sampled)
    assert {each.branch for each in main[1:]} == {REWRITING.get(trial.name)}
