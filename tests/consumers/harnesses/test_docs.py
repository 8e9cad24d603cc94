"""What docs/harness.md shows works as it stands there."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from consumers.harnesses import cli as clis
from consumers.harnesses.base import harness_of
from consumers.harnesses.cli import CliHarness
from consumers.harnesses.npm import NpmCli
from consumers.runtimes.base import Exec
from consumers.runtimes.prepare import prepare
from consumers.runtimes.process import ProcessRuntime
from tests.consumers.harnesses.conftest import KEY, MODEL, access_to, set_up, transcript_of
from topics.environment import registry
from topics.environment.blobs import FolderBlobs
from topics.types.agent import AgentSpec
from topics.types.errors import InputError, NotReadyError
from topics.types.task import TaskRequest, parse

NAMES = registry.names(registry.Kind.HARNESS)

pytestmark = pytest.mark.contract

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "harness.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)
SHOWN = dict(reversed(BLOCKS))
"""The first block in each language."""
_, VERSIONED, EQUIPPED = (text for language, text in BLOCKS if language == "yaml")
"""Tasks: with another version of the CLI; with servers, skills and instructions."""


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
    assert await transcript_of(runtime, launch) == "{}\n"


async def test_a_file_is_a_harness_whose_program_runs(
    runtime: ProcessRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "presets").mkdir()
    (tmp_path / "presets" / "my_agent.toml").write_text(SHOWN["toml"])
    monkeypatch.setenv(registry.PRESETS, str(tmp_path / "presets"))
    program = tmp_path / "bin" / "my-agent"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\necho "$MY_AGENT_TELEMETRY $3 $4"\ncat "$2" ~/.my-agent/AGENTS.md -\necho {} >~/.my-agent/session.jsonl\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    servers = [
        {"name": "scales", "transport": "stdio", "command": "python3", "args": ["s.py"], "env": {"UNIT": "kg"}},
        {"name": "web", "transport": "streamable-http", "url": "https://a.org/mcp", "headers": {"X": "y"}},
    ]
    body = {"harness": "my_agent", "model_name": MODEL, "settings": {"api": "anthropic"}, "mcp_servers": servers}
    agent = parse(
        {
            "task_id": "t",
            "instruction": "Mend.\n",
            "agent": body | {"instructions": "Speak plainly.\n"},
            "runtime": {"network": "host"},
        }
    ).agent
    launch = await set_up(runtime, access_to("http://proxy"), "Mend.\n", agent, FolderBlobs(tmp_path / "blobs"))
    result = await runtime.exec(Exec(launch.command, env=dict(launch.env), stdin=str(launch.stdin)))
    assert result.exit_code == 0, result.tail
    begin, config, *rest = result.tail.replace("Speak", "\nSpeak", 1).splitlines()
    assert (begin, rest) == (f"0 --model {MODEL}", ["Speak plainly.", "Mend."])
    assert json.loads(config) == {
        "base_url": "http://proxy",
        "api": "anthropic",
        "key_variable": "ANTHROPIC_API_KEY",
        "limits": {"output": 32000},
        "mcpServers": {
            "scales": {"command": "python3", "args": ["s.py"], "env": {"UNIT": "kg"}},
            "web": {"url": "https://a.org/mcp", "headers": {"X": "y"}},
        },
    }
    assert await transcript_of(runtime, launch) == "{}\n"
    with pytest.raises(InputError, match="there are: max_tokens, api"):
        harness_of(agent.model_copy(update={"settings": {"max_token": 1}}))
    with pytest.raises(InputError, match="my_agent connects to no server by sse; it can by: stdio, streamable-http"):
        harness_of(AgentSpec.model_validate(body | {"mcp_servers": [{"name": "a", "url": "http://a"}]}))


def test_the_task_with_another_version_gets_it_and_the_refusal_is_the_real_one(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = parse(yaml.safe_load(VERSIONED)).agent
    other = harness_of(agent)
    assert isinstance(other, CliHarness)
    assert f"`{other.cli.entry}`" in PAGE
    assert agent.version != type(other).cli.version
    refused = harness_of(agent.model_copy(update={"version": "0.87.99"}))
    assert isinstance(refused, CliHarness)
    monkeypatch.setattr(NpmCli, "listed_versions", lambda *_: ["1.6.0", "1.5.2", "…"])
    monkeypatch.setattr(clis, "RELEASE", re.compile(".*"))
    with pytest.raises(InputError) as raised:
        refused.check_version()
    assert f"polar: {raised.value}" in PAGE


def test_the_task_with_servers_skills_and_instructions_is_one() -> None:
    task = parse(yaml.safe_load(EQUIPPED))
    assert [server.transport for server in task.agent.mcp_servers] == ["stdio", "streamable-http"]
    assert [skill.name for skill in task.agent.skills] == ["weighing"]


def test_the_table_of_places_is_that_of_the_presets() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \| (.*?) \|$", PAGE, re.MULTILINE)
    shown = {name: (transports, skills, rules) for name, transports, skills, rules in rows if name in NAMES}

    def place(path: str | None) -> str:
        return f"`~/{path}`" if path else "–"

    for name in NAMES:
        harness = registry.load(registry.Kind.HARNESS, name)
        transports = ", ".join(f"`{each}`" for each in getattr(harness, "mcp_transports", ())) or "–"
        places = (place(getattr(harness, "skills_folder", None)), place(getattr(harness, "instructions_file", None)))
        assert shown[name] == (transports, *places)


def test_the_command_is_there() -> None:
    python, *arguments = shlex.split(SHOWN["sh"])
    assert python == "python"
    subprocess.run([sys.executable, *arguments], check=True, cwd=ROOT, timeout=600)


def test_the_page_on_harnesses_tells_of_the_versions_that_are_pinned() -> None:
    page = (ROOT / "docs" / "harnesses.md").read_text()
    told = set(re.findall(r"^\| `(\w+)`.*? \| ([\d.]+) \|", page, re.MULTILINE))
    presets = (registry.load(registry.Kind.HARNESS, name) for name in registry.names(registry.Kind.HARNESS))
    assert told == {(each.cli.name, each.cli.version) for each in presets if issubclass(each, CliHarness)}
