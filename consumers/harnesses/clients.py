"""Programs that people start themselves with a session's model: the settings that each of them needs.

A client is a preset with a `client`, whose settings are those of a sandbox, or a file NAME.toml in `clients/`, in the form of
`preset.Client`. Each gets a folder for its settings and whatever it stores, so the person's own settings stay as they are. Files may hold
the session's key, so nobody else can read the folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from consumers.harnesses import preset as presets
from consumers.harnesses.base import harness_of
from consumers.harnesses.context_window import fitted, has_window
from consumers.harnesses.preset import Client
from consumers.harnesses.settings_file import encoded
from consumers.harnesses.templates import filled
from consumers.runtimes.base import ModelAccess
from topics.environment import registry
from topics.types.agent import AgentSpec
from topics.types.errors import InputError

FILES = Path(__file__).with_name("clients")
FOLDER_MODE = 0o700


@dataclass(frozen=True)
class ClientSettings:
    """The settings that one client needs in addition to the variables of every session."""

    env: dict[str, str]
    arguments: tuple[str, ...]
    """Before the person's own."""


@dataclass(frozen=True)
class Folder:
    """A `base.Home` on this host."""

    home: PurePosixPath

    async def write_file(self, path: str | PurePosixPath, data: bytes, mode: int = 0o600) -> None:
        target = Path(self.home / path)
        target.parent.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
        target.touch(mode)
        target.write_bytes(data)


def names() -> list[str]:
    return sorted([*(name for name in registry.names(registry.Kind.HARNESS) if _of_preset(name)), *_files()])


def find(name: str) -> Client:
    """The client of this name. Raises InputError, with the known names."""
    file = _files().get(name)
    if file is not None:
        return presets.read(file, Client)
    found = _of_preset(name) if name in registry.names(registry.Kind.HARNESS) else None
    if found is None:
        raise InputError("client", name, f"no such client; there are: {', '.join(names())}")
    return found


def uses_context(name: str) -> bool:
    """Whether the client's settings depend on the length of the engine's context. Raises InputError for an unknown client."""
    client = find(name)
    if client.like is not None:
        return uses_context(client.like)
    return name not in _files() and has_window(AgentSpec(harness=name))


async def write_settings(name: str, model: ModelAccess, folder: Path) -> ClientSettings:
    """Write the client's settings below `folder`, an absolute path. Raises InputError for an unknown client, and OSError."""
    client = find(name)
    home = Folder(PurePosixPath(folder))
    folder.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
    env: dict[str, str] = {}
    if client.like is not None:
        env = (await write_settings(client.like, model, folder)).env
    elif name not in _files():
        agent, _ = fitted(AgentSpec(harness=name, model_name=model.model_name), model.context)
        harness: Any = harness_of(agent)
        env = await harness.configure(home, model)
    values = {
        "model": model.model_name,
        "proxy_url": model.proxy_url,
        "key": model.key,
        "home": str(folder),
    }
    for file in client.files:
        await home.write_file(home.home / file.path, encoded(filled(file.content, values), file.format))
    return ClientSettings(
        {**env, **filled(client.env, values)},
        tuple(map(str, filled(list(client.arguments), values))),
    )


def _files() -> dict[str, Path]:
    return {path.stem: path for path in FILES.glob("*.toml")}


def _of_preset(name: str) -> Client | None:
    found: Client | None = getattr(registry.load(registry.Kind.HARNESS, name), "client", None)
    return found
