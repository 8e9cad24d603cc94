"""The rewards of sessions on a worker whose disk is full: a real worker in this process, and a disk of 256 MB for its data alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.consumers.stages.coordinating import ALL, PATIENCE_S, coordinating, settings_for, shell, ticket, working
from tests.small_disks import fill, needs_root, small_disk
from tests.waiting import eventually
from topics.environment.settings import Settings
from topics.events import Evaluated, InitFinished, RunFinished
from topics.types.errors import Kind
from topics.types.session import Stage, Status

pytestmark = [pytest.mark.contract, needs_root]

TESTS = {"strategy": "test_on_output", "config": {"test_command": "cat tests/given made"}}


@pytest.fixture
def small(kafka: str, namespace: str, tmp_path: Path, proxy_url: str) -> Iterator[Settings]:
    """The settings of a worker with a small disk."""
    with small_disk(tmp_path / "disk", 256) as disk:
        yield settings_for(kafka, namespace, disk, proxy_url)


async def test_a_run_that_fills_the_disk_is_worth_0_and_then_others_go_on(small: Settings, tmp_path: Path) -> None:
    (tmp_path / "given").write_text("given")
    upload = [{"type": "upload_file", "source": str(tmp_path / "given"), "target": "tests/given"}]
    runtime = {"backend": "cell", "eval_prepare": upload}
    prepare = {"prepare": [{"type": "exec", "command": "head -c 20M /dev/zero >~/prepared"}]}
    greedy = shell("greedy", "head -c 1G /dev/zero >big; sleep 600", runtime=runtime | prepare, evaluator=TESTS)
    modest = shell("modest", "echo >made", runtime=runtime, evaluator=TESTS)
    async with coordinating(small) as played, working(small, ALL):
        fact = await played.evaluated(greedy)
        assert (fact.reward, fact.error) == (0.0, None)
        assert "the worker's disk is almost full" in (fact.reason or "")
        run = (await played.fact(RunFinished, "greedy.0")).error
        assert run is not None
        assert (run.kind, run.code) == (Kind.AGENT, "limit_exceeded")
        made = await played.fact(InitFinished, "greedy.0")
        assert made.runtime is not None
        await played.discard("greedy.0", made.runtime)
        await eventually(
            lambda: not (small.data / "runtimes" / small.namespace / "cell" / made.claim_id).exists(), PATIENCE_S
        )
        assert (await played.evaluated(modest)).reward == 1.0


async def test_a_disk_that_the_host_filled_is_tried_again_and_no_verdict(small: Settings, tmp_path: Path) -> None:
    (tmp_path / "given").write_text("given")
    upload = [{"type": "upload_file", "source": str(tmp_path / "given"), "target": "tests/given"}]
    task = shell("fair", "echo >made", runtime={"backend": "cell", "eval_prepare": upload}, evaluator=TESTS)
    async with coordinating(small) as played, working(small, ALL):
        runtime, ran = await played.run(task)
        assert ran.status is Status.COMPLETED
        fill(small.data / "logs of the host")
        evaluation = ticket(task, Stage.EVALUATE, runtime=runtime, status=ran.status, exit_code=0)
        await played.granted(evaluation)
        fact = await played.fact(Evaluated, "fair.0")
        assert fact.reward is None
        assert fact.error is not None
        assert (fact.error.kind, fact.error.code, fact.error.retryable) == (Kind.INFRA, "host_disk_full", True)
        assert str(small.data) in fact.error.message
        (small.data / "logs of the host").unlink()
        await played.granted(evaluation)
        assert (await played.fact(Evaluated, "fair.0", 1)).reward == 1.0
