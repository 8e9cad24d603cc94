"""The harness `qwen_code`: the real CLI `@qwen-code/qwen-code`, unmodified.

What was found by running it: the instruction comes on stdin, whole at 1 MiB (two newlines come after it) and never taken for a command;
where it says `@name` a blank comes before that, and where the workspace has a file of exactly that name, its content is added, which
can't be turned off. `--output-format stream-json` exits 0 even where no model answered; text output it is, whose exit code tells. Its
auth type `openai-responses` is none of ours: it repeats what the model thought as if the model had said it. The chat's file is the
transcript.
"""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import Literal

import msgspec

from consumers.harnesses.base import Launch, ModelAccess, Tokens, checked_settings
from consumers.harnesses.cli import CliHarness
from consumers.harnesses.npm import NpmCli
from consumers.runtimes.base import Runtime
from consumers.stages.artifacts import TRANSCRIPT
from topics.types.task import AgentSpec


class Settings(msgspec.Struct, frozen=True):
    """What a task may set."""

    auth_type: Literal["openai", "anthropic", "gemini"] = "openai"
    """Which provider's API it speaks, by Qwen Code's own names."""
    context_window: Tokens = 262_144
    max_tokens: Tokens = 32_000


class QwenCode(CliHarness):
    """See `base.Harness`."""

    cli = NpmCli(
        name="qwen_code",
        package="@qwen-code/qwen-code",
        version="0.24.4",
        program="@qwen-code/qwen-code/cli-entry.js",
        megabytes=152,
    )

    def __init__(self, agent: AgentSpec) -> None:
        self._settings = checked_settings(agent, Settings)

    async def prepare(self, runtime: Runtime, model: ModelAccess, instruction: PurePosixPath) -> Launch:
        home = runtime.home / ".qwen"
        await runtime.write_file(home / "settings.json", json.dumps(self._file()).encode())
        # Gemini's base URL is looked for in either place.
        env = {"QWEN_CODE_SUPPRESS_YOLO_WARNING": "1", "GEMINI_BASE_URL": model.proxy_url}
        return Launch(
            (*self.cli.command(), "--yolo", "--auth-type", self._settings.auth_type, "--model", model.model_name),
            env=env,
            stdin=instruction,
            keep={TRANSCRIPT: home / "projects" / "*" / "chats" / "*.jsonl"},
        )

    def _file(self) -> dict[str, object]:
        """Its settings.json: nothing but model calls leaves the machine."""
        return {
            "privacy": {"usageStatisticsEnabled": False},
            "telemetry": {"enabled": False},
            "general": {"enableAutoUpdate": False},
            "security": {"auth": {"selectedType": self._settings.auth_type}},
            "context": {"fileFiltering": {"enableRecursiveFileSearch": False}},
            # Sub-agents that go through what was said, for memories that no later session would read.
            "memory": {"enableManagedAutoMemory": False, "enableManagedAutoDream": False},
            # Its ripgrep comes without the right to be run: install scripts don't run.
            "tools": {"useRipgrep": False},
            "model": {
                "generationConfig": {
                    "contextWindowSize": self._settings.context_window,
                    "samplingParams": {"max_tokens": self._settings.max_tokens},
                }
            },
        }
