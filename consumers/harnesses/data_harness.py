"""Harnesses that are data: the class of a harness is made of its preset, a TOML file (`preset.py`).

The file's name is the harness's. Polar's own files lie beside their modules here; a user's lie in the folder of POLAR_PRESETS, each with
the lock of its package beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from consumers.harnesses import preset as presets
from consumers.harnesses.base import Home, Launch, Tokens, checked_settings
from consumers.harnesses.cli import LOCKS, Cli, CliHarness
from consumers.harnesses.npm import NpmCli
from consumers.harnesses.preset import Preset
from consumers.harnesses.pypi import PypiCli
from consumers.harnesses.settings_file import encoded
from consumers.harnesses.templates import filled
from consumers.runtimes.base import ModelAccess, Runtime
from consumers.stages.artifacts import TRANSCRIPT
from topics.types.agent import AgentSpec
from topics.types.mcp import McpServer


class Prepared:
    """How a preset's program is set up; see `base.Harness`."""

    preset: ClassVar[Preset]
    _settings: Any
    _servers: list[McpServer]

    def _program(self) -> tuple[str, ...]:
        raise NotImplementedError

    async def prepare(self, runtime: Runtime, model: ModelAccess, instruction: PurePosixPath) -> Launch:
        preset = self.preset
        values = self._values(runtime, model)
        values |= {"workspace": str(runtime.workspace), "instruction_file": str(instruction)}
        return Launch(
            env=await self._configured(runtime, values),
            command=(*self._program(), *map(str, filled(list(preset.arguments), values))),
            stdin=instruction,
            keep={TRANSCRIPT: runtime.home / preset.transcript} if preset.transcript else {},
        )

    async def configure(self, home: Home, model: ModelAccess) -> dict[str, str]:
        return await self._configured(home, self._values(home, model))

    async def _configured(self, home: Home, values: Mapping[str, Any]) -> dict[str, str]:
        """Write the files, and return the variables."""
        preset = self.preset
        for file in preset.files:
            content = filled(file.content, values)
            if preset.mcp is not None and preset.mcp.file == file.path and self._servers:
                content[preset.mcp.key] = {server.name: self._server(server) for server in self._servers}
            await home.write_file(home.home / file.path, encoded(content, file.format))
        return {name: str(value) for name, value in filled(preset.env, values).items()}

    def _values(self, home: Home, model: ModelAccess) -> dict[str, Any]:
        """By placeholder."""
        found = {"model": model.model_name, "proxy_url": model.proxy_url, "home": str(home.home)}
        for name, setting in self.preset.settings.items():
            chosen = found[f"settings.{name}"] = getattr(self._settings, name)
            texts = (setting.choices or {}).get(chosen, {})
            found |= {f"settings.{name}.{each}": text for each, text in texts.items()}
        return found

    def _server(self, server: McpServer) -> Any:
        assert self.preset.mcp is not None, "a task with servers is refused otherwise"
        fields = server.model_dump()
        line = [server.command, *server.args]
        return filled(self.preset.mcp.templates[server.transport], {**fields, "command_line": line})


class InstalledData(Prepared, CliHarness[Any]):
    """A preset whose CLI Polar installs."""

    @property
    def registry_name(self) -> str:
        return self.cli.name

    def _program(self) -> tuple[str, ...]:
        return self.cli.command()


class FoundData(Prepared):
    """A preset whose program is in the sandbox."""

    settings_type: ClassVar[type[Any]]
    tools: ClassVar[tuple[Path, ...]] = ()

    def __init__(self, agent: AgentSpec) -> None:
        self._settings = checked_settings(agent, self.settings_type)
        self._servers = agent.mcp_servers

    async def install(self) -> None:
        """Nothing to install."""

    def _program(self) -> tuple[str, ...]:
        assert self.preset.program is not None, "checked"
        return (self.preset.program,)


def harness_class(path: Path, locks: Path | None = None, module: str = __name__) -> type[Any]:
    """The class of a preset's file. `locks`: the folder with its lock; None: the file's own. Raises InputError."""
    preset = presets.read(path, Preset)
    found: dict[str, Any] = {
        "__module__": module,
        "preset": preset,
        "settings_type": _settings_type(preset, path),
        "mcp_transports": tuple(preset.mcp.templates) if preset.mcp else (),
        "client": preset.client,
        "skills_folder": preset.skills_folder,
        "instructions_file": preset.instructions_file,
        "__doc__": f"The harness of {path}.",
    }
    if preset.install is None:
        return type(path.stem, (FoundData,), found)
    return type(path.stem, (InstalledData,), {**found, "cli": _cli(path.stem, preset.install, locks or path.parent)})


def own_harness(module: str) -> type[Any]:
    """The class of one of Polar's own presets, whose file lies beside its module."""
    return harness_class(Path(__file__).with_name(f"{module.rpartition('.')[2]}.toml"), LOCKS, module)


def _cli(name: str, install: presets.Install, locks: Path) -> Cli:
    if install.npm is not None:
        assert install.program is not None, "checked"
        return NpmCli(
            name=name, package=install.npm, version=install.version, program=install.program,
            megabytes=install.megabytes, locks=locks,
        )  # fmt: skip
    assert install.pypi is not None, "checked"
    assert install.module is not None, "checked"
    return PypiCli(
        name=name, package=install.pypi, version=install.version, beside=install.beside, module=install.module,
        megabytes=install.megabytes, locks=locks,
    )  # fmt: skip


def _settings_type(preset: Preset, path: Path) -> type[msgspec.Struct]:
    """The struct of what a task may set. Its fields' types have their meanings."""
    fields: list[tuple[str, Any, Any]] = [
        (name, Annotated[_values(setting), msgspec.Meta(description=setting.meaning)], setting.default)
        for name, setting in preset.settings.items()
    ]
    return msgspec.defstruct("Settings", fields, frozen=True, module=path.name)


def _values(setting: presets.Setting) -> Any:
    literal: Any = Literal
    return literal[tuple(setting.choices)] if setting.choices else Tokens
