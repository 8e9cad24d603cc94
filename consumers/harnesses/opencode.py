"""The harness `opencode`: the real CLI `opencode-ai`, unmodified.

Found by running it: the instruction comes on stdin, complete at 1 MiB and never taken for a command or a file name. A title for the
session avoids the call that would make one. For each folder with settings it installs a package from the npm registry, unless a lock
file beside the settings lists that package: we write one, and a repository's own settings are ignored. Its session is in a database,
so the events that it prints are the transcript.
"""

from __future__ import annotations

import shlex
from pathlib import PurePosixPath
from typing import Literal

import msgspec

from consumers.harnesses.base import Home, Launch, Tokens
from consumers.harnesses.cli import CliHarness, write_json
from consumers.harnesses.npm import NpmCli, native
from consumers.harnesses.preset import Client
from consumers.runtimes.base import ModelAccess, Runtime
from consumers.stages.artifacts import TRANSCRIPT
from topics.types.mcp import STDIO, McpServer

QUIET = {
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    "OPENCODE_DISABLE_PROJECT_CONFIG": "1",
}
"""Only model calls leave the machine."""
SERVER_MS = 60_000
"""Limit for an answer of an MCP server. By default it has 5 s to start, and without it the run goes on."""
LOCK = {"packages": {"": {"dependencies": {"@opencode-ai/plugin": "*"}}}}
ONLY_OURS = '{{"model": "polar/{model}", "small_model": "polar/{model}", "enabled_providers": ["polar"]}}'
"""For a person's opencode, which also reads the person's own settings; these come last."""
BASE_PATHS = {"google": "/v1beta"}
"""The end of each provider's base URL, if it isn't `/v1`."""


class Settings(msgspec.Struct, frozen=True):
    """Settings of a task."""

    provider: Literal["openai-compatible", "openai", "anthropic", "google"] = "openai-compatible"
    """The provider's API and the AI SDK package for it; `openai` is Responses."""
    context_window: Tokens = 262_144
    """Tokens that the CLI takes the model's context to hold; it compacts in time. Left out: the engine's, if it states one."""
    max_tokens: Tokens = 32_000
    """Tokens that the CLI requests for one answer. Left out: at most a quarter of `context_window`."""


class OpenCode(CliHarness[Settings]):
    """See `base.Harness`."""

    settings_type = Settings
    mcp_transports = ("stdio", "sse", "streamable-http")
    skills_folder = ".config/opencode/skills"
    instructions_file = ".config/opencode/AGENTS.md"
    client = Client(
        program="opencode",
        install="npm install -g opencode-ai",
        env={
            "OPENCODE_CONFIG_DIR": "{home}/.config/opencode",
            "OPENCODE_CONFIG_CONTENT": ONLY_OURS,
            "OPENCODE_AUTH_CONTENT": "{{}}",
        },
    )
    cli = NpmCli(
        name="opencode",
        package="opencode-ai",
        version="1.18.33",
        program=f"{native('opencode')}/bin/opencode",
        megabytes=354,
    )

    async def prepare(self, runtime: Runtime, model: ModelAccess, instruction: PurePosixPath) -> Launch:
        env = await self.configure(runtime, model)
        events = runtime.home / "opencode-events.jsonl"
        arguments = ("run", "--model", f"polar/{model.model_name}", "--title", "polar", "--format", "json")
        command = f"{shlex.join(self.cli.command() + arguments)} | tee {shlex.quote(str(events))}"
        return Launch(command, env=env, stdin=instruction, keep={TRANSCRIPT: events})

    async def configure(self, home: Home, model: ModelAccess) -> dict[str, str]:
        folder = home.home / ".config" / "opencode"
        await write_json(home, folder / "opencode.json", self._file(model))
        await write_json(home, folder / "package-lock.json", LOCK)
        await write_json(home, folder / "node_modules" / ".package-lock.json", LOCK)
        return QUIET

    def _file(self, model: ModelAccess) -> dict[str, object]:
        """Its opencode.json."""
        provider = self._settings.provider
        # Google's package treats a name with a slash as a path, and its API has models below `models/`.
        named = {"id": f"models/{model.model_name}"} if provider == "google" else {}
        limit = {"context": self._settings.context_window, "output": self._settings.max_tokens}
        polar = {
            "npm": f"@ai-sdk/{provider}",
            "options": {"baseURL": model.proxy_url + BASE_PATHS.get(provider, "/v1"), "apiKey": "{env:OPENAI_API_KEY}"},
            "models": {model.model_name: {"reasoning": True, "limit": limit, **named}},
        }
        servers = {server.name: _server(server) for server in self._servers}
        return {"autoupdate": False, "share": "disabled", "provider": {"polar": polar}, "mcp": servers}


def _server(server: McpServer) -> dict[str, object]:
    if server.transport == STDIO:
        return {
            "type": "local",
            "command": [server.command, *server.args],
            "environment": server.env,
            "timeout": SERVER_MS,
        }
    # For both transports over HTTP: it tries one and then the other. It would ask people about OAuth.
    return {"type": "remote", "url": server.url, "headers": server.headers, "oauth": False, "timeout": SERVER_MS}
