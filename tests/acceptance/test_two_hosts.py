"""Two hosts without a shared disk: the blobs are in a bucket of a real S3 server, which dies in the middle and comes back.

Submitter, Kafka, proxy, fanout, coordinator and builder have one data folder, and the stage workers another.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.fleet import READY_S, Fleet, fleet
from tests.s3_server import BUCKET, s3_server
from tests.waiting import eventually

STAGES = ("init", "run", "evaluate")
DECIDING = ("fanout-1", "coordinator-1", "builder-1")
ENDED_S = 240.0
AGENT = """
import json, os, urllib.request
body = json.dumps({"model": "any", "messages": [{"role": "user", "content": "hello"}]}).encode()
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
urllib.request.urlopen(request).read()
open("package/made.txt", "w").write(open("package/given.txt").read() * 2)
print("this run has a log")
"""


def task(name: str) -> dict[str, Any]:
    """Its instruction is so long that fanout puts the task into the blob store."""
    commit = "git init -q && git add -A && git -c user.name=t -c user.email=t@example.org commit -qm given"
    return {
        "task_id": name,
        "instruction": "Double the file. " * 5000,
        "runtime": {
            "backend": "cell",
            "prepare": [
                {"type": "upload_dir", "source": "repo", "target": "."},
                {"type": "exec", "command": commit},
            ],
            "eval_prepare": [{"type": "upload_file", "source": "expected.txt", "target": "expected.txt"}],
        },
        "agent": {"harness": "shell", "custom_shell": {"command": "python3 agent.py"}},
        "evaluator": {"strategy": "test_on_output", "config": {"test_command": "cmp package/made.txt expected.txt"}},
    }


async def start_elsewhere(system: Fleet, host: Path) -> None:
    """Stage workers of another host, which has the addresses and the keys of the system and nothing else."""
    host.mkdir()
    for name in ("polar.env", "keys.json"):
        shutil.copy2(system.data / name, host / name)
    for stage in STAGES:
        await system.spawn(f"{stage}-1", "polar.cli", "worker", stage, "--data", str(host))
    for stage in STAGES:
        await system.worker_id(f"{stage}-1")


def log_of(system: Fleet, name: str) -> str:
    return (system.data / "logs" / f"{name}.log").read_text()


@pytest.mark.timeout(900)
async def test_a_task_with_a_folder_runs_on_another_host_and_its_patch_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    (source / "repo" / "package").mkdir(parents=True)
    (source / "repo" / "package" / "given.txt").write_text("given\n")
    (source / "repo" / "agent.py").write_text(AGENT)
    (source / "expected.txt").write_text("given\ngiven\n")
    here, there = tmp_path / "here", tmp_path / "there"
    with s3_server(tmp_path / "s3") as server:
        for name, value in server.variables.items():
            monkeypatch.setenv(name, value)
        async with fleet(here, DECIDING, blobs=f"s3://{BUCKET}/polar") as system:
            await start_elsewhere(system, there)
            (source / "one.json").write_text(json.dumps(task("one")))
            code, out, err = await system.polar("submit", str(source / "one.json"), "--wait")
            assert code == 0, (out, err)
            await check(system, "one.0")

            # The server dies: the task's body waits in fanout, and with the server everything goes on.
            (source / "two.json").write_text(json.dumps(task("two") | {"num_samples": 2}))
            server.kill()
            code, _, err = await system.polar("submit", str(source / "two.json"))
            assert code == 3, err
            assert "POLAR_BLOBS" in err
            assert "submit again" in err
            server.start()
            code, _, err = await system.polar("submit", str(source / "two.json"))
            assert code == 0, err
            server.kill()
            await eventually(
                lambda: (
                    any("blobs.unreachable" in log_of(system, f"{stage}-1") for stage in STAGES)
                    or "fanout.retry" in log_of(system, "fanout-1")
                ),
                READY_S,
            )
            server.start()
            code, out, err = await system.polar("submit", str(source / "two.json"), "--wait")
            assert code == 0, (out, err)
            await asyncio.gather(*(check(system, f"two.{sample}") for sample in range(2)))
            assert system.leftovers() == []
        assert not (here / "blobs").exists()
        assert not (there / "blobs").exists()
        assert list((there / "blob-cache").rglob("*"))


async def check(system: Fleet, session_id: str) -> None:
    """The session is whole, read where it was submitted."""
    code, out, err = await system.polar("trajectories", "--task", session_id.rpartition(".")[0], "--format", "jsonl")
    assert code == 0, err
    (line,) = (json.loads(line) for line in out.splitlines() if json.loads(line)["session_id"] == session_id)
    assert (line["status"], line["reward"], line["error"]) == ("COMPLETED", 1.0, None)
    code, patch, err = await system.polar("show", session_id, "--artifact", "patch")
    assert code == 0, err
    assert "+++ b/package/made.txt" in patch
    code, text, err = await system.polar("show", session_id, "--artifact", "agent_log")
    assert code == 0, err
    assert "this run has a log" in text
