"""`AgentSpec`, the part of a task that names its harness and equips it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any, Self

from pydantic import Field, StringConstraints, model_validator

from topics.environment import registry
from topics.types.errors import InputError
from topics.types.mcp import McpServer, require_own_names
from topics.types.parts import Argument, Environment, Part
from topics.types.uploads import AgentFile, Skill

MODEL_VARIABLES = frozenset(
    f"{provider}_{what}" for provider in ("OPENAI", "ANTHROPIC") for what in ("BASE_URL", "API_KEY")
) | {"GOOGLE_GEMINI_BASE_URL", "GEMINI_API_KEY"}
"""Variables that tell a harness the proxy's URL and its session's key."""
INSTRUCTIONS_LIMIT = 64 * 1024
"""Characters of `agent.instructions`, which CLIs put into every prompt."""
NEEDED_PLACES = {
    "skills": "skills_folder",
    "skills_path": "skills_folder",
    "instructions": "instructions_file",
}
"""The attribute of a harness class that each field needs."""


class ExecInput(Part):
    """A command for `bash -c` with pipefail."""

    command: Argument = Field(min_length=1)
    """The command's text."""
    cwd: str | None = None
    """The folder it runs in, relative to the workspace. None: the working directory."""
    env: Environment = {}
    """Variables for this command alone."""


class AgentSpec(Part):
    """The harness and its settings."""

    harness: str | None = None
    """Name of a harness; either this or `import_path` is given."""
    import_path: str | None = None
    """A harness of your own, as `module:Class`."""
    version: Annotated[str, StringConstraints(min_length=1, max_length=64)] | None = None
    """Version of the CLI to install, for harnesses that install one. None: the harness's own, from its lock (docs/harness.md)."""
    model_name: str = "default"
    """The model's name in the harness's calls; the proxy's settings decide which engine serves it."""
    settings: dict[str, Any] = {}
    """The harness's own settings."""
    env: Environment = {}
    """Variables for the harness. Those that the run worker sets (`POLAR_…`, the model's URLs and keys) are refused."""
    mcp_servers: list[McpServer] = []
    """Servers of tools that the CLI connects to; docs/harness.md lists the harnesses that do."""
    skills: list[Skill] = []
    """Folders with a SKILL.md each, for the place where the CLI looks for its user's skills."""
    skills_path: Annotated[str, StringConstraints(min_length=1, pattern=r"^[^\x00]*$")] | None = None
    """A folder in the sandbox whose folders are skills; relative to the workspace, or absolute."""
    instructions: Annotated[str, StringConstraints(max_length=INSTRUCTIONS_LIMIT)] | AgentFile | None = None
    """Text, or a file, for the place where the CLI reads its user's own instructions, outside of the workspace."""
    custom_shell: ExecInput | None = None
    """The command of the harness `shell`. It gets the instruction on its standard input."""

    @model_validator(mode="after")
    def _one_harness(self) -> Self:
        if (self.harness is None) == (self.import_path is None):
            raise ValueError("give exactly one of harness and import_path")
        if self.harness == "shell" and self.custom_shell is None:
            raise ValueError("harness 'shell' needs custom_shell: {command: …}")
        # A name that nobody knows is reported as such by `check_names`.
        is_known = self.harness is None or registry.is_known(registry.Kind.HARNESS, self.harness)
        if self.harness != "shell" and self.custom_shell is not None and is_known:
            raise ValueError(f"custom_shell goes with harness 'shell' alone, and harness is {self.name!r}")
        require_own_names(self.mcp_servers)
        for name, count in Counter(skill.name for skill in self.skills).items():
            if count > 1:
                raise ValueError(f"skills has {count} folders with the name {name!r}; give each its own")
        for name in (*self.env, *(self.custom_shell.env if self.custom_shell else ())):
            if name in MODEL_VARIABLES or name.startswith("POLAR_"):
                raise ValueError(
                    f"env.{name} is set for the harness by the run worker; with another the calls would be lost"
                )
        return self

    @property
    def name(self) -> str:
        """The harness by registry name or `module:Class`."""
        return self.harness or self.import_path or ""

    def check_supported(self, harness: object) -> None:
        """Raises InputError for a part of this agent that a harness class lacks (`consumers/harnesses/base.py`)."""
        if self.version is not None and getattr(harness, "check_version", None) is None:
            reason = f"{self.name} installs no CLI; leave it out, or name a harness that does (docs/harness.md)"
            raise InputError("agent.version", self.version, reason)
        transports = getattr(harness, "mcp_transports", ())
        for index, server in enumerate(self.mcp_servers):
            if server.transport not in transports:
                found = f"connects to no server by {server.transport}" if transports else "connects to no MCP servers"
                way_out = (
                    f"it can by: {', '.join(transports)}"
                    if transports
                    else "leave them out, or name a harness that does"
                )
                raise InputError(
                    f"agent.mcp_servers.{index}", server.name, f"{self.name} {found}; {way_out} (docs/harness.md)"
                )
        for field, attribute in NEEDED_PLACES.items():
            if getattr(self, field) and getattr(harness, attribute, None) is None:
                what = field.removesuffix("_path")
                raise InputError(
                    f"agent.{field}",
                    getattr(self, field),
                    f"{self.name} has no place for {what}; leave it out, or name a harness that has one (docs/harness.md)",
                )

    def files(self) -> Iterator[tuple[str, AgentFile]]:
        """Its files, each with its field."""
        yield from ((f"agent.skills.{index}", skill) for index, skill in enumerate(self.skills))
        if isinstance(self.instructions, AgentFile):
            yield "agent.instructions", self.instructions
