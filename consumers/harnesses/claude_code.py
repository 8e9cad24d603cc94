"""The harness `claude_code`: the real CLI `@anthropic-ai/claude-code`, unmodified.

What was found by running it: the instruction comes on stdin, whole at 1 MiB; one that begins with a slash would be taken for a command of
its own, and isn't once a newline stands before it; `@name` would add that file's content, unless mentions are off. As root it works only
where `IS_SANDBOX` says that nothing can be harmed. A run is one conversation that only grows, but for tools: what `ToolSearch` finds is
put among those that stand at the beginning of every prompt, so all tools are given from the start. Text output it is, whose exit code
tells; the session's file, in a folder named after the workspace, is the transcript.
"""

from __future__ import annotations

from pathlib import PurePosixPath

import msgspec

from consumers.harnesses.base import Launch, ModelAccess, Tokens, checked_settings
from consumers.harnesses.cli import CliHarness
from consumers.harnesses.npm import NpmCli, native
from consumers.runtimes.base import Runtime
from consumers.stages.artifacts import TRANSCRIPT
from topics.types.task import AgentSpec

INSTRUCTION_LIMIT = 1024 * 1024
"""Bytes; a task's instruction is no longer."""
QUIET = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}
"""No telemetry, no titles, no look for a newer version: nothing but model calls leaves the machine."""
PLAIN = {
    "IS_SANDBOX": "1",
    "ENABLE_TOOL_SEARCH": "false",
    "CLAUDE_CODE_DISABLE_FILE_MENTIONS": "1",
    # A line for billing that differs from task to task, before all else in the prompt.
    "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
}


class Settings(msgspec.Struct, frozen=True):
    """What a task may set."""

    context_window: Tokens = 200_000
    max_tokens: Tokens = 32_000


class ClaudeCode(CliHarness):
    """See `base.Harness`."""

    cli = NpmCli(
        name="claude_code",
        package="@anthropic-ai/claude-code",
        version="2.1.329",
        program=f"{native('@anthropic-ai/claude-code')}/claude",
        megabytes=361,
    )

    def __init__(self, agent: AgentSpec) -> None:
        self._settings = checked_settings(agent, Settings)

    async def prepare(self, runtime: Runtime, model: ModelAccess, instruction: PurePosixPath) -> Launch:
        if (await runtime.read_file(instruction, 1)) == b"/":
            text = await runtime.read_file(instruction, INSTRUCTION_LIMIT)
            instruction = runtime.home / "instruction-as-text.txt"
            await runtime.write_file(instruction, b"\n" + text)
        limits = {
            "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(self._settings.context_window),
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(self._settings.max_tokens),
        }
        arguments = ("--print", "--model", model.model_name, "--dangerously-skip-permissions")
        return Launch(
            self.cli.command() + arguments,
            env=QUIET | PLAIN | limits,
            stdin=instruction,
            keep={TRANSCRIPT: runtime.home / ".claude" / "projects" / "*" / "*.jsonl"},
        )
