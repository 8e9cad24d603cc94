"""`polar rest` as clients of NVIDIA's Polar use it: plain HTTP with their fields, and a service that is killed meanwhile."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from polar.sessions import control_token
from tests.acceptance.up.running import Up, engine_record, environment
from tests.acceptance.up.test_up import CALL
from tests.consumers.webhooks.endpoint import answer, receiving
from tests.waiting import eventually

END_S = 120.0
STOPPED_S = 15.0
"""Less than the service waits for requests in progress."""


@asynccontextmanager
async def rest(up: Up, folder: Path, port: int = 0) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """The service's URL and its process."""
    ready = folder / "rest.ready"
    ready.unlink(missing_ok=True)
    command = ["-m", "polar.cli", "rest", "--port", str(port), "--ready-file", str(ready), "--data", str(up.data)]
    with (folder / "rest.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, stdout=log, stderr=log, env=environment()
        )
    try:
        await eventually(lambda: ready.exists() or process.returncode is not None, END_S)
        assert process.returncode is None, (folder / "rest.log").read_text()
        yield json.loads(ready.read_text())["url"], process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def task(task_id: str, samples: int, callback_url: str | None) -> dict[str, Any]:
    """As NVIDIA's slime bridge submits it: its metadata, and null where its callers leave a field out."""
    return {
        "task_id": task_id,
        "instruction": "say hello",
        "num_samples": samples,
        "timeout_seconds": 120.0,
        "runtime": None,
        "agent": {"harness": "shell", "import_path": None, "model_name": None, "custom_shell": {"command": CALL}},
        "builder": {"strategy": "prefix_merging", "config": {}},
        "evaluator": {"strategy": "session_completed", "config": {}},
        "callback_url": callback_url,
        "metadata": {"group_id": 7, "policy_version": 3, "rollout_step": 3},
    }


def check_group(found: dict[str, Any], up: Up, samples: int) -> None:
    """The group is NVIDIA's TaskResult, and its tokens are what the engine sampled."""
    assert [one["session_id"] for one in found["results"]] == [f"{found['task_id']}.{i}" for i in range(samples)]
    for one in found["results"]:
        assert one.keys() == {
            "session_id", "task_id", "status", "trajectory", "timing", "node_id", "error", "metadata",
        }  # fmt: skip
        assert (one["status"], one["error"]) == ("COMPLETED", None), one
        assert one["metadata"] == {"group_id": 7, "policy_version": 3, "rollout_step": 3}
        assert one["timing"].keys() == {"register_to_init_queue_ms", "init_ms", "run_ms", "postrun_ms"}
        (trace,) = one["trajectory"]["traces"]
        (call,) = [call for call in engine_record(up) if call["session_id"] == one["session_id"]]
        assert (trace["prompt_ids"], trace["response_ids"]) == (call["prompt_token_ids"], call["token_ids"])
        assert trace["response_logprobs"] == call["logprobs"]
        assert trace["loss_mask"] == [1] * len(call["token_ids"])
        assert (trace["reward"], trace["finish_reason"]) == (1.0, "stop")


