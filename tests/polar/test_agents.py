"""Agents that are functions, on a control API that the test plays: it opens sessions, and writes a trajectory for each that is closed."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polar.client import Client
from polar.sessions import Session, SessionRefusedError, opened
from tests.polar.control_api import OPENED, answer, played
from tests.polar.coordinator import Coordinator
from tests.serving import Answer, serving_by_path
from topics.environment.settings import Settings
from topics.types.errors import InputError


class Sessions:
    """Opens the samples of each task in order, and closes them."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._loop = asyncio.get_running_loop()
        self._next: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.open: set[str] = set()
        self.most_open = 0
        self.rewards: dict[str, float | None] = {}
        """Of closed sessions."""
        self.refuses = False

    def answer(self, path: str, body: dict[str, Any]) -> Answer:
        with self._lock:
            return self._opened(body) if path == "/v1/sessions" else self._closed(path.split("/")[3], body)

    def _opened(self, body: dict[str, Any]) -> Answer:
        if self.refuses or body.get("task_id") == "taken":
            return 409, {"error": {"code": "taken", "field": "task_id", "message": "all are taken"}}
        task_id = body.get("task_id") or f"agent-{len(self._next)}"
        session_id = f"{task_id}.{self._next[task_id]}"
        self._next[task_id] += 1
        self.open.add(session_id)
        self.most_open = max(self.most_open, len(self.open))
        return 201, OPENED | {"session_id": session_id, "env": {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}}

    def _closed(self, session_id: str, body: dict[str, Any]) -> Answer:
        self.open.remove(session_id)
        reward = self.rewards[session_id] = body.get("reward")
        writing = self._coordinator.build(session_id, reward=reward)
        asyncio.run_coroutine_threadsafe(writing, self._loop)
        return 202, {"session_id": session_id}


@pytest.fixture
async def api(coordinator: Coordinator) -> Sessions:
    return Sessions(coordinator)


@pytest.fixture
def client(api: Sessions, settings: Settings, tmp_path: Path) -> Iterator[Client]:
    (tmp_path / "token").write_text("secret")
    with serving_by_path(api.answer) as (url, _):
        found = {"data": tmp_path, "control_url": url, "control_token_file": tmp_path / "token"}
        yield Client(settings.model_copy(update=found))


async def test_results_come_in_order_and_one_error_costs_one_sample(client: Client, api: Sessions) -> None:
    async def agent(session: Session, task: int) -> float | None:
        llm = session.async_openai()
        assert str(llm.base_url) == session.env["OPENAI_BASE_URL"] + "/"
        await asyncio.sleep(0.02 * (3 - task))
        if task == 1 and session.session_id.endswith(".1"):
            session.reward = 1.0
            raise ZeroDivisionError("its own")
        if task == 2:
            session.reward = 0.5
            return None
        return np.float32(task)  # type: ignore[return-value] # what people compute rewards with

    results = await client.run(agent, iter(range(3)), samples=2, concurrency=3, task_id=lambda task: f"t{task}")
    assert [(each.task, each.session_id, each.reward) for each in results] == [
        (0, "t0.0", 0.0),
        (0, "t0.1", 0.0),
        (1, "t1.0", 1.0),
        (1, "t1.1", None),
        (2, "t2.0", 0.5),
        (2, "t2.1", 0.5),
    ]
    assert [str(each.error) for each in results if each.error is not None] == ["its own"]
    assert all(each.trajectory is not None for each in results)
    assert (api.most_open, api.open) == (3, set())


async def test_a_function_that_is_not_async_runs_in_a_thread_beside_others(client: Client, api: Sessions) -> None:
    together = threading.Barrier(3)

    def agent(session: Session, task: str) -> float:
        together.wait(10)  # passes once three are at work
        return float(len(task))

    results = await client.run(agent, ["a"], samples=3)
    assert [each.session_id for each in results] == ["agent-0.0", "agent-0.1", "agent-0.2"]
    assert api.rewards == dict.fromkeys(("agent-0.0", "agent-0.1", "agent-0.2"), 1.0)


async def test_a_reward_that_is_none_and_a_session_that_can_not_be_opened_are_errors_of_their_results(
    client: Client, api: Sessions
) -> None:
    def agent(session: Session, task: str) -> Any:
        return {"nan": float("nan"), "text": "1", "good": 1}[task]

    bad, text, taken, good = await client.run(agent, ["nan", "text", "taken", "good"], task_id=str)
    assert [str(each.error) for each in (bad, text)] == [
        "reward: a reward is a finite number (got nan)",
        "reward: a reward is a finite number (got '1')",
    ]
    assert (taken.session_id, taken.trajectory) == (None, None)
    assert isinstance(taken.error, SessionRefusedError)
    assert (good.reward, good.error) == (1.0, None)
    assert api.rewards == {"nan.0": None, "text.0": None, "good.0": 1.0}


