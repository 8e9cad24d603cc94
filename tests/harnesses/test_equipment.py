"""Real CLIs call a tool of a real MCP server, and their model reads the task's skills and instructions."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from consumers.runtimes.base import Runtime
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
from topics.environment.blobs import BlobStore
from topics.types.task import TaskRequest

SERVER = Path(__file__).with_name("tool_server.py")


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
    await runtime.write_file(runtime.home / "tool_server.py", SERVER.read_bytes())
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
    blobs = BlobStore(tmp_path / "blobs")
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
    assert "How to weigh." in read[0]
    if equipped.tool:
        assert "Tea weighs 42 stone exactly" in read[-1]
    assert await runtime.is_empty()
