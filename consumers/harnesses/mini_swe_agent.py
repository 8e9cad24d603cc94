"""The harness `mini_swe_agent`: the real `mini` of `mini-swe-agent`, unmodified, on litellm.

Found by running it: litellm needs `mcp` but doesn't declare it. `mini` takes no instruction on stdin or from a file, but the setting
`run.task` works like the argument. It ends when the model runs `echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT`; an answer without a
command is sent back to the model, without a limit. Its trajectory file is the transcript.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Literal

import msgspec

from consumers.harnesses.base import INSTRUCTION_LIMIT, Home, Launch
from consumers.harnesses.cli import CliHarness, write_json
from consumers.harnesses.preset import Client
from consumers.harnesses.pypi import PypiCli
from consumers.runtimes.base import ModelAccess, Runtime
from consumers.stages.artifacts import TRANSCRIPT

TRIES = 3
"""Tries for a failed call. The proxy has already retried it, and litellm's own ten tries would take minutes."""
QUIET = {
    "MSWEA_CONFIGURED": "true",
    "MSWEA_SILENT_STARTUP": "1",
    "MSWEA_COST_TRACKING": "ignore_errors",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}
"""No questions, no list of prices from the network: only model calls leave the machine."""
PROVIDERS = {"anthropic": "anthropic", "gemini": "gemini"}
"""litellm's name of the provider, if it isn't `openai`."""
CLASSES = {"responses": "litellm_response", "text": "litellm_textbased"}
"""mini's name of the class that calls the model, if it isn't `litellm`."""


FOLDER = "mini-swe-agent"


class Settings(msgspec.Struct, frozen=True):
    """Settings of a task."""

    api: Literal["chat", "responses", "anthropic", "gemini", "text"] = "chat"
    """The provider's API; `text` is chat without tools, with commands in code fences."""


class MiniSweAgent(CliHarness[Settings]):
    """See `base.Harness`."""

    settings_type = Settings
    client = Client(
        program="mini", install="pip install mini-swe-agent mcp", env={"MSWEA_MODEL_NAME": "openai/{model}"}
    )
    cli = PypiCli(
        name="mini_swe_agent",
        package="mini-swe-agent",
        version="2.4.6",
        beside=("litellm==1.106.2", "mcp==2.3.0"),
        module="minisweagent.run.mini",
        megabytes=735,
    )

    async def prepare(self, runtime: Runtime, model: ModelAccess, instruction: PurePosixPath) -> Launch:
        text = (await runtime.read_file(instruction, INSTRUCTION_LIMIT)).decode()
        settings = runtime.home / FOLDER / "polar.yaml"
        await write_json(runtime, settings, self._file(model, text))  # JSON is YAML
        trajectory = runtime.home / "mini-swe-agent.traj.json"
        base = "mini_textbased.yaml" if self._settings.api == "text" else "mini.yaml"
        arguments = ("--yolo", "--exit-immediately", "--config", base, "--config", str(settings))
        return Launch(
            (*self.cli.command(), *arguments, "--output", str(trajectory)),
            env=await self.configure(runtime, model),
            keep={TRANSCRIPT: trajectory},
        )

    async def configure(self, home: Home, model: ModelAccess) -> dict[str, str]:  # noqa: ARG002 - the task's file names the model
        return QUIET | {
            "MSWEA_GLOBAL_CONFIG_DIR": str(home.home / FOLDER),
            "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": str(TRIES),
        }

    def _file(self, model: ModelAccess, task: str) -> dict[str, object]:
        """Settings that override its mini.yaml."""
        settings: dict[str, object] = {
            "model_name": f"{PROVIDERS.get(self._settings.api, 'openai')}/{model.model_name}",
            "model_class": CLASSES.get(self._settings.api, "litellm"),
        }
        if self._settings.api == "gemini":
            settings["model_kwargs"] = {"api_base": f"{model.proxy_url}/v1beta"}
        return {"run": {"task": task}, "model": settings, "agent": {"cost_limit": 0}}
