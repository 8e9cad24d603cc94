"""Where sessions of the tasks in examples/swe run."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumers.runtimes.base import RuntimeBackend
from topics.environment import registry


@pytest.fixture
def backend(tmp_path: Path) -> RuntimeBackend:
    """Cells, the default of tasks."""
    made: RuntimeBackend = registry.load(registry.Kind.RUNTIME, "cell")(tmp_path / "runtimes")
    return made
