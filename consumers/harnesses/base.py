"""The interface of harnesses: how to install one on this host, and how to start it on an instruction.

A harness object is made for each session with the task's `AgentSpec`; its constructor raises InputError for an unknown setting. It
writes its settings through the runtime and returns what to start. The worker owns starting, killing, budgets, keys and logs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Annotated, Protocol, TypeVar

import msgspec

from consumers import plug_in_settings
from consumers.runtimes.base import ModelAccess, Runtime
from topics.environment import registry
from topics.types.agent import AgentSpec

S = TypeVar("S", bound=msgspec.Struct)


@dataclass(frozen=True)
class Launch:
    """A program to start. `command` is a text for `bash -c` with pipefail, or an argument vector. It never contains the key."""

    command: str | tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    """Overrides the model's variables, and is overridden by the task's `agent.env`."""
    cwd: str | None = None
    stdin: PurePosixPath | None = None
    keep: Mapping[str, PurePosixPath] = field(default_factory=dict)
    """Files to keep after its end, by artifact name. A missing file is left out; of a path with `*` the newest match is kept."""


class Home(Protocol):
    """Where a program looks for its settings: a runtime's home, or a folder for a person's own program."""

    @property
    def home(self) -> PurePosixPath: ...

    async def write_file(self, path: str | PurePosixPath, data: bytes, mode: int = 0o600) -> None:
        """Write a file and create its folders."""


class Harness(Protocol):
    """One agent program, set up for one session.

    A class may have these attributes. Without one, a task that needs it is refused.

    - `mcp_transports`: the transports by which the program connects to `agent.mcp_servers`. `prepare` writes the servers.
    - `skills_folder`: where the program looks for its user's skills, relative to its home.
    - `instructions_file`: where the program reads its user's own instructions, relative to its home.
    - `check_version`: for a class that installs `agent.version`. Raises InputError if the package index answers and lacks that version.
    - `client`: how a person starts the program (`preset.Client`). Such a class has `configure`, too: it writes the settings that `prepare`
      writes of the model, into a `Home`, and returns the variables that lead the program to them.

    With `settings_type`, the msgspec struct of its settings, those named `context_window` and `max_tokens` fit the engine if their defaults
    are numbers (`context_window.py`).
    """

    @property
    def tools(self) -> tuple[Path, ...]:
        """Folders of this host that the program needs to read, beside `/usr` and the worker's Python."""

    async def install(self) -> None:
        """Install the program on this host, shared by all sessions; returns at once if it is there. Raises NotReadyError."""

    async def prepare(self, runtime: Runtime, model: ModelAccess, instruction: PurePosixPath) -> Launch:
        """Write its settings and return what to start. `instruction`: a file in the runtime's home, too long for a command line."""


def harness_of(agent: AgentSpec) -> Harness:
    """The harness that a task names. Raises InputError if this worker doesn't have it or its settings are bad."""
    plug_in = registry.load(registry.Kind.HARNESS, agent.name)
    agent.check_supported(plug_in)
    harness: Harness = plug_in(agent)
    return harness


INSTRUCTION_LIMIT = 1024 * 1024
"""Bytes of a task's instruction at most."""
Tokens = Annotated[int, msgspec.Meta(ge=1)]
"""A number of tokens in a preset's settings, 1 or more."""


class NoSettings(msgspec.Struct, frozen=True):
    """The settings of a harness that has none."""


def checked_settings(agent: AgentSpec, settings: type[S]) -> S:
    """`agent.settings` as `settings`, whose fields all have defaults. Raises InputError for an unknown name or a bad value."""
    return plug_in_settings.read("agent.settings", agent.settings, settings, f"{agent.name} has no such setting")
