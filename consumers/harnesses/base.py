"""What a run worker asks of a harness: how to have it on this host, and how to start it on an instruction.

A harness object is made per session with the task's `AgentSpec`; a setting that it doesn't know is an InputError at its making. It
writes its settings through the runtime and says what to start; starting, killing, budgets, keys and logs are the worker's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Annotated, Literal, Protocol, TypeVar, get_args, get_origin

import msgspec

from consumers.runtimes.base import Runtime
from topics.environment import registry
from topics.environment.keys import environment
from topics.types.errors import InputError
from topics.types.task import AgentSpec

S = TypeVar("S", bound=msgspec.Struct)


@dataclass(frozen=True)
class ModelAccess:
    """How the harness reaches the model."""

    proxy_url: str
    """Without a trailing slash or `/v1`."""
    key: str = field(repr=False)
    model_name: str
    """What the harness calls the model; the proxy decides what serves it."""

    @property
    def env(self) -> dict[str, str]:
        """The variables that every harness gets, each URL in the form that its own client wants."""
        return environment(self.proxy_url, self.key)


@dataclass(frozen=True)
class Launch:
    """What to start. `command` is a text for `bash -c` with pipefail, or an argument vector; the key never stands in it."""

    command: str | tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    """Over the model's variables; the task's `agent.env` goes over these."""
    cwd: str | None = None
    stdin: PurePosixPath | None = None
    keep: Mapping[str, PurePosixPath] = field(default_factory=dict)
    """Files to keep when it has ended, by artifact name; one that isn't there is left out. With `*` in its path: the newest that fits."""


class Harness(Protocol):
    """One agent program, set up for one session."""

    async def install(self) -> None:
        """Have the program on this host, shared by all sessions; returns at once where it is. Raises NotReady."""

    async def prepare(self, runtime: Runtime, model: ModelAccess, instruction: PurePosixPath) -> Launch:
        """Write its settings. `instruction` is a file in the runtime's home, up to 1 MiB: too long for a command line."""


def harness_of(agent: AgentSpec) -> Harness:
    """The harness that a task names. Raises InputError where this worker lacks it or its settings are bad."""
    made: Harness = registry.load(registry.Kind.HARNESS, agent.name)(agent)
    return made


Tokens = Annotated[int, msgspec.Meta(ge=1)]
"""How a preset's settings say a number of tokens, or any other number that is above 0."""


class NoSettings(msgspec.Struct, frozen=True):
    """The settings of a harness that has none."""


def checked_settings(agent: AgentSpec, settings: type[S]) -> S:
    """`agent.settings` as `settings`, whose fields all have defaults. Raises InputError for a name or a value that can't be."""
    fields = {each.name: each.type for each in msgspec.structs.fields(settings)}
    for name, value in agent.settings.items():
        where = f"agent.settings.{name}"
        if name not in fields:
            known = ", ".join(fields) or "none"
            raise InputError(where, value, f"{agent.name} has no such setting; there are: {known}")
        try:
            msgspec.convert(value, fields[name])
        except msgspec.ValidationError as error:
            names = get_args(fields[name]) if get_origin(fields[name]) is Literal else ()
            raise InputError(where, value, f"must be one of {', '.join(names)}" if names else str(error)) from error
    return settings(**agent.settings)
