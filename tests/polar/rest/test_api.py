"""The routes over real HTTP and real Kafka, with a stand-in for the coordinator: refused ids, lost trajectories, unknown ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from polar.fleet.fleet import Fleet
from polar.rest.result_log import ResultLog
from polar.rest.service import serve
from polar.rest.task_mapping import request_of
from proxy.addresses import Binding
from tests.polar.coordinator import Coordinator
from tests.serving import free_port
from tests.waiting import eventually
from topics.environment.settings import Settings
from topics.types.session import Phase, SessionState, Stage

SHOWN_S = 60.0
HEADERS = {"Authorization": "Bearer secret"}
METRICS = Binding("127.0.0.1", free_port())


@pytest.fixture
async def rest(settings: Settings, coordinator: Coordinator, tmp_path: Path) -> AsyncIterator[aiohttp.ClientSession]:
    """A client of a running service."""
    token = tmp_path / "token"
    token.write_text("secret")
    stop, url = asyncio.Event(), asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(
        serve(
            settings.model_copy(update={"control_token_file": token}),
            Binding("127.0.0.1", 0),
            advertise=None,
            files=None,
            stop=stop,
            ready=url.set_result,
            metrics_binding=METRICS,
        )
    )
    await asyncio.wait([serving, url], return_when=asyncio.FIRST_COMPLETED)
    async with aiohttp.ClientSession(url.result(), headers=HEADERS) as client:
        yield client
    stop.set()
    await serving


def body(task_id: str, samples: int = 1) -> dict[str, Any]:
    agent = {"harness": "shell", "custom_shell": {"command": "true"}}
    return {"task_id": task_id, "instruction": "i", "num_samples": samples, "agent": agent}


async def answer(rest: aiohttp.ClientSession, method: str, path: str, **more: Any) -> tuple[int, Any]:
    async with rest.request(method, path, **more) as found:
        return found.status, await found.json()


async def test_the_id_of_a_refused_task_is_free_and_its_cancel_ends_no_later_task(
    rest: aiohttp.ClientSession, coordinator: Coordinator
) -> None:
    task = request_of(body("t", 2))

    def submit() -> asyncio.Task[tuple[int, Any]]:
        return asyncio.create_task(answer(rest, "POST", "/rollout/task/submit", json=body("t", 2)))

    async def is_submitted() -> bool:
        status: str | None = (await answer(rest, "GET", "/rollout/task/t"))[1].get("status")
        return status == "running"

    first = submit()
    await eventually(is_submitted, SHOWN_S)
    assert (await answer(rest, "POST", "/rollout/task/submit", json=body("t", 2)))[0] == 409
    await coordinator.refuse(task)
    status, refused = await first
    assert (status, refused["detail"][0]["loc"]) == (422, ["body", "agent", "harness"])
    failed = {
        "task_id": "t", "status": "failed", "total_sessions": 0, "completed_sessions": 0, "results": [], "result_paths": [],
    }  # fmt: skip
    assert await answer(rest, "GET", "/rollout/task/t") == (200, failed)
    assert await answer(rest, "DELETE", "/rollout/task/t") == (200, failed)
    assert await coordinator.cancels_of("t") == 0
    second = submit()
    await eventually(is_submitted, SHOWN_S)
    await coordinator.show(task)
    assert await second == (200, {"task_id": "t", "status": "running"})
    assert (await answer(rest, "DELETE", "/rollout/task/t"))[1]["status"] == "running"
    assert await coordinator.cancels_of("t") == 1
    async with rest.get(f"http://{METRICS.host}:{METRICS.port}/metrics") as response:
        text = await response.text()
    assert 'polar_http_requests_total{role="rest",route="/rollout/task/submit",status="409"} 1.0' in text
    assert 'polar_http_requests_total{role="rest",route="/rollout/task/{task_id}",status="200"}' in text


async def test_a_finished_task_without_its_trajectories_is_gone_and_listed(
    rest: aiohttp.ClientSession, coordinator: Coordinator
) -> None:
    """As after a rebuilt table, the rows don't say how the sessions ended."""
    task = request_of(body("t", 2))
    await coordinator.show(task)
    await coordinator.build("t.0", reward=1.0)
    await coordinator.end(task, 0)

    async def ended() -> list[Any]:
        found: list[Any] = (await answer(rest, "GET", "/rollout/task/t"))[1].get("results")
        return found

    (result,) = await eventually(ended, SHOWN_S)
    assert (result["session_id"], result["status"]) == ("t.0", "COMPLETED")
    await coordinator.end(task, 1)

    async def gone() -> Any:
        status, found = await answer(rest, "GET", "/rollout/task/t")
        return found if status == 410 else None

    expected = {"detail": "1 trajectories of task t are no longer in Kafka; the lake has them"}
    assert await eventually(gone, SHOWN_S) == expected
    status, found = await answer(rest, "GET", "/tasks/t/sessions")
    assert (status, [one["status"] for one in found["sessions"]]) == (200, ["ERROR", "ERROR"])
    assert all(one["error"].startswith("unknown: ") for one in found["sessions"])
    status, found = await answer(rest, "GET", "/tasks")
    assert (status, found["tasks"][0]["status"], found["tasks"][0]["errored_sessions"]) == (200, "completed", 2)
    # A finished task is left as it is.
    assert await answer(rest, "DELETE", "/rollout/task/t") == (410, expected)


