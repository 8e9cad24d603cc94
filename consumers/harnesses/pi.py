"""The harness `pi`: the real CLI `@earendil-works/pi-coding-agent`, unmodified. The pattern of a preset: see docs/harness.md.

What was found by running it: the instruction comes on stdin, whole at 1 MiB and never taken for an option, a file name or a slash
command; `--mode json` exits 0 even where no model answered, so `--mode text` it is, whose exit code tells, with the session file as
the transcript; `apiKey` in models.json may name an environment variable, so that the key is in no file.
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

QUIET = {"PI_OFFLINE": "1", "PI_TELEMETRY": "0", "PI_SKIP_VERSION_CHECK": "1"}
"""No catalog refresh, no telemetry, no look for a newer version: nothing but model calls leaves the machine."""
BASE_PATHS = {"openai-completions": "/v1", "openai-responses": "/v1", "google-generative-ai": "/v1beta"}
"""What each API's base URL ends in; nothing for one that isn't here."""


class Settings(msgspec.Struct, frozen=True):
    """What a task may set."""

    api: Literal["openai-completions", "openai-responses", "anthropic-messages", "google-generative-ai"] = (
        "openai-completions"
    )
    """Which provider's API it speaks, by pi's own names."""
    context_window: Tokens = 262_144
    max_tokens: Tokens = 8_192


class Pi(CliHarness):
    """See `base.Harness`."""

    cli = NpmCli(
        name="pi",
        package="@earendil-works/pi-coding-agent",
        version="0.87.1",  # node ≥ 22.19
        program="@earendil-works/pi-coding-agent/dist/bundle/cli.js",
        megabytes=160,
    )

    def __init__(self, agent: AgentSpec) -> None:
        self._settings = checked_settings(agent, Settings)

    async def prepare(self, runtime: Runtime, model: ModelAccess, instruction: PurePosixPath) -> Launch:
        settings = runtime.home / ".pi" / "agent" / "models.json"
        await runtime.write_file(settings, json.dumps(self._models(model)).encode())
        transcript = runtime.home / "pi-session.jsonl"
        arguments = (
            *("--print", "--mode", "text", "--session", str(transcript)),
            *("--provider", "polar", "--model", model.model_name),
        )
        return Launch(self.cli.command() + arguments, env=QUIET, stdin=instruction, keep={TRANSCRIPT: transcript})

    def _models(self, model: ModelAccess) -> dict[str, object]:
        """pi's models.json."""
        api = self._settings.api
        served = {
            "id": model.model_name,
            "contextWindow": self._settings.context_window,
            "maxTokens": self._settings.max_tokens,
        }
        provider = {
            "baseUrl": model.proxy_url + BASE_PATHS.get(api, ""),
            "api": api,
            "apiKey": "$OPENAI_API_KEY",
            "models": [served],
        }
        return {"providers": {"polar": provider}}
