"""Scripts of the engine, and the checks that the official clients' tests share."""

from __future__ import annotations

from itertools import pairwise

import pytest

from polar.scripted.engine import Engine as ScriptedEngine
from polar.scripted.scripts import Script, ScriptTurn, Variant


def script(name: str, *turns: ScriptTurn) -> Script:
    """A script for conversations that contain its name."""
    return Script(name, name, (Variant(turns),))


def check_growth(engine: ScriptedEngine, first: int = 0) -> None:
    """From call `first` of session t.0 on, each prompt is the one before it, what was sampled, and more."""
    calls = engine.record.calls("t.0")[first:]
    assert len(calls) > 1
    for before, after in pairwise(calls):
        whole = before.prompt_token_ids + before.token_ids
        assert after.prompt_token_ids[: len(whole)] == whole


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams open at once, and the engine isn't asked again."""
    monkeypatch.setattr("proxy.streaming.QUIET_S", 0.02)
    monkeypatch.setattr("proxy.engines.retry.PAUSES_S", ())
