"""The rewards of sessions on a worker whose disk is full: a real worker in this process, and a disk of 256 MB for its data alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from consumers.metrics import Metrics
from tests.consumers.stages.coordinating import ALL, PATIENCE_S, coordinating, settings_for, shell, ticket, working
from tests.small_disks import fill, needs_root, small_disk
from tests.uploading import submitted
from tests.waiting import eventually
from topics.environment import blob_store
from topics.environment.settings import Settings
from topics.events import Claimed, Evaluated, InitFinished, RunFinished
from topics.types.errors import Kind
from topics.types.session import Stage, Status

pytestmark = [pytest.mark.contract, needs_root]


def actions(lines: list[Any]) -> list[str]:
    return [line["action"] for line in lines]


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
    blobs = blob_store.of(small)
    fills = "head -c 1G /dev/zero >big; sleep 600"
    greedy = submitted(shell("greedy", fills, runtime=runtime | prepare, evaluator=TESTS), blobs)
    modest = submitted(shell("modest", "echo >made", runtime=runtime, evaluator=TESTS), blobs)
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


async def test_an_evaluation_on_a_disk_that_the_host_filled_waits_for_room_within_its_budget(
    small: Settings, tmp_path: Path
) -> None:
    """So tries that a full disk costs are not spent within seconds. With room the next one counts."""
    (tmp_path / "given").write_text("given")
    upload = [{"type": "upload_file", "source": str(tmp_path / "given"), "target": "tests/given"}]
    task = shell("fair", "echo >made", runtime={"backend": "cell", "eval_prepare": upload}, evaluator=TESTS)
    task = submitted(task, blob_store.of(small))
    with capture_logs() as lines:
        async with coordinating(small) as played, working(small, ALL):
            runtime, ran = await played.run(task)
            assert ran.status is Status.COMPLETED
            past: dict[str, Any] = {"runtime": runtime, "status": ran.status, "exit_code": 0}
            fill(small.data / "logs of the host")
            await played.granted(ticket(task, Stage.EVALUATE, budget_s=3.0, **past))
            fact = await played.fact(Evaluated, "fair.0")
            assert fact.reward is None
            assert fact.error is not None
            assert (fact.error.kind, fact.error.code, fact.error.retryable) == (Kind.INFRA, "host_disk_full", True)
            assert str(small.data) in fact.error.message
            assert fact.duration_ms >= 2900
            await played.granted(ticket(task, Stage.EVALUATE, budget_s=PATIENCE_S, **past))
            await eventually(lambda: len([a for a in actions(lines) if a == "evaluation.no_room"]) == 2, PATIENCE_S)
            (small.data / "logs of the host").unlink()
            fact = await played.fact(Evaluated, "fair.0", 1)
            assert fact.error is not None
            assert fact.error.code == "host_disk_full"
            await played.granted(ticket(task, Stage.EVALUATE, **past))
            assert (await played.fact(Evaluated, "fair.0", 2)).reward == 1.0


async def test_no_session_begins_on_a_disk_without_its_reserve_and_with_room_it_does(small: Settings) -> None:
    task = shell("new", "echo >made", runtime={"backend": "cell"})
    ballast = small.data / "logs of the host"
    metrics = Metrics()
    with capture_logs() as lines:
        async with coordinating(small) as played, working(small, ALL, metrics=metrics):
            await played.partition(Stage.INIT)
            assert played.beats[-1].obstacle == ""
            fill(ballast)
            short = await eventually(lambda: played.beats[-1] if played.beats[-1].obstacle else None, PATIENCE_S)
            assert {slots.stage: slots.free for slots in short.stages} == {
                Stage.INIT: 0,
                Stage.RUN: 2,
                Stage.EVALUATE: 2,
            }
            assert f"the disk of {small.data} has less than" in short.obstacle
            assert "polar_worker_disk_short 1.0" in metrics.text().decode()
            # A ticket that a coordinator sent before it knew, or that waits for another worker.
            await played.release(ticket(task, Stage.INIT))
            seen = len(played.beats)
            await eventually(lambda: len(played.beats) >= seen + 2, PATIENCE_S)
            assert not played.of(Claimed, "new.0")
            ballast.unlink()
            await played.grant(await played.fact(Claimed, "new.0"))
            assert (await played.fact(InitFinished, "new.0")).error is None
            assert played.beats[-1].obstacle == ""
            assert "polar_worker_disk_short 0.0" in metrics.text().decode()
    assert [action for action in actions(lines) if action.startswith("worker.disk")] == [
        "worker.disk_short",
        "worker.disk_recovered",
    ]
