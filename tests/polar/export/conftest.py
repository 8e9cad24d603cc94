"""Sessions of two tasks in a lake, for the forms that other programs show."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.polar.export.talks import turns, write
from topics.environment.settings import Settings
from topics.types.errors import Kind, SessionError
from topics.types.session import Accounting, Status

LOST = SessionError("run", Kind.INFRA, "lost", "its worker died")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder whose lake has four sessions of the run `night`: two with rewards, a failed one, and a cancelled one without calls."""
    folder = tmp_path_factory.mktemp("data")
    accounting = Accounting(init_ms=2000, run_ms=10_000, evaluate_ms=3000)
    talks = [
        turns("a.0", reward=1.0, num_samples=2, run="night", accounting=accounting, reward_reason="3 of 3 tests"),
        turns("a.1", reward=0.0, num_samples=2, run="night", first=200),
        turns("b.0", 1, reward=None, num_samples=2, run="night", status=Status.FAILED, error=LOST, first=300),
        turns("b.1", 0, reward=None, num_samples=2, run="night", status=Status.CANCELLED),
    ]
    write(Settings(data=folder), talks)
    return folder