async def test_an_agent_that_outlives_its_session_is_ended(client: Client, api: Sessions) -> None:
    async def hanging(session: Session, task: str) -> None:
        await asyncio.Event().wait()

    (result,) = await client.run(hanging, ["task"], ttl_s=1)
    assert isinstance(result.error, TimeoutError)
    assert "session ended, after 1 s" in str(result.error)
    assert api.rewards == {"agent-0.0": None}


async def test_whatever_ends_an_agent_is_an_error_of_its_sample_alone(client: Client, api: Sessions) -> None:
    def ending(session: Session, task: str) -> float:
        if task == "empty":
            return float(next(iter(())))  # StopIteration, which no future takes
        if task == "exit":
            sys.exit("no model")
        return 1.0

    async def cancelled(session: Session, task: str) -> float:
        if task == "exit":
            sys.exit(3)
        if task == "cancelled":
            inner = asyncio.create_task(asyncio.sleep(60))
            inner.cancel()
            await inner
        return float("1" * 400) if task == "infinite" else 10**400 if task == "large" else 1.0

    tasks = ["empty", "exit", "good"]
    results = await asyncio.wait_for(client.run(ending, tasks), 30)
    assert [str(each.error) for each in results] == [
        "the agent raised StopIteration()",
        "the agent raised SystemExit('no model')",
        "None",
    ]
    assert [each.reward for each in results] == [None, None, 1.0]
    results = await asyncio.wait_for(client.run(cancelled, ["cancelled", "exit", "infinite", "large", "good"]), 30)
    assert [str(each.error) for each in results][:3] == [
        "the agent raised CancelledError()",
        "the agent raised SystemExit(3)",
        "reward: a reward is a finite number (got inf)",
    ]
    assert isinstance(results[3].error, InputError)
    assert (results[4].reward, results[4].error) == (1.0, None)
    assert all(each.trajectory is not None for each in results)
    assert not api.open


async def test_a_run_that_opens_no_session_raises_and_so_does_one_whose_tasks_raise(
    client: Client, api: Sessions
) -> None:
    async def agent(session: Session, task: int) -> float:
        return 1.0

    def broken() -> Iterator[int]:
        yield 1
        raise ZeroDivisionError("of the tasks")

    with pytest.raises(ZeroDivisionError, match="of the tasks"):
        await client.run(agent, broken())
    assert not api.open
    api.refuses = True
    with pytest.raises(SessionRefusedError, match="all are taken"):
        await client.run(agent, [1, 2])
    assert await client.run(agent, []) == []
    with pytest.raises(InputError, match="concurrency: must be an integer of 1 or more"):
        await client.run(agent, [1], concurrency=0)
    with pytest.raises(InputError, match="samples: must be an integer of 1 or more"):
        await client.run(agent, [1], samples="2")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="agent: must be a function of a session and a task"):
        await client.run(None, [1])  # type: ignore[arg-type]


async def test_a_cancelled_run_closes_its_sessions_without_a_reward(client: Client, api: Sessions) -> None:
    before = asyncio.all_tasks()
    working = asyncio.Event()
    number = 0

    async def agent(session: Session, task: int) -> float:
        nonlocal number
        session.reward = 1.0
        number += 1
        if number == 2:
            working.set()
        await asyncio.Event().wait()
        return 1.0

    running = asyncio.create_task(client.run(agent, range(100), concurrency=2))
    await working.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert api.open == set()
    assert list(api.rewards.values()) == [None, None]
    left = {task.get_name() for task in asyncio.all_tasks() - before}
    assert not [name for name in left if name in ("agent", "open-session") or name.startswith("follow-")]


async def test_a_block_is_a_session(client: Client, api: Sessions) -> None:
    client.settings = client.settings.model_copy(update={"kafka": None})  # nobody decides here, so no row would come
    async with client.session(task_id="t", label="mine") as session:
        session.reward = 0.25
    assert (session.is_closed, api.rewards) == (True, {"t.0": 0.25})
    with pytest.raises(ZeroDivisionError):
        async with client.session(task_id="u") as session:
            _ = 1 / 0
    assert not api.open


@pytest.mark.pure
async def test_a_session_that_opens_while_its_opening_is_cancelled_is_closed(tmp_path: Path) -> None:
    started = threading.Event()
    with played(tmp_path) as found:
        answer(201, OPENED)
        sessions: list[Session] = []

        def slowly() -> Session:
            started.set()
            time.sleep(0.2)
            sessions.append(Session.open(settings=found))
            return sessions[0]

        opening = asyncio.create_task(opened(slowly))
        await asyncio.to_thread(started.wait)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert [session.is_closed for session in sessions] == [True]
