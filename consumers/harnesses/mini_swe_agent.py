"""The harness `mini_swe_agent`: the real `mini` of `mini-swe-agent`, unmodified, with litellm beneath.

What was found by running it: litellm needs `mcp` and doesn't ask for it; it takes no instruction on stdin or from a file, and a setting
`run.task` does as well as an argument. It ends when the model runs `echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT`; an answer without a
command is sent back to the model, without an end. Its trajectory file is the transcript.
"""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import Literal

import msgspec

from consumers.harnesses.base import Launch, ModelAccess, checked_settings
from consumers.harnesses.cli import CliHarness
from consumers.harnesses.pypi import PypiCli
from consumers.runtimes.base import Runtime
from consumers.stages.artifacts import TRANSCRIPT
from topics.types.task import AgentSpec

INSTRUCTION_LIMIT = 1024 * 1024
"""Bytes; a task's instruction is no longer."""
TRIES = 3
"""For a call that failed: the proxy has tried it again itself, and its own ten would take minutes."""
QUIET = {
    "MSWEA_CONFIGURED": "true",
    "MSWEA_SILENT_STARTUP": "1",
    "MSWEA_COST_TRACKING": "ignore_errors",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}
"""No questions, no list of prices from the network: nothing but model calls leaves the machine."""
PROVIDERS = {"anthropic": "anthropic", "gemini": "gemini"}
"""litellm's name of who serves the model, where it isn't `openai`."""
CLASSES = {"responses": "litellm_response", "text": "litellm_textbased"}
"""mini's name of the class that asks the model, where it isn't `litellm`."""


class Settings(msgspec.Struct, frozen=True):
    """What a task may set."""

    api: Literal["chat", "responses", "anthropic", "gemini", "text"] = "chat"
    """Which provider's API it speaks; `text` is chat without tools, commands standing in fences."""


class MiniSweAgent(CliHarness):
    """See `base.Harness`."""

    cli = PypiCli(
        name="mini_swe_agent",
        package="mini-swe-agent",
        version="2.4.6",
        beside=("litellm==1.106.2", "mcp==2.3.0"),
        module="minisweagent.run.mini",
        megabytes=735,
    )

    def __init__(self, agent: AgentSpec) -> None:
        self._api = checked_settings(agent, Settings).api

    async def prepare(self, runtime: Runtime, model: ModelAccess, instruction: PurePosixPath) -> Launch:
        text = (await runtime.read_file(instruction, INSTRUCTION_LIMIT)).decode()
        settings = runtime.home / "mini-swe-agent" / "polar.yaml"
        await runtime.write_file(settings, json.dumps(self._file(model, text)).encode())  # JSON is YAML
        trajectory = runtime.home / "mini-swe-agent.traj.json"
        base = "mini_textbased.yaml" if self._api == "text" else "mini.yaml"
        arguments = ("--yolo", "--exit-immediately", "--config", base, "--config", str(settings))
        return Launch(
            (*self.cli.command(), *arguments, "--output", str(trajectory)),
            env=QUIET
            | {
                "MSWEA_GLOBAL_CONFIG_DIR": str(settings.parent),
                "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": str(TRIES),
            },
            keep={TRANSCRIPT: trajectory},
        )

    def _file(self, model: ModelAccess, task: str) -> dict[str, object]:
        """Settings over its own mini.yaml."""
        asked: dict[str, object] = {
            "model_name": f"{PROVIDERS.get(self._api, 'openai')}/{model.model_name}",
            "model_class": CLASSES.get(self._api, "litellm"),
        }
        if self._api == "gemini":
            asked["model_kwargs"] = {"api_base": f"{model.proxy_url}/v1beta"}
        return {"run": {"task": task}, "model": asked, "agent": {"cost_limit": 0}}
