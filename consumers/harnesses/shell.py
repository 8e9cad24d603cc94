"""The harness `shell`: any command from the task, `agent.custom_shell`.

It runs under `bash -c` with pipefail. The instruction is on stdin and in the file `$POLAR_INSTRUCTION_FILE`; `OPENAI_BASE_URL` and its
siblings have the model's address.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from consumers.harnesses.base import Launch, NoSettings, checked_settings
from consumers.runtimes.base import ModelAccess, Runtime
from topics.types.agent import AgentSpec


class Shell:
    """See `base.Harness`."""

    tools = ()

    def __init__(self, agent: AgentSpec) -> None:
        assert agent.custom_shell is not None, "a TaskRequest with harness 'shell' has custom_shell"
        checked_settings(agent, NoSettings)
        self._shell = agent.custom_shell

    async def install(self) -> None:
        """Nothing to install."""

    async def prepare(
        self,
        runtime: Runtime,  # noqa: ARG002 - part of the interface; a command needs no settings file
        model: ModelAccess,  # noqa: ARG002
        instruction: PurePosixPath,
    ) -> Launch:
        return Launch(self._shell.command, env=self._shell.env, cwd=self._shell.cwd, stdin=instruction)
