"""A session to evaluate."""

from __future__ import annotations

import pytest

from consumers.evaluators.base import Case
from consumers.runtimes.process import ProcessRuntime
from topics.types.session import Status


@pytest.fixture
def case(runtime: ProcessRuntime) -> Case:
    return Case(runtime, "task.0", Status.COMPLETED, 0, None, {"GREETING": "hi"})
