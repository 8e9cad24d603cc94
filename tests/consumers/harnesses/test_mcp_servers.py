"""The files in which each CLI finds the MCP servers of a task."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.harnesses.base import harness_of
from consumers.harnesses.settings_file import toml_text
from consumers.runtimes.base import Runtime
from tests.consumers.harnesses.conftest import access_to
from topics.types.agent import AgentSpec

HARD = 'a "b" \\ $HOME é 🦓 \n\x7f'
"""A text that a file's format may have to escape."""
STDIO = {"name": "tools", "transport": "stdio", "command": "python3", "args": ["-u", HARD], "env": {"KEY": HARD}}
SSE = {"name": "old", "transport": "sse", "url": "https://a.org/sse", "headers": {"Authorization": "Bearer t"}}
HTTP = {"name": "web", "transport": "streamable-http", "url": "https://b.org/mcp"}


async def written(runtime: Runtime, harness: str, path: str, *servers: dict[str, Any]) -> tuple[str, Any]:
    """The file at `path` in the home, as text, and the launch."""
    agent = AgentSpec.model_validate({"harness": harness, "mcp_servers": list(servers)})
    launch = await harness_of(agent).prepare(runtime, access_to("http://proxy"), runtime.home / "instruction.txt")
    return (await runtime.read_file(runtime.home / path, 10**6)).decode(), launch


async def test_claude_code_gets_a_file_of_servers(runtime: Runtime) -> None:
    await runtime.write_file(runtime.home / "instruction.txt", b"Mend.")
    text, launch = await written(runtime, "claude_code", "mcp.json", STDIO, SSE, HTTP)
    assert launch.command[-2:] == ("--mcp-config", str(runtime.home / "mcp.json"))
    assert json.loads(text)["mcpServers"] == {
        "tools": {"type": "stdio", "command": "python3", "args": ["-u", HARD], "env": {"KEY": HARD}},
        "old": {"type": "sse", "url": "https://a.org/sse", "headers": {"Authorization": "Bearer t"}},
        "web": {"type": "http", "url": "https://b.org/mcp", "headers": {}},
    }


async def test_codex_gets_tables_in_its_config(runtime: Runtime) -> None:
    text, _ = await written(runtime, "codex", ".codex/config.toml", STDIO, HTTP | {"headers": {"X-Key": "t"}})
    config = tomllib.loads(text)
    assert config["mcp_servers"] == {
        "tools": {"command": "python3", "args": ["-u", HARD], "env": {"KEY": HARD}},
        "web": {"url": "https://b.org/mcp", "http_headers": {"X-Key": "t"}},
    }
    assert config["features"]["shell_snapshot"] is False


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_codex_reads_any_text_as_it_is(text: str) -> None:
    assert tomllib.loads(f"a = {toml_text(text)}") == {"a": text}


@pytest.mark.parametrize(
    ("harness", "path"), [("gemini_cli", ".gemini/settings.json"), ("qwen_code", ".qwen/settings.json")]
)
async def test_gemini_cli_and_qwen_code_get_them_in_their_settings(runtime: Runtime, harness: str, path: str) -> None:
    text, _ = await written(runtime, harness, path, STDIO, SSE, HTTP)
    settings = json.loads(text)
    assert settings["mcpServers"] == {
        "tools": {"command": "python3", "args": ["-u", HARD], "env": {"KEY": HARD}},
        "old": {"url": "https://a.org/sse", "headers": {"Authorization": "Bearer t"}},
        "web": {"httpUrl": "https://b.org/mcp", "headers": {}},
    }
    assert settings["telemetry"] == {"enabled": False}


async def test_opencode_gets_them_in_its_settings(runtime: Runtime) -> None:
    text, _ = await written(runtime, "opencode", ".config/opencode/opencode.json", STDIO, SSE, HTTP)
    assert json.loads(text)["mcp"] == {
        "tools": {"type": "local", "command": ["python3", "-u", HARD], "environment": {"KEY": HARD}},
        "old": {
            "type": "remote", "url": "https://a.org/sse", "headers": {"Authorization": "Bearer t"}, "oauth": False,
        },
        "web": {"type": "remote", "url": "https://b.org/mcp", "headers": {}, "oauth": False},
    }  # fmt: skip
