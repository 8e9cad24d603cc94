"""The harness `pi`: the real CLI `@earendil-works/pi-coding-agent`, unmodified. The pattern of a preset: see docs/harness.md.

Found by running it: the instruction comes on stdin, complete at 1 MiB and never taken for an option, a file name or a slash command.
`--mode json` exits 0 even if no model answered; `--mode text` has an exit code that shows success, so the session file is the
transcript. `apiKey` in models.json may name an environment variable, so the key is in no file.
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

QUIET = {"PI_OFFLINE": "1", "PI_TELEMETRY": "0", "PI_SKIP_VERSION_CHECK": "1"}
"""No catalog refresh, no telemetry, no check for updates: only model calls leave the machine."""
BASE_PATHS = {"openai-completions": "/v1", "openai-responses": "/v1", "google-generative-ai": "/v1beta"}
"""The end of each API's base URL; empty for an API that isn't listed."""


class Settings(msgspec.Struct, frozen=True):
    """Settings of a task."""

    api: Literal["openai-completions", "openai-responses", "anthropic-messages", "google-generative-ai"] = (
        "openai-completions"
    )
    """The provider's API, by pi's own names."""
    context_window: Tokens = 262_144
    """Tokens that the CLI takes the model's context to hold; it compacts in time."""
    max_tokens: Tokens = 8_192
    """Tokens that the CLI requests for one answer."""


class Pi(CliHarness[Settings]):
    """See `base.Harness`."""

    settings_type = Settings
    cli = NpmCli(
        name="pi",
        package="@earendil-works/pi-coding-agent",
        version="0.87.1",  # node ≥ 22.19
        program="@earendil-works/pi-coding-agent/dist/bundle/cli.js",
        megabytes=160,
    )

    async def prepare(self, runtime: Runtime, model: ModelAccess, instruction: PurePosixPath) -> Launch:
        settings = runtime.home / ".pi" / "agent" / "models.json"
        await write_json(runtime, settings, self._models(model))
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
