"""Skills and instructions reach the place where each program looks, and leave the workspace as it was."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from consumers.harnesses import agent_files
from consumers.harnesses.base import harness_of
from consumers.runtimes.process import ProcessRuntime
from polar.uploads import Uploads
from topics.environment.blobs import BlobStore, FolderBlobs
from topics.types.agent import AgentSpec
from topics.types.errors import InputError
from topics.types.task import TaskRequest

pytestmark = pytest.mark.contract  # a copy inside of the sandbox is a program

SKILL = "---\nname: weighing\ndescription: How to weigh.\n---\n\nTare first.\n"
PLACES = {
    "claude_code": (".claude/skills", ".claude/CLAUDE.md"),
    "codex": (".codex/skills", ".codex/AGENTS.md"),
    "gemini_cli": (".gemini/skills", ".gemini/GEMINI.md"),
    "qwen_code": (".qwen/skills", ".qwen/QWEN.md"),
    "opencode": (".config/opencode/skills", ".config/opencode/AGENTS.md"),
    "pi": (".pi/agent/skills", ".pi/agent/AGENTS.md"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a task's file."""
    skill = tmp_path / "task" / "skills" / "weighing"
    (skill / "scripts").mkdir(parents=True)
    (skill / "SKILL.md").write_text(SKILL)
    (skill / "scripts" / "tare.sh").write_text("#!/bin/sh\n")
    (skill / "scripts" / "tare.sh").chmod(0o755)
    (tmp_path / "task" / "house-rules.md").write_text("Speak plainly.\n")
    return tmp_path / "task"


def sent(folder: Path, blobs: BlobStore, **agent: Any) -> AgentSpec:
    """The agent of a task that was submitted from `folder`."""
    body = {"task_id": "t", "instruction": "x", "agent": agent}
    task = Uploads(blobs).with_content(TaskRequest.model_validate(body), folder)
    task.check_uploads()
    return task.agent


@pytest.mark.parametrize("harness", PLACES)
@pytest.mark.parametrize("instructions", ["Speak plainly.\n", {"source": "house-rules.md"}], ids=["text", "file"])
async def test_each_program_finds_them_in_its_home(
    runtime: ProcessRuntime, tmp_path: Path, folder: Path, harness: str, instructions: object
) -> None:
    blobs = FolderBlobs(tmp_path / "blobs")
    agent = sent(folder, blobs, harness=harness, skills=["skills/weighing"], instructions=instructions)
    await agent_files.place(runtime, harness_of(agent), agent, blobs)
    skills, rules = PLACES[harness]
    home = Path(runtime.home)
    assert (home / rules).read_text() == "Speak plainly.\n"
    assert (home / skills / "weighing" / "SKILL.md").read_text() == SKILL
    assert os.access(home / skills / "weighing" / "scripts" / "tare.sh", os.X_OK)
    assert await runtime.is_empty()


async def test_skills_that_are_in_the_sandbox_are_copied_and_the_tasks_own_win(
    runtime: ProcessRuntime, tmp_path: Path, folder: Path
) -> None:
    for name, text in (("weighing", "old"), ("sorting", "sort")):
        await runtime.write_file(f"its skills/{name}/SKILL.md", text.encode())
    blobs = FolderBlobs(tmp_path / "blobs")
    agent = sent(folder, blobs, harness="pi", skills=["skills/weighing"], skills_path="its skills")
    await agent_files.place(runtime, harness_of(agent), agent, blobs)
    found = Path(runtime.home) / PLACES["pi"][0]
    assert (found / "weighing" / "SKILL.md").read_text() == SKILL
    assert (found / "sorting" / "SKILL.md").read_text() == "sort"


async def test_a_folder_that_is_not_in_the_sandbox_is_bad_input(runtime: ProcessRuntime, tmp_path: Path) -> None:
    agent = AgentSpec(harness="pi", skills_path="/no/such/folder")
    with pytest.raises(InputError, match=r"agent\.skills_path: can't be copied"):
        await agent_files.place(runtime, harness_of(agent), agent, FolderBlobs(tmp_path))


async def test_an_agent_without_any_leaves_the_home_alone(runtime: ProcessRuntime, tmp_path: Path) -> None:
    agent = AgentSpec.model_validate({"harness": "shell", "custom_shell": {"command": "true"}})
    before = sorted(Path(runtime.home).rglob("*"))
    await agent_files.place(runtime, harness_of(agent), agent, FolderBlobs(tmp_path))
    assert sorted(Path(runtime.home).rglob("*")) == before


def test_a_folder_without_a_skill_is_refused_when_the_task_is_submitted(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(InputError, match=r"agent\.skills\.0\.source: is no skill: a folder with SKILL\.md"):
        sent(folder, FolderBlobs(tmp_path / "blobs"), harness="pi", skills=["skills"])
    with pytest.raises(InputError, match=r"agent\.instructions\.source: can't be read"):
        sent(folder, FolderBlobs(tmp_path / "blobs"), harness="pi", instructions={"source": "no.md"})
