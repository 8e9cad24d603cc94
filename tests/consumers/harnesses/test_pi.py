"""The real `pi`, in a real runtime, against the scripted engine: the only stand-in here, for the model."""

from __future__ import annotations

import itertools
import json
import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from consumers.harnesses.base import Launch, ModelAccess, harness_of
from consumers.harnesses.pi import Pi, is_whole
from consumers.runtimes.base import Exec, ExecResult
from consumers.runtimes.process import ProcessRuntime
from polar import cache
from polar.scripted.app import running
from polar.scripted.engine import Engine
from polar.scripted.faults import Fault, Status
from polar.scripted.record import Record
from polar.scripted.scripts import Script
from polar.types.errors import InputError, NotReady
from polar.types.task import AgentSpec

KEY = "sk-polar-not-a-real-key"
MODEL = "some/model:free"
"""Slash and colon mean something to pi's command line."""
SCRIPT = {
    "name": "mend",
    "match": "Mend",
    "variants": [
        {
            "turns": [
                {"text": "I look first.", "calls": [{"name": "read", "arguments": {"path": "a.txt"}}]},
                {
                    "text": "Now both at once.",
                    "calls": [
                        {
                            "name": "edit",
                            "arguments": {"path": "a.txt", "edits": [{"oldText": "wrong", "newText": "right"}]},
                        },
                        {"name": "write", "arguments": {"path": "b/new.txt", "content": "made\n"}},
                    ],
                },
                {"calls": [{"name": "bash", "arguments": {"command": "cat a.txt b/new.txt > c.txt; echo $HOME"}}]},
                {"text": "Mended."},
            ]
        }
    ],
}


@asynccontextmanager
async def model(tmp_path: Path, *faults: Fault) -> AsyncIterator[tuple[ModelAccess, Path]]:
    """An engine that plays SCRIPT, and its record of what it sampled."""
    with Record(tmp_path / "sampled.jsonl") as record:
        engine = Engine([msgspec.convert(SCRIPT, Script)], seed=0, model=MODEL, max_model_len=2_000_000, record=record)
        for fault in faults:
            engine.faults.add(fault)
        async with running(engine) as url:
            yield ModelAccess(url, KEY, MODEL), tmp_path / "sampled.jsonl"


async def worked(
    runtime: ProcessRuntime, access: ModelAccess, instruction: str, **agent: Any
) -> tuple[Launch, ExecResult]:
    """Set pi up as a worker does, and let it work."""
    harness = harness_of(AgentSpec(harness="pi", model_name=access.model_name, **agent))
    await harness.install()
    file = runtime.home / "instruction.txt"
    await runtime.write_file(file, instruction.encode())
    launch = await harness.prepare(runtime, access, file)
    env = access.env | dict(launch.env)
    return launch, await runtime.exec(Exec(launch.command, env=env, stdin=str(launch.stdin), timeout_s=60))


def samples(record: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in record.read_text().splitlines()]


async def test_pi_works_on_an_instruction_with_all_its_tools(runtime: ProcessRuntime, tmp_path: Path) -> None:
    await runtime.write_file("a.txt", b"this is wrong\n")
    async with model(tmp_path) as (access, record):
        launch, result = await worked(runtime, access, "Mend the text.")
    assert (result.exit_code, result.log.read_text()) == (0, "Mended.\n")
    assert await runtime.read_file("c.txt", 100) == b"this is right\nmade\n"
    assert len(samples(record)) == 4
    assert KEY not in " ".join(launch.command)
    transcript = (await runtime.read_file(launch.keep["agent_transcript"], 10**6)).decode()
    assert "Mend the text." in transcript
    assert "Mended." in transcript


async def test_what_pi_keeps_of_a_conversation_only_grows(runtime: ProcessRuntime, tmp_path: Path) -> None:
    """So each prompt begins with the prompt before it and what was sampled then: one trace."""
    await runtime.write_file("a.txt", b"this is wrong\n")
    async with model(tmp_path) as (access, record):
        await worked(runtime, access, "Mend the text.")
    calls = samples(record)
    assert len(calls) == 4
    for before, after in itertools.pairwise(calls):
        said = before["prompt_token_ids"] + before["token_ids"]
        assert after["prompt_token_ids"][: len(said)] == said


async def test_an_instruction_of_a_mebibyte_arrives_whole_whatever_it_looks_like(
    runtime: ProcessRuntime, tmp_path: Path
) -> None:
    instruction = '--help @a.txt\n/compact\n!ls "$HOME" é\n' + "word " * 209_000 + "end."
    assert 1_000_000 < len(instruction.encode()) <= 1024 * 1024
    async with model(tmp_path) as (access, _):
        launch, result = await worked(runtime, access, instruction)
    assert result.exit_code == 0
    lines = (await runtime.read_file(launch.keep["agent_transcript"], 10**7)).decode().splitlines()
    messages = [entry["message"] for entry in map(json.loads, lines) if entry["type"] == "message"]
    (user,) = [message for message in messages if message["role"] == "user"]
    assert user["content"] == [{"type": "text", "text": instruction}]


async def test_a_model_that_refuses_ends_pi_with_its_exit_code(runtime: ProcessRuntime, tmp_path: Path) -> None:
    async with model(tmp_path, Status(401, times=100)) as (access, _):
        _, result = await worked(runtime, access, "Mend the text.")
    assert result.exit_code == 1
    assert "401" in result.log.read_text()


async def test_the_key_is_in_no_file_of_the_runtime(runtime: ProcessRuntime, tmp_path: Path) -> None:
    async with model(tmp_path) as (access, _):
        await worked(runtime, access, "Mend the text.")
    files = [path for path in runtime.logs.parent.rglob("*") if stat.S_ISREG(path.lstat().st_mode)]
    assert len(files) > 3
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []


@pytest.mark.parametrize("settings", [{"speed": 1}, {"max_tokens": 0}, {"context_window": "big"}, {"max_tokens": True}])
def test_a_setting_that_pi_does_not_have_is_refused_by_name(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=rf"agent\.settings\.{next(iter(settings))}"):
        Pi(AgentSpec(harness="pi", settings=settings))


def test_an_installation_that_lacks_a_package_is_not_whole(tmp_path: Path) -> None:
    entry = cache.root() / "pi-0.87.1"
    assert is_whole(entry)
    copy = tmp_path / "copy"
    for package in entry.glob("node_modules/**/package.json"):
        target = copy / package.relative_to(entry)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(package, target)
    script = copy / "node_modules/@earendil-works/pi-coding-agent/dist/bundle/cli.js"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.touch()
    assert not is_whole(copy)
    (copy / "node_modules/.package-lock.json").write_bytes((entry / "node_modules/.package-lock.json").read_bytes())
    assert is_whole(copy)
    (copy / "node_modules/chalk/package.json").unlink()
    assert not is_whole(copy)


async def test_an_installation_that_fails_says_what_npm_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLAR_CACHE", str(tmp_path))
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9/")
    monkeypatch.setenv("npm_config_fetch_retries", "0")
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "npm"))
    with pytest.raises(NotReady, match="npm could not install"):
        await Pi(AgentSpec(harness="pi")).install()
    assert not (tmp_path / "pi-0.87.1").exists()
