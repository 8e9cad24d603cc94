"""A session to evaluate, in a cell."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumers.evaluators.base import Case
from consumers.runtimes.base import Runtime, RuntimeBackend
from topics.environment import registry
from topics.types.session import Status


@pytest.fixture(params=["cell"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> RuntimeBackend:
    """Where evaluations run by default; a test names another."""
    made: RuntimeBackend = registry.load(registry.Kind.RUNTIME, request.param)(tmp_path / "runtimes")
    return made


@pytest.fixture
def case(runtime: Runtime) -> Case:
    return Case(runtime, "task.0", Status.COMPLETED, 0, None, {"GREETING": "hi"})
