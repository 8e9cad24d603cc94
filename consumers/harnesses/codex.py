"""The harness `codex`: the real CLI `@openai/codex`, unmodified.

What was found by running it: the instruction comes on stdin, whole at 1 MiB and never taken for a command; where the model is stands in
`config.toml` alone (`OPENAI_BASE_URL` is ignored), which names the variable that holds the key. A snapshot of the shell, which it would
take, keeps the environment, and so the key, in a file. It stops at the first answer that says 429 without `Retry-After`. It works without
its sandbox, the runtime being one. The rollout, a file named by date and id, is the transcript.
"""

from __future__ import annotations

import json
from pathlib import PurePosixPath

import msgspec

from consumers.harnesses.base import Launch, ModelAccess, Tokens, checked_settings
from consumers.harnesses.cli import CliHarness
from consumers.harnesses.npm import NpmCli
from consumers.runtimes.base import Runtime
from consumers.stages.artifacts import TRANSCRIPT
from topics.types.task import AgentSpec

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
stream_idle_timeout_ms = {patience_ms}
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
"""Nothing but model calls leaves the machine: no catalogs of plug-ins and apps, no measurements, no look for a newer version."""
PATIENCE_MS = 3_300_000
"""For an event of an answer; keep-alives are none to it. As long as the proxy's longest call: pauses may hold it for half an hour."""


class Settings(msgspec.Struct, frozen=True):
    """What a task may set."""

    context_window: Tokens = 262_144


class Codex(CliHarness):
    """See `base.Harness`."""

    cli = NpmCli(
        name="codex",
        package="@openai/codex",
        version="0.169.0",
        program="@openai/codex/bin/codex.js",
        megabytes=404,
    )

    def __init__(self, agent: AgentSpec) -> None:
        self._settings = checked_settings(agent, Settings)

    async def prepare(self, runtime: Runtime, model: ModelAccess, instruction: PurePosixPath) -> Launch:
        home = runtime.home / ".codex"
        # A basic string of TOML is written as JSON writes it.
        config = CONFIG.format(
            model=json.dumps(model.model_name),
            base_url=json.dumps(f"{model.proxy_url}/v1"),
            context_window=self._settings.context_window,
            patience_ms=PATIENCE_MS,
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
