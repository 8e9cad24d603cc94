"""The harness `codex`: the real CLI `@openai/codex`, unmodified.

Found by running it: the instruction comes on stdin, complete at 1 MiB and never taken for a command. Only `config.toml` sets the
model's address (`OPENAI_BASE_URL` is ignored); it names the variable with the key. A snapshot of the shell would keep the environment,
and so the key, in a file. Codex stops at the first 429 without `Retry-After`. It works without its own sandbox, because the runtime is
one. The rollout, a file named by date and id, is the transcript.
"""

from __future__ import annotations

import json
from pathlib import PurePosixPath

import msgspec

from consumers.harnesses.base import Launch, Tokens
from consumers.harnesses.cli import CliHarness
from consumers.harnesses.npm import NpmCli
from consumers.runtimes.base import ModelAccess, Runtime
from consumers.stages.artifacts import TRANSCRIPT

CONFIG = """\
model_provider = "polar"
model = {model}
model_context_window = {context_window}
web_search = "disabled"
check_for_update_on_startup = false
[model_providers.polar]
name = "Polar"
base_url = {base_url}
env_key = "OPENAI_API_KEY"
wire_api = "responses"
stream_idle_timeout_ms = {idle_timeout_ms}
[analytics]
enabled = false
[otel]
metrics_exporter = "none"
[features]
apps = false
plugins = false
remote_plugin = false
shell_snapshot = false
"""
"""Only model calls leave the machine: no catalogs of plug-ins and apps, no metrics, no check for updates."""
IDLE_TIMEOUT_MS = 3_300_000
"""Longest wait for an event of an answer (keep-alives don't count): the proxy's longest call, since a pause may last half an hour."""


class Settings(msgspec.Struct, frozen=True):
    """Settings of a task."""

    context_window: Tokens = 262_144
    """Tokens that the CLI takes the model's context to hold; it compacts in time."""


class Codex(CliHarness[Settings]):
    """See `base.Harness`."""

    settings_type = Settings
    cli = NpmCli(
        name="codex",
        package="@openai/codex",
        version="0.169.0",
        program="@openai/codex/bin/codex.js",
        megabytes=404,
    )

    async def prepare(self, runtime: Runtime, model: ModelAccess, instruction: PurePosixPath) -> Launch:
        home = runtime.home / ".codex"
        # TOML writes a basic string like JSON.
        config = CONFIG.format(
            model=json.dumps(model.model_name),
            base_url=json.dumps(f"{model.proxy_url}/v1"),
            context_window=self._settings.context_window,
            idle_timeout_ms=IDLE_TIMEOUT_MS,
        )
        await runtime.write_file(home / "config.toml", config.encode())
        arguments = (
            "exec",
            "--dangerously-bypass-approvals-and-sandbox",
            "--skip-git-repo-check",
            "--color",
            "never",
            "-",
        )
        return Launch(
            self.cli.command() + arguments,
            stdin=instruction,
            keep={TRANSCRIPT: home / "sessions" / "*" / "*" / "*" / "rollout-*.jsonl"},
        )
