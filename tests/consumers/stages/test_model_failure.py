"""What a run worker makes of a proxy's answer about its harness's last call. The real proxy's answers: tests/proxy/test_last_call.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from consumers.stages import model_failure as asking
from consumers.stages.model_failure import model_failure
from tests.serving import Answer, serving

FAILED: Answer = (200, {"failure": {"code": "server_error", "message": "CUDA error"}})
OVERLOADED: Answer = (200, {"failure": {"code": "overloaded", "message": "no room", "status": 503}})
MOVED: Answer = (200, {"moved": True})
BUSY: Answer = (503, {})


@pytest.mark.parametrize(
    ("answers", "exit_code", "blames"),
    [
        pytest.param([(200, {})], 1, None, id="answered"),
        pytest.param([FAILED], 1, "server_error", id="failed"),
        pytest.param([FAILED], 0, "server_error", id="failed, and the harness reports success"),
        pytest.param([FAILED], None, "server_error", id="failed, and the harness's time was over"),
        pytest.param([OVERLOADED], 1, "(overloaded, HTTP status 503): no room", id="the engine's status is named"),
        pytest.param([MOVED], 1, "proxy was replaced", id="moved"),
        pytest.param([MOVED], 0, None, id="moved after a harness that was done"),
        pytest.param([MOVED], None, None, id="moved, and the harness's time was over"),
        pytest.param([(409, {})], 1, None, id="the key is closed"),
        pytest.param([(401, {})], 1, "POLAR_KEYS_FILE", id="another fleet's proxy"),
        pytest.param([BUSY, (429, {}), (200, b"{"), FAILED], 1, "server_error", id="asked until there is an answer"),
        pytest.param([BUSY, FAILED], 0, None, id="a harness that was done isn't asked about twice"),
    ],
)
async def test_a_harness_is_excused_by_a_failure_of_ours_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, answers: list[Answer], exit_code: int | None, blames: str | None
) -> None:
    monkeypatch.setattr(asking, "PAUSE_S", 0.01)
    left: Iterator[Answer] = iter(answers)
    with serving(lambda _: next(left)) as (url, _):
        failure = await model_failure(url, "sk-polar-x", exit_code)
    assert failure is None if blames is None else failure is not None and blames in failure


@pytest.mark.parametrize(("exit_code", "is_excused"), [(0, False), (1, True), (None, True)])
async def test_where_no_proxy_answers_a_harness_that_failed_is_excused(
    monkeypatch: pytest.MonkeyPatch, exit_code: int | None, is_excused: bool
) -> None:
    monkeypatch.setattr(asking, "PAUSE_S", 0.01)
    monkeypatch.setattr(asking, "ASKING_S", 0.1)
    failure = await model_failure("http://127.0.0.1:9", "sk-polar-x", exit_code)
    assert (failure is not None) == is_excused