async def test_a_running_task_lacks_results_that_are_gone(
    rest: aiohttp.ClientSession, coordinator: Coordinator
) -> None:
    task = request_of(body("t", 2))
    await coordinator.show(task)
    await coordinator.end(task, 0)

    async def shown() -> bool:
        status, found = await answer(rest, "GET", "/tasks/t/sessions")
        return status == 200 and bool(found["sessions"])

    await eventually(shown, SHOWN_S)
    status, found = await answer(rest, "GET", "/rollout/task/t")
    assert (status, found["status"], found["completed_sessions"], found["results"]) == (200, "running", 0, [])


async def test_a_later_session_with_the_id_of_one_that_is_gone_has_its_own_result(
    settings: Settings, coordinator: Coordinator
) -> None:
    """The rows of a finished task expire before the service is started anew."""
    log = ResultLog(settings)
    earlier, later = (SessionState("t.0", "t", 0, Phase.ENDED, since) for since in (1, 2))
    assert await log.results(None, [earlier], 0) == {}
    await coordinator.build("t.0", reward=1.0)
    assert await log.results(None, [earlier], 0) == {}, "it is looked for once"
    assert (await log.results(None, [later], 0)).keys() == {"t.0"}


async def test_the_nodes_of_a_pause_are_paused_at_once(
    rest: aiohttp.ClientSession, settings: Settings, coordinator: Coordinator
) -> None:
    """As NVIDIA's bridge pauses for new weights: it asks for all nodes and then pauses each, at the same time, by its own address."""
    workers = ("w 1/a", "w-2", "w-3")
    for name in workers:
        await coordinator.beat(name, Stage.RUN)

    async def each(action: str) -> list[tuple[int, Any]]:
        paths = [f"{url}/admin/inference/{action}" for url in urls]
        return await asyncio.gather(*(answer(rest, "POST", path) for path in paths))

    _, found = await answer(rest, "GET", "/nodes")
    urls = {one["gateway_url"] for one in found}
    assert len(urls) == len(workers)
    async with Fleet(settings) as fleet:
        before = (await fleet.status()).state
        paused = await each("pause")
        assert [(status, one["paused"], one["inflight"]) for status, one in paused] == [(200, True, 0)] * len(workers)
        state = (await fleet.status()).state
        assert (state.paused, state.generation) == (True, before.generation + 1)

        resumed = await each("resume")
        assert [(status, one["paused"]) for status, one in resumed] == [(200, False)] * len(workers)
        assert not (await fleet.status()).state.paused

        # A pause that somebody ended isn't taken for one that lasts.
        await each("pause")
        await fleet.resume()
        await each("pause")
        assert (await fleet.status()).state.paused
