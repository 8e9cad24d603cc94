"""The budget for asking an engine again."""

from __future__ import annotations

import asyncio

import pytest

from proxy.chat import Answer, Message, Usage
from proxy.engines import retry
from proxy.engines.retry import with_retries
from proxy.errors import EngineError

ANSWER = Answer(Message("assistant", "x"), "stop", Usage(1, 1), b"", b"", b"", "m")


class Attempts:
    """An engine that fails with these, in order, and then answers."""

    def __init__(self, *faults: EngineError) -> None:
        self._faults = list(faults)
        self.made = 0

    async def __call__(self) -> Answer:
        self.made += 1
        if self._faults:
            raise self._faults.pop(0)
        return ANSWER


def fault(*, retryable: bool = True, retry_after_s: int | None = None) -> EngineError:
    return EngineError("server_error", "x", status=500, retryable=retryable, retry_after_s=retry_after_s)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "PAUSES_S", (0.0, 0.0))


async def test_two_faults_are_ridden_out_and_a_third_is_told() -> None:
    assert await with_retries(Attempts(fault(), fault())) is ANSWER
    attempts = Attempts(fault(), fault(), fault())
    with pytest.raises(EngineError):
        await with_retries(attempts)
    assert attempts.made == 3


async def test_what_would_fail_again_is_asked_once() -> None:
    attempts = Attempts(fault(retryable=False))
    with pytest.raises(EngineError):
        await with_retries(attempts)
    assert attempts.made == 1


async def test_an_engine_that_names_a_time_beyond_the_budget_is_not_waited_for() -> None:
    attempts = Attempts(fault(retry_after_s=31))
    with pytest.raises(EngineError):
        await asyncio.wait_for(with_retries(attempts), 1.0)
    assert attempts.made == 1


async def test_the_engines_own_time_is_kept() -> None:
    began = asyncio.get_running_loop().time()
    await with_retries(Attempts(fault(retry_after_s=1)))
    assert asyncio.get_running_loop().time() - began >= 1.0
