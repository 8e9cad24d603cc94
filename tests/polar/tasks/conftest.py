"""Names that `make install` registers."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from topics.environment import registry


@pytest.fixture
def swebench_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The evaluator's name is known, also before the next `make install`."""
    point = EntryPoint("swebench", "consumers.evaluators.swebench:SweBench", "polar.evaluator")
    monkeypatch.setitem(registry._installed(registry.Kind.EVALUATOR), "swebench", point)
