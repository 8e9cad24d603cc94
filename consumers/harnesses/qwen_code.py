"""The harness `qwen_code`: the real CLI `@qwen-code/qwen-code`, unmodified.

Found by running it: the instruction comes on stdin, complete at 1 MiB (with two newlines behind it) and never taken for a command. A
space is added before each `@name`, and if the workspace has a file of exactly that name, its content is added; this can't be turned
off. `--output-format stream-json` exits 0 even if no model answered; text output has an exit code that shows success. The auth type
`openai-responses` isn't offered: it repeats the model's reasoning as if it were the model's answer. The chat's file is the transcript.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Literal

import msgspec

from consumers.harnesses.base import Launch, Tokens
from consumers.harnesses.cli import CliHarness, write_json
from consumers.harnesses.npm import NpmCli
from consumers.runtimes.base import ModelAccess, Runtime
from consumers.stages.artifacts import TRANSCRIPT


class Settings(msgspec.Struct, frozen=True):
    """Settings of a task."""

    auth_type: Literal["openai", "anthropic", "gemini"] = "openai"
    """The provider's API, by Qwen Code's own names."""
    context_window: Tokens = 262_144
    """Tokens that the CLI takes the model's context to hold; it compacts in time."""
    max_tokens: Tokens = 32_000
    """Tokens that the CLI requests for one answer."""


class QwenCode(CliHarness[Settings]):
    """See `base.Harness`."""

    settings_type = Settings
    cli = NpmCli(
        name="qwen_code",
        package="@qwen-code/qwen-code",
        version="0.24.4",
        program="@qwen-code/qwen-code/cli-entry.js",
        megabytes=152,
    )

    async def prepare(self, runtime: Runtime, model: ModelAccess, instruction: PurePosixPath) -> Launch:
        home = runtime.home / ".qwen"
        await write_json(runtime, home / "settings.json", self._file())
        # Gemini's base URL is read from either variable.
        env = {"QWEN_CODE_SUPPRESS_YOLO_WARNING": "1", "GEMINI_BASE_URL": model.proxy_url}
        return Launch(
            (*self.cli.command(), "--yolo", "--auth-type", self._settings.auth_type, "--model", model.model_name),
            env=env,
            stdin=instruction,
            keep={TRANSCRIPT: home / "projects" / "*" / "chats" / "*.jsonl"},
        )

    def _file(self) -> dict[str, object]:
        """Its settings.json. Only model calls leave the machine."""
        return {
            "privacy": {"usageStatisticsEnabled": False},
            "telemetry": {"enabled": False},
            "general": {"enableAutoUpdate": False},
            "security": {"auth": {"selectedType": self._settings.auth_type}},
            "context": {"fileFiltering": {"enableRecursiveFileSearch": False}},
            # Sub-agents that search the conversation for memories, which no later session would read.
            "memory": {"enableManagedAutoMemory": False, "enableManagedAutoDream": False},
            # Its ripgrep isn't executable, because install scripts don't run.
            "tools": {"useRipgrep": False},
            "model": {
                "generationConfig": {
                    "contextWindowSize": self._settings.context_window,
                    "samplingParams": {"max_tokens": self._settings.max_tokens},
                }
            },
        }
