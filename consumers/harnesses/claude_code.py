"""The harness `claude_code`: the real CLI `@anthropic-ai/claude-code`, unmodified.

Found by running it: the instruction comes on stdin, complete at 1 MiB. An instruction that begins with a slash would be taken for a
slash command, unless a newline stands before it. `@name` would add that file's content, unless mentions are off. As root it works only
if `IS_SANDBOX` is set. A run is one conversation that only grows, with one exception: `ToolSearch` adds the tools that it finds to the
beginning of every prompt, so all tools are given from the start. Text output is used, because its exit code shows success. The
session's file, in a folder named after the workspace, is the transcript.
"""

from __future__ import annotations

from pathlib import PurePosixPath

import msgspec

from consumers.harnesses.base import INSTRUCTION_LIMIT, Home, Launch, Tokens
from consumers.harnesses.cli import CliHarness, write_json
from consumers.harnesses.npm import NpmCli, native
from consumers.harnesses.preset import Client
from consumers.runtimes.base import ModelAccess, Runtime
from consumers.stages.artifacts import TRANSCRIPT
from topics.types.mcp import STDIO, McpServer

QUIET = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}
"""No telemetry, no titles, no check for updates: only model calls leave the machine."""
PLAIN = {
    "IS_SANDBOX": "1",
    "ENABLE_TOOL_SEARCH": "false",
    "CLAUDE_CODE_DISABLE_FILE_MENTIONS": "1",
    # Otherwise every prompt begins with a line for billing that differs from task to task.
    "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
}

SERVERS = {"MCP_CONNECTION_NONBLOCKING": "0", "MCP_TIMEOUT": "60000"}
"""The first prompt waits a minute for MCP servers. By default it leaves after 5 s, without the tools of those that still start."""


class Settings(msgspec.Struct, frozen=True):
    """Settings of a task."""

    context_window: Tokens = 200_000
    """Tokens that the CLI takes the model's context to hold; it compacts in time. Left out: the engine's, if it states one."""
    max_tokens: Tokens = 32_000
    """Tokens that the CLI requests for one answer. Left out: at most a quarter of `context_window`."""


class ClaudeCode(CliHarness[Settings]):
    """See `base.Harness`."""

    settings_type = Settings
    mcp_transports = ("stdio", "sse", "streamable-http")
    skills_folder = ".claude/skills"
    instructions_file = ".claude/CLAUDE.md"
    client = Client(
        program="claude",
        install="npm install -g @anthropic-ai/claude-code",
        env={"CLAUDE_CONFIG_DIR": "{home}/.claude", "ANTHROPIC_MODEL": "{model}"},
    )
    cli = NpmCli(
        name="claude_code",
        package="@anthropic-ai/claude-code",
        version="2.1.329",
        program=f"{native('@anthropic-ai/claude-code')}/claude",
        megabytes=361,
    )

    async def prepare(self, runtime: Runtime, model: ModelAccess, instruction: PurePosixPath) -> Launch:
        if (await runtime.read_file(instruction, 1)) == b"/":
            text = await runtime.read_file(instruction, INSTRUCTION_LIMIT)
            instruction = runtime.home / "instruction-as-text.txt"
            await runtime.write_file(instruction, b"\n" + text)
        env = await self.configure(runtime, model)
        arguments: tuple[str, ...] = ("--print", "--model", model.model_name, "--dangerously-skip-permissions")
        if self._servers:
            servers = runtime.home / "mcp.json"
            await write_json(runtime, servers, {"mcpServers": {each.name: _server(each) for each in self._servers}})
            arguments += ("--mcp-config", str(servers))
            env |= SERVERS
        return Launch(
            self.cli.command() + arguments,
            env=env,
            stdin=instruction,
            keep={TRANSCRIPT: runtime.home / ".claude" / "projects" / "*" / "*.jsonl"},
        )

    async def configure(self, home: Home, model: ModelAccess) -> dict[str, str]:  # noqa: ARG002 - it has no settings file
        limits = {
            "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(self._settings.context_window),
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(self._settings.max_tokens),
        }
        return QUIET | PLAIN | limits


def _server(server: McpServer) -> dict[str, object]:
    if server.transport == STDIO:
        return {"type": "stdio", "command": server.command, "args": server.args, "env": server.env}
    kind = "http" if server.transport == "streamable-http" else "sse"
    return {"type": kind, "url": server.url, "headers": server.headers}
