"""INIT ends when the health check of its task has succeeded, or with an error that another attempt may not meet."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from consumers.stages.claim_runner import Claim, outcome
from consumers.stages.init import Init
from consumers.stages.worker_context import WorkerContext
from topics.environment.settings import Settings
from topics.events import InitFinished
from topics.stages import Ticket
from topics.types.errors import Kind
from topics.types.session import Stage
from topics.types.task import parse

pytestmark = pytest.mark.contract

COUNTS = "echo x >>tries; test $(wc -l <tries) = "
AT_ONCE = {"interval_s": 0, "start_interval_s": 0}
Made = Callable[..., Awaitable[InitFinished]]


@pytest.fixture
def context(tmp_path: Path) -> WorkerContext:
    return WorkerContext(Settings(data=tmp_path / "data"), lambda: True, lambda: None)


@pytest.fixture
def made(context: WorkerContext) -> Made:
    """The fact of an INIT with a health check."""

    async def make(budget_s: float = 60.0, **check: Any) -> InitFinished:
        task = parse(
            {
                "task_id": "t",
                "instruction": "",
                "agent": {"harness": "shell", "custom_shell": {"command": "true"}},
                "runtime": {
                    "prepare": [{"type": "exec", "command": "echo prepared >file"}],
                    "healthcheck": AT_ONCE | check,
                },
            }
        )
        ticket = Ticket("t.0", sample_index=0, attempt=1, stage=Stage.INIT, budget_s=budget_s, body=task.canonical())
        claim = Claim(ticket)
        claim.work = Init(context, claim)
        fact = await outcome(claim)
        await claim.work.tidy(fact)
        assert isinstance(fact, InitFinished)
        return fact

    return make


async def test_it_is_tried_after_prepare_until_it_succeeds(made: Made, context: WorkerContext) -> None:
    fact = await made(command=f"grep prepared file && {COUNTS} 3")
    assert fact.error is None
    assert fact.runtime is not None
    await context.backend("cell").remove(fact.runtime)


@pytest.mark.parametrize(
    ("check", "words"),
    [
        ({"command": f"{COUNTS} 3; echo said; exit 4", "retries": 2}, "failed 2 times; .* ended with exit code 4"),
        ({"command": "sleep 60", "retries": 1, "timeout_s": 0.5}, "took longer than 0.5 s"),
    ],
)
async def test_after_its_retries_the_attempt_has_failed_and_nothing_is_left(
    made: Made, context: WorkerContext, check: dict[str, Any], words: str
) -> None:
    fact = await made(**check)
    assert fact.error is not None
    assert (fact.error.kind, fact.error.code, fact.error.retryable) == (Kind.INFRA, "unhealthy", True)
    assert re.search(words, fact.error.message)
    assert await context.backend("cell").labelled() == []


async def test_failures_in_the_start_period_do_not_count(made: Made, context: WorkerContext) -> None:
    fact = await made(command=f"{COUNTS} 4", retries=1, start_period_s=3600)
    assert fact.error is None
    assert fact.runtime is not None
    await context.backend("cell").remove(fact.runtime)


async def test_the_budget_of_init_bounds_it(made: Made) -> None:
    fact = await made(budget_s=1.0, command="false", start_period_s=3600, start_interval_s=3600)
    assert fact.error is not None
    assert (fact.error.kind, fact.error.code) == (Kind.INFRA, "timeout")
