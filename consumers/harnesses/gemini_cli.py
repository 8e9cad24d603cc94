"""The harness `gemini_cli`: the real CLI `@google/gemini-cli`, unmodified.

What was found by running it: the instruction comes on stdin, whole at 1 MiB and never taken for a command; where it says `@name` and the
workspace has a file of exactly that name, the file's content is added to it, which can't be turned off (what can is the search for
names that are only like it). Named a model, it asks for no other to choose one. The chat's file, named by date and id, is the transcript.
"""

from __future__ import annotations

import json
from pathlib import PurePosixPath

from consumers.harnesses.base import Launch, ModelAccess, NoSettings, checked_settings
from consumers.harnesses.cli import CliHarness
from consumers.harnesses.npm import NpmCli
from consumers.runtimes.base import Runtime
from consumers.stages.artifacts import TRANSCRIPT
from topics.types.task import AgentSpec

SETTINGS = {
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
    "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
    "security": {"auth": {"selectedType": "gemini-api-key"}},
    "context": {"fileFiltering": {"enableRecursiveFileSearch": False}},
}
"""Nothing but model calls leaves the machine: no statistics, no telemetry, no look for a newer version."""


class GeminiCli(CliHarness):
    """See `base.Harness`."""

    cli = NpmCli(
        name="gemini_cli",
        package="@google/gemini-cli",
        version="0.61.0",
        program="@google/gemini-cli/bundle/gemini.js",
        megabytes=100,
    )

    def __init__(self, agent: AgentSpec) -> None:
        checked_settings(agent, NoSettings)

    async def prepare(self, runtime: Runtime, model: ModelAccess, instruction: PurePosixPath) -> Launch:
        home = runtime.home / ".gemini"
        await runtime.write_file(home / "settings.json", json.dumps(SETTINGS).encode())
        return Launch(
            (*self.cli.command(), "--yolo", "--model", model.model_name),
            env={"GEMINI_CLI_TRUST_WORKSPACE": "true"},
            stdin=instruction,
            keep={TRANSCRIPT: home / "tmp" / "*" / "chats" / "session-*.jsonl"},
        )
