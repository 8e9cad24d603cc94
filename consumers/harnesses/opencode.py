"""The harness `opencode`: the real CLI `opencode-ai`, unmodified.

What was found by running it: the instruction comes on stdin, whole at 1 MiB and never taken for a command or a file name; a title given
to the session spares the call that would make one. For each folder with settings it installs a package of its own from the npm registry,
unless a lock file beside them says that it is there: one does, and a repository's own settings are left alone. Its session stands in a
database, so the events that it prints are the transcript.
"""

from __future__ import annotations

import json
import shlex
from pathlib import PurePosixPath
from typing import Literal

import msgspec

from consumers.harnesses.base import Launch, ModelAccess, Tokens, checked_settings
from consumers.harnesses.cli import CliHarness
from consumers.harnesses.npm import NpmCli, native
from consumers.runtimes.base import Runtime
from consumers.stages.artifacts import TRANSCRIPT
from topics.types.task import AgentSpec

QUIET = {
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    "OPENCODE_DISABLE_PROJECT_CONFIG": "1",
}
"""Nothing but model calls leaves the machine."""
LOCK = {"packages": {"": {"dependencies": {"@opencode-ai/plugin": "*"}}}}
BASE_PATHS = {"google": "/v1beta"}
"""What each provider's base URL ends in, where it isn't `/v1`."""


class Settings(msgspec.Struct, frozen=True):
    """What a task may set."""

    provider: Literal["openai-compatible", "openai", "anthropic", "google"] = "openai-compatible"
    """Whose API it speaks, and with that which of the AI SDK's packages; `openai` is Responses."""
    context_window: Tokens = 262_144
    max_tokens: Tokens = 32_000


class OpenCode(CliHarness):
    """See `base.Harness`."""

    cli = NpmCli(
        name="opencode",
        package="opencode-ai",
        version="1.18.33",
        program=f"{native('opencode')}/bin/opencode",
        megabytes=354,
    )

    def __init__(self, agent: AgentSpec) -> None:
        self._settings = checked_settings(agent, Settings)

    async def prepare(self, runtime: Runtime, model: ModelAccess, instruction: PurePosixPath) -> Launch:
        home = runtime.home / ".config" / "opencode"
        await runtime.write_file(home / "opencode.json", json.dumps(self._file(model)).encode())
        await runtime.write_file(home / "package-lock.json", json.dumps(LOCK).encode())
        await runtime.write_file(home / "node_modules" / ".package-lock.json", json.dumps(LOCK).encode())
        events = runtime.home / "opencode-events.jsonl"
        arguments = ("run", "--model", f"polar/{model.model_name}", "--title", "polar", "--format", "json")
        command = f"{shlex.join(self.cli.command() + arguments)} | tee {shlex.quote(str(events))}"
        return Launch(command, env=QUIET, stdin=instruction, keep={TRANSCRIPT: events})

    def _file(self, model: ModelAccess) -> dict[str, object]:
        """Its opencode.json."""
        provider = self._settings.provider
        # Google's package takes a name with a slash for a path, and its API has models below `models/`.
        named = {"id": f"models/{model.model_name}"} if provider == "google" else {}
        limit = {"context": self._settings.context_window, "output": self._settings.max_tokens}
        polar = {
            "npm": f"@ai-sdk/{provider}",
            "options": {"baseURL": model.proxy_url + BASE_PATHS.get(provider, "/v1"), "apiKey": "{env:OPENAI_API_KEY}"},
            "models": {model.model_name: {"reasoning": True, "limit": limit, **named}},
        }
        return {"autoupdate": False, "share": "disabled", "provider": {"polar": polar}}