async def test_a_group_is_submitted_followed_and_received_across_a_kill(up: Up, tmp_path: Path) -> None:
    token = control_token(up.data / "control.token")
    events: list[dict[str, Any]] = []

    async def listen(url: str, opened: asyncio.Event) -> None:
        async with client.get(f"{url}/events") as stream:
            assert stream.content_type == "text/event-stream"
            async for line in stream.content:
                if line.startswith(b"data: "):
                    events.append(json.loads(line.removeprefix(b"data: ")))
                    opened.set()

    password = base64.b64encode(f"polar:{token}".encode()).decode()  # as HTTP clients send the password of a URL
    async with aiohttp.ClientSession(headers={"Authorization": f"Basic {password}"}) as client, receiving() as trainer:
        trainer.answers["/callback/task_result"] = answer(503, 200)
        callback_url = f"{trainer.url}/callback/task_result"
        async with rest(up, tmp_path) as (url, process):
            opened = asyncio.Event()
            listening = asyncio.create_task(listen(url, opened))
            await asyncio.wait_for(opened.wait(), END_S)
            body = task("nvidia", 2, callback_url)
            async with client.post(f"{url}/rollout/task/submit", json=body) as reply:
                assert (reply.status, await reply.json()) == (200, {"task_id": "nvidia", "status": "running"})
            async with client.post(f"{url}/rollout/task/submit", json=body) as reply:
                assert reply.status == 409
                assert "nvidia" in (await reply.json())["detail"]
            await eventually(lambda: "session.state_changed" in {event["type"] for event in events}, END_S)
            process.kill()
            await asyncio.gather(listening, return_exceptions=True)
            await process.wait()
        assert events[0]["type"] == "hello"
        assert "task.created" in {event["type"] for event in events}
        port = int(url.rpartition(":")[2])
        async with rest(up, tmp_path, port) as (url, _):

            async def completed() -> dict[str, Any]:
                async with client.get(f"{url}/rollout/task/nvidia") as reply:
                    assert reply.status == 200, await reply.text()
                    found: dict[str, Any] = await reply.json()
                assert found["total_sessions"] == 2
                assert found["completed_sessions"] == len(found["results"])
                return found if found["status"] == "completed" else {}

            check_group(await eventually(completed, END_S, every_s=0.2), up, 2)
            # The first answer was 503, so the callback comes a second time, with its 5 s of pause.
            called = await eventually(lambda: trainer.at("/callback/task_result")[1:], END_S)
            result = json.loads(called[0].body)
            assert result.keys() == {"task_id", "status", "results", "result_paths"}
            assert (result["task_id"], result["status"]) == ("nvidia", "completed")
            check_group(result, up, 2)
            async with client.get(f"{url}/nodes") as reply:
                nodes = await reply.json()
            assert sum(node["max_run_workers"] for node in nodes) > 0
            async with client.get(f"{url}/tasks") as reply:
                (listed,) = [one for one in (await reply.json())["tasks"] if one["task_id"] == "nvidia"]
            assert (listed["status"], listed["mean_reward"], listed["harness"]) == ("completed", 1.0, "shell")
            assert abs(listed["updated_at"] - time.time()) < END_S


async def test_what_a_client_gets_wrong_is_an_error_that_names_it(up: Up, tmp_path: Path) -> None:
    headers = {"X-Polar-Control-Token": control_token(up.data / "control.token")}
    async with rest(up, tmp_path) as (url, process), aiohttp.ClientSession() as client:
        submit = f"{url}/rollout/task/submit"
        good = task("wrong", 1, None)
        for wrong, place in (
            ({"agent": {"harness": "nobody"}}, ["body", "agent", "harness"]),
            ({"num_sample": 2}, ["body", "num_sample"]),
            ({"callback_url": "ftp://trainer"}, ["body", "callback_url"]),
            (
                {"runtime": {"prepare": [{"type": "upload_file", "source": "/etc/passwd", "target": "x"}]}},
                ["body", "runtime", "prepare[0]", "source"],
            ),
        ):
            async with client.post(submit, json=good | wrong, headers=headers) as reply:
                assert (reply.status, (await reply.json())["detail"][0]["loc"]) == (422, place)
        async with client.post(submit, json=good) as reply:
            assert reply.status == 401
        async with client.post(submit, json=good, headers={"Authorization": "Bearer wrong"}) as reply:
            assert reply.status == 401
        async with client.get(f"{url}/health") as reply:
            assert (reply.status, (await reply.json())["status"]) == (200, "ok")
        async with client.post(f"{url}/callbacks/group?to=http://127.0.0.1:1/", json={"data": {}}) as reply:
            assert reply.status == 401  # unsigned
        async with client.get(f"{url}/rollout/task/wrong", headers=headers) as reply:
            assert (reply.status, await reply.json()) == (404, {"detail": "Task not found"})
        async with client.get(f"{url}/events", headers=headers) as stream:
            assert await stream.content.readline() != b""
            process.terminate()
            assert await asyncio.wait_for(process.wait(), STOPPED_S) == 0  # an open stream delays nothing


async def test_a_trainer_pauses_publishes_and_resumes(up: Up, tmp_path: Path) -> None:
    headers = {"Authorization": f"Bearer {control_token(up.data / 'control.token')}"}
    async with rest(up, tmp_path) as (url, _), aiohttp.ClientSession(headers=headers) as client:
        for path, expected in (
            ("inference/pause?timeout_seconds=60", {"all_paused": True, "all_drained": True}),
            ("inference/pause?timeout_seconds=60", {"all_paused": True, "all_drained": True}),
            ("policy_version?version=4", {"all_updated": True, "policy_version": 4}),
            ("inference/resume", {"all_resumed": True}),
        ):
            async with client.post(f"{url}/rollout/admin/{path}") as reply:
                found = await reply.json()
            assert reply.status == 200, found
            assert expected.items() <= found.items()
            assert [node["status"] for node in found["nodes"]] == ["ok"]
        async with client.post(f"{url}/rollout/admin/policy_version?version=3") as reply:
            assert reply.status == 409
