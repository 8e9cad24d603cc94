"""Images of what `runtime.prepare` left: sessions with equal preparations begin in one, and carry out nothing.

The engine has them, named `polar-prepared:NAME` (`preparation_names`), each whole or not at all. The file NAME in FOLDER has the time at
which one was last used. The KEPT that were used last stay, and those of sessions that are here: an engine keeps what a container uses.
"""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from pathlib import Path

import docker
import structlog
from docker.errors import APIError, NotFound

from consumers.runtimes.base import SandboxError
from consumers.runtimes.container.engine import Engine
from consumers.runtimes.container.place import LABELS
from consumers.runtimes.preparation_names import FOLDER

log = structlog.get_logger()

REPOSITORY = "polar-prepared"
KEPT = 64
"""Preparations of this folder of sessions, beside those in use."""


class Preparations:
    """The preparations of the sessions whose folders lie under `root`."""

    def __init__(self, engine: Engine, root: Path) -> None:
        self._engine = engine
        self._folder = root / FOLDER

    async def use(self, name: str) -> str | None:
        """The id of a preparation's image; None if there is none."""
        found = await self._engine.call(lambda client: _find(client, name))
        if found is not None:
            self._used(name)
        return found

    async def keep(self, name: str, container: str) -> str:
        """Make an image of the container as it is; its id. Nothing of a task runs in it. Raises SandboxError `engine_failed`."""
        made = await self._engine.call(lambda client: _commit(client, container, name))
        self._used(name)
        await self._forget_others()
        return made

    def _used(self, name: str) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self._folder / name).touch(mode=0o600)

    async def _forget_others(self) -> None:
        named = [path for path in self._folder.iterdir() if not path.name.startswith(".")]
        by_use = sorted(named, key=lambda path: path.stat().st_mtime, reverse=True)
        for old in by_use[KEPT:]:
            try:
                if await self._engine.call(partial(_remove, name=old.name)):
                    old.unlink(missing_ok=True)
            except SandboxError as error:
                log.warning("an old preparation stays", action="preparation.not_removed", name=old.name, why=str(error))


def _find(client: docker.DockerClient, name: str) -> str | None:
    try:
        return str(client.images.get(f"{REPOSITORY}:{name}").id)
    except NotFound:
        return None


def _commit(client: docker.DockerClient, container: str, name: str) -> str:
    # Without the labels of the session, with which it would go. An engine without privileges can't pause where it has no cgroups.
    changes = [f'LABEL {label}=""' for label in LABELS]
    made = client.containers.get(container).commit(repository=REPOSITORY, tag=name, pause=False, changes=changes)
    return str(made.id)


def _remove(client: docker.DockerClient, name: str) -> bool:
    """Whether the image is gone. It stays while a container uses it."""
    try:
        client.api.remove_image(f"{REPOSITORY}:{name}")
    except NotFound:
        return True
    except APIError as error:
        if error.status_code != HTTPStatus.CONFLICT:
            raise
        return False
    return True
