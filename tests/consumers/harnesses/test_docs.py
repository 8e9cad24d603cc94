"""What docs/harness.md shows works as it stands there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from consumers.harnesses.base import harness_of
from consumers.harnesses.cli import CliHarness
from consumers.runtimes.base import Exec
from consumers.runtimes.prepare import prepare
from consumers.runtimes.process import ProcessRuntime
from tests.consumers.harnesses.conftest import KEY, MODEL, access_to, set_up
from topics.environment import registry
from topics.environment.blobs import FolderBlobs
from topics.types.errors import InputError, NotReadyError
from topics.types.task import AgentSpec, TaskRequest

pytestmark = pytest.mark.contract

ROOT = Path(__file__).parents[3]
SHOWN = dict(re.findall(r"```(\w+)\n(.*?)```", (ROOT / "docs" / "harness.md").read_text(), re.DOTALL))


async def test_the_shell_task_is_one_and_its_command_finds_its_instruction(
    runtime: ProcessRuntime, tmp_path: Path
) -> None:
    task = TaskRequest.model_validate(yaml.safe_load(SHOWN["yaml"]))
    await prepare(runtime, task.runtime.prepare, FolderBlobs(tmp_path))
    await runtime.write_file("sub/agent.py", b"import os, sys; print(sys.argv, os.environ['AGENT_TURNS'], input())")
    launch = await set_up(runtime, access_to("http://proxy"), task.instruction, task.agent)
    ours = {"POLAR_INSTRUCTION_FILE": str(launch.stdin)}
    result = await runtime.exec(Exec(launch.command, cwd=launch.cwd, env=ours | dict(launch.env)))
    assert result.tail == "['agent.py', '--model', 'any-name'] 20 Fix the failing test.\n"


async def test_a_class_of_another_package_is_a_harness(
    runtime: ProcessRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_agents.py").write_text(SHOWN["python"])
    monkeypatch.syspath_prepend(str(tmp_path))
    mine = AgentSpec(import_path="my_agents:Mine", model_name=MODEL)
    with pytest.raises(NotReadyError, match="my-agent on the worker's PATH"):
        await harness_of(mine).install()
    with pytest.raises(InputError, match="there are: turns"):
        harness_of(mine.model_copy(update={"settings": {"turn": 1}}))
    program = tmp_path / "bin" / "my-agent"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "$3 $4 $5 $6"\ncat "$2" -\necho {} >~/my-agent.jsonl\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    launch = await set_up(runtime, access_to("http://proxy"), "Mend.\n", mine)
    tools = harness_of(mine).tools
    assert tools == (tmp_path,)
    result = await runtime.exec(Exec(launch.command, stdin=str(launch.stdin), tools=tools))
    assert result.tail == (
        f"--model {MODEL} --turns 20\nbase_url = http://proxy/v1\nkey_variable = OPENAI_API_KEY\nMend.\n"
    )
    assert KEY not in result.tail
    assert await runtime.read_file(launch.keep["agent_transcript"], 10) == b"{}\n"


def test_the_command_is_there() -> None:
    python, *arguments = shlex.split(SHOWN["sh"])
    assert python == "python"
    subprocess.run([sys.executable, *arguments], check=True, cwd=ROOT, timeout=600)


def test_the_page_on_harnesses_tells_of_the_versions_that_are_pinned() -> None:
    page = (ROOT / "docs" / "harnesses.md").read_text()
    told = set(re.findall(r"^\| `(\w+)`.*? \| ([\d.]+) \|", page, re.MULTILINE))
    presets = (registry.load(registry.Kind.HARNESS, name) for name in registry.names(registry.Kind.HARNESS))
    assert told == {(each.cli.name, each.cli.version) for each in presets if issubclass(each, CliHarness)}
