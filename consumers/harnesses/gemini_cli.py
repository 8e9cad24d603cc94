"""The harness `gemini_cli`: the real CLI `@google/gemini-cli`, unmodified.

Found by running it: the instruction comes on stdin, complete at 1 MiB and never taken for a command. If it contains `@name` and the
workspace has a file of exactly that name, the file's content is added. This can't be turned off; only the search for similar names can.
With a model's name it doesn't call another model to choose one. The chat's file, named by date and id, is the transcript.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from consumers.harnesses.base import Launch, NoSettings
from consumers.harnesses.cli import CliHarness, write_json
from consumers.harnesses.gemini_servers import servers_table
from consumers.harnesses.npm import NpmCli
from consumers.runtimes.base import ModelAccess, Runtime
from consumers.stages.artifacts import TRANSCRIPT

SETTINGS = {
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
    "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
    "security": {"auth": {"selectedType": "gemini-api-key"}},
    "context": {"fileFiltering": {"enableRecursiveFileSearch": False}},
}
"""Only model calls leave the machine: no statistics, no telemetry, no check for updates."""


class GeminiCli(CliHarness[NoSettings]):
    """See `base.Harness`."""

    settings_type = NoSettings
    mcp_transports = ("stdio", "sse", "streamable-http")
    cli = NpmCli(
        name="gemini_cli",
        package="@google/gemini-cli",
        version="0.61.0",
        program="@google/gemini-cli/bundle/gemini.js",
        megabytes=100,
    )

    async def prepare(self, runtime: Runtime, model: ModelAccess, instruction: PurePosixPath) -> Launch:
        home = runtime.home / ".gemini"
        await write_json(runtime, home / "settings.json", SETTINGS | {"mcpServers": servers_table(self._servers)})
        return Launch(
            (*self.cli.command(), "--yolo", "--model", model.model_name),
            env={"GEMINI_CLI_TRUST_WORKSPACE": "true"},
            stdin=instruction,
            keep={TRANSCRIPT: home / "tmp" / "*" / "chats" / "session-*.jsonl"},
        )
