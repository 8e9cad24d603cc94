"""The files in which each CLI finds the MCP servers of a task."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.harnesses.base import Launch, harness_of
from consumers.harnesses.settings_file import toml_text
from consumers.runtimes.base import Runtime
from tests.consumers.harnesses.conftest import access_to
from topics.environment import registry
from topics.types.agent import AgentSpec

HARD = 'a "b" \\ $HOME é 🦓 \n\x7f'
"""A text that a file's format may have to escape."""
STDIO = {"name": "tools", "transport": "stdio", "command": "python3", "args": ["-u", HARD], "env": {"KEY": HARD}}
SSE = {"name": "old", "transport": "sse", "url": "https://a.org/sse", "headers": {"Authorization": "Bearer t"}}
HTTP = {"name": "web", "transport": "streamable-http", "url": "https://b.org/mcp", "headers": {"X-Key": "t"}}
SERVERS: dict[str, dict[str, Any]] = {"stdio": STDIO, "sse": SSE, "streamable-http": HTTP}


MCP_JSON = "mcp.json"


@dataclass(frozen=True)
class Place:
    """Where a CLI reads its servers: `file` in the home, under `key`; `entries` by transport, for the servers above."""

    file: str
    key: str
    entries: dict[str, dict[str, Any]]


def _qwen_code(entry: dict[str, Any]) -> dict[str, Any]:
    """Its tools are in every prompt, and it has a minute to connect."""
    return {**entry, "alwaysLoadTools": True, "discoveryTimeoutMs": 60_000}


STDIO_ENTRY = {"command": "python3", "args": ["-u", HARD], "env": {"KEY": HARD}}
SSE_ENTRY = {"url": "https://a.org/sse", "headers": {"Authorization": "Bearer t"}}
HTTP_ENTRY: dict[str, Any] = {"httpUrl": "https://b.org/mcp", "headers": {"X-Key": "t"}}
REMOTE = {"type": "remote", "oauth": False, "timeout": 60_000}
PLACES = {
    "claude_code": Place(
        MCP_JSON,
        "mcpServers",
        {
            "stdio": {"type": "stdio", **STDIO_ENTRY},
            "sse": {"type": "sse", **SSE_ENTRY},
            "streamable-http": {"type": "http", "url": "https://b.org/mcp", "headers": {"X-Key": "t"}},
        },
    ),
    "codex": Place(
        ".codex/config.toml",
        "mcp_servers",
        {
            "stdio": {**STDIO_ENTRY, "startup_timeout_sec": 60},
            "streamable-http": {"url": "https://b.org/mcp", "http_headers": {"X-Key": "t"}, "startup_timeout_sec": 60},
        },
    ),
    "gemini_cli": Place(
        ".gemini/settings.json",
        "mcpServers",
        {"stdio": STDIO_ENTRY, "sse": SSE_ENTRY, "streamable-http": HTTP_ENTRY},
    ),
    "qwen_code": Place(
        ".qwen/settings.json",
        "mcpServers",
        {"stdio": _qwen_code(STDIO_ENTRY), "sse": _qwen_code(SSE_ENTRY), "streamable-http": _qwen_code(HTTP_ENTRY)},
    ),
    "opencode": Place(
        ".config/opencode/opencode.json",
        "mcp",
        {
            "stdio": {
                "type": "local", "command": ["python3", "-u", HARD], "environment": {"KEY": HARD}, "timeout": 60_000,
            },
            "sse": {**REMOTE, **SSE_ENTRY},
            "streamable-http": {**REMOTE, "url": "https://b.org/mcp", "headers": {"X-Key": "t"}},
        },
    ),
}  # fmt: skip
"""Settings with which each CLI connected in `tests/harnesses/test_equipment.py`."""


async def prepared(runtime: Runtime, harness: str, *servers: dict[str, Any]) -> Launch:
    await runtime.write_file(runtime.home / "instruction.txt", b"Mend.")
    agent = AgentSpec.model_validate({"harness": harness, "mcp_servers": list(servers)})
    return await harness_of(agent).prepare(runtime, access_to("http://proxy"), runtime.home / "instruction.txt")


async def settings_of(runtime: Runtime, place: Place) -> dict[str, Any]:
    """The file, by the format that its name ends with."""
    text = (await runtime.read_file(runtime.home / place.file, 10**6)).decode()
    found: dict[str, Any] = tomllib.loads(text) if place.file.endswith(".toml") else json.loads(text)
    return found


@pytest.mark.parametrize("harness", registry.names(registry.Kind.HARNESS))
async def test_each_cli_gets_the_servers_of_all_its_transports_in_its_own_format(
    runtime: Runtime, harness: str
) -> None:
    transports = getattr(registry.load(registry.Kind.HARNESS, harness), "mcp_transports", ())
    place = PLACES.get(harness)
    assert set(transports) == set(place.entries if place else ())
    if place is None:
        return
    await prepared(runtime, harness, *(SERVERS[transport] for transport in transports))
    written = (await settings_of(runtime, place))[place.key]
    assert written == {SERVERS[transport]["name"]: place.entries[transport] for transport in transports}


@pytest.mark.parametrize("harness", sorted(PLACES.keys() - {"claude_code"}))
async def test_servers_leave_the_other_settings_as_they_are(runtime: Runtime, harness: str) -> None:
    place = PLACES[harness]
    await prepared(runtime, harness)
    alone = await settings_of(runtime, place)
    await prepared(runtime, harness, STDIO)
    beside = await settings_of(runtime, place)
    assert {**beside, place.key: None} == {**alone, place.key: None}


async def test_claude_code_is_led_to_its_file_and_waits_for_its_servers(runtime: Runtime) -> None:
    assert "--mcp-config" not in (await prepared(runtime, "claude_code")).command
    launch = await prepared(runtime, "claude_code", STDIO)
    assert launch.command[-2:] == ("--mcp-config", str(runtime.home / MCP_JSON))
    assert launch.env["MCP_CONNECTION_NONBLOCKING"] == "0"


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_codex_reads_any_text_as_it_is(text: str) -> None:
    assert tomllib.loads(f"a = {toml_text(text)}") == {"a": text}
