"""A harness of a few bytes, whose package a stand-in for the npm registry serves: its lock is where `TOOL_LOCK` says."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from consumers.harnesses.base import Launch, NoSettings
from consumers.harnesses.cli import CliHarness
from consumers.harnesses.npm import NpmCli
from consumers.runtimes.base import ModelAccess, Runtime


@dataclass(frozen=True)
class ToolCli(NpmCli):
    @property
    def lock(self) -> Path:
        return Path(os.environ["TOOL_LOCK"])


class Tool(CliHarness[NoSettings]):
    settings_type = NoSettings
    cli = ToolCli(name="tool", package="tool", version="1.0.0", program="tool/cli.js", megabytes=1)

    async def prepare(self, runtime: Runtime, model: ModelAccess, instruction: PurePosixPath) -> Launch:
        return Launch(self.cli.command())
