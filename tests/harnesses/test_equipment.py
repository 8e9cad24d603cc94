"""Real CLIs call a tool of a real MCP server, and their model reads the task's skills and instructions."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from consumers.harnesses.mini_swe_agent import MiniSweAgent
from consumers.runtimes.base import Labels, Runtime, RuntimeBackend
from polar.uploads import Uploads
from tests.consumers.harnesses.conftest import Models, launched, set_up
from tests.consumers.harnesses.specimens import (
    ALWAYS,
    CLAUDE_CODE,
    CODEX,
    GEMINI_CLI,
    OPENCODE,
    PI,
    QWEN_CODE,
    Specimen,
    call,
)
from tests.consumers.harnesses.test_presets import prompts
from topics.environment import registry
from topics.environment.blobs import FolderBlobs
from topics.types.task import TaskRequest, parse

FOLDER = Path(__file__).parent
HOST = "127.0.0.2"
"""Loopback under another name: NO_PROXY of a cell has 127.0.0.1, and the SDK lets nobody use that by another name."""
PATHS = {"sse": "/sse", "streamable-http": "/mcp"}
"""Where the SDK serves each transport."""


@dataclass(frozen=True)
class Equipped:
    """A CLI, and its name for the tool `weigh` of the server `scales`; None: it connects to no servers."""

    specimen: Specimen
    tool: str | None

    def __str__(self) -> str:
        return self.specimen.harness


EQUIPPED = [
    Equipped(CLAUDE_CODE, "mcp__scales__weigh"),
    Equipped(CODEX, "mcp__scales__weigh"),
    Equipped(PI, None),
    Equipped(GEMINI_CLI, "mcp_scales_weigh"),
    Equipped(QWEN_CODE, "mcp__scales__weigh"),
    Equipped(OPENCODE, "scales_weigh"),
]


@pytest.mark.parametrize(
    "equipped",
    [pytest.param(one, id=str(one), marks=() if one.specimen in ALWAYS else pytest.mark.harnesses) for one in EQUIPPED],
)
async def test_its_tool_is_called_and_its_skills_and_instructions_are_read(
    equipped: Equipped, runtime: Runtime, model: Models, tmp_path: Path
) -> None:
    (tmp_path / "weighing").mkdir()
    (tmp_path / "weighing" / "SKILL.md").write_text(
        "---\nname: weighing\ndescription: How to weigh.\n---\n\nTare first.\n"
    )
    (tmp_path / "rules.md").write_text("Report every weight in verse.\n")
    await runtime.write_file(runtime.home / "tool_server.py", (FOLDER / "tool_server.py").read_bytes())
    server = {
        "name": "scales",
        "transport": "stdio",
        "command": sys.executable,
        "args": [str(runtime.home / "tool_server.py"), "exactly"],
        "env": {"UNIT": "stone"},
    }
    agent = {
        "harness": equipped.specimen.harness,
        "model_name": "some/model:free",
        "mcp_servers": [server] if equipped.tool else [],
        "skills": ["weighing"],
        "instructions": {"source": "rules.md"},
    }
    blobs = FolderBlobs(tmp_path / "blobs")
    task = TaskRequest.model_validate({"task_id": "t", "instruction": "Mend the text.", "agent": agent})
    spec = Uploads(blobs).with_content(task, tmp_path).agent
    weigh = [{"calls": [call(equipped.tool, thing="Tea")]}] if equipped.tool else []
    async with model([*weigh, equipped.specimen.end]) as served:
        launch = await set_up(runtime, served.access, task.instruction, spec, blobs)
        result = await launched(runtime, served.access, launch, spec)
        assert result.exit_code == 0, result.tail
        read = prompts(served)
    assert "Report every weight in verse." in read[0]
    assert "weighing" in read[0]
    if equipped.tool:
        assert "Tea weighs 42 stone exactly" in read[-1]
    assert await runtime.is_empty()


@pytest.mark.harnesses
@pytest.mark.parametrize(
    ("equipped", "transport"),
    [
        pytest.param(one, transport, id=f"{one}-{transport}")
        for one in EQUIPPED
        for transport in registry.load(registry.Kind.HARNESS, one.specimen.harness).mcp_transports
        if transport in PATHS
    ],
)
async def test_a_tool_of_an_allowed_host_is_called_with_the_tasks_headers(
    equipped: Equipped, transport: str, backend: RuntimeBackend, claim: str, model: Models
) -> None:
    assert equipped.tool is not None
    await asyncio.to_thread(MiniSweAgent.cli.install, print)  # its environment has the SDK
    with served_by_the_sdk(transport) as port:
        server = {"name": "scales", "transport": transport, "url": f"http://{HOST}:{port}{PATHS[transport]}"}
        task = parse(
            {
                "task_id": "t",
                "instruction": "Mend the text.",
                "agent": {
                    "harness": equipped.specimen.harness,
                    "model_name": "some/model:free",
                    "mcp_servers": [server | {"headers": {"X-Unit": "stone"}}],
                },
                "runtime": {"network": "allowlist", "allowed_hosts": [f"{HOST}:{port}"]},
            }
        )
        runtime = await backend.create(Labels("polar", "task.0", 1, claim), task.runtime)
        try:
            async with model([{"calls": [call(equipped.tool, thing="Tea")]}, equipped.specimen.end]) as served:
                launch = await set_up(runtime, served.access, task.instruction, task.agent)
                result = await launched(runtime, served.access, launch, task.agent)
                assert result.exit_code == 0, result.tail
                read = prompts(served)
        finally:
            await runtime.remove()
    assert "Tea weighs 42 stone exactly" in read[-1]


@contextmanager
def served_by_the_sdk(transport: str) -> Iterator[int]:
    """The port of a server at HOST."""
    with socket.create_server((HOST, 0)) as listener:
        port: int = listener.getsockname()[1]
        python = MiniSweAgent.cli.command()[0]
        command = (python, "-B", str(FOLDER / "http_tool_server.py"), transport, str(listener.fileno()))
        server = subprocess.Popen(command, pass_fds=[listener.fileno()])
    try:
        yield port
    finally:
        server.kill()
        server.wait()
