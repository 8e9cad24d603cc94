"""What a verifier waits for at a server."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from polar.verification import scoring
from polar.verification.scoring import Scorer
from proxy.errors import EngineError
from tests.serving import Answer, serving_by_path


async def test_the_version_of_weights_has_a_deadline_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "VERSION_S", 0.05)
    released = threading.Event()

    def answer(path: str, body: Any) -> Answer:
        released.wait(20)
        return 200, {"weight_version": "1"}

    with serving_by_path(answer) as (url, _):
        scorer = Scorer(url, "m")
        try:
            with pytest.raises(EngineError, match="no whole answer"):
                await scorer.version()
        finally:
            released.set()
            scorer.stop()
