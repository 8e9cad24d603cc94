"""The settings files, variables and command of a known client, for an opened session."""

from __future__ import annotations

import asyncio
import os
import shutil
from dataclasses import dataclass, replace

from consumers.harnesses import clients
from consumers.harnesses.context_window import engines_context
from consumers.runtimes.base import ModelAccess
from polar.sessions import Session
from topics.environment.settings import Settings
from topics.types.errors import InputError, NotReadyError
from topics.types.session import task_id_of

FOLDER = "clients"
"""In the data folder: a folder for each session that is opened for a client."""


@dataclass(frozen=True)
class ClientSetup:
    """How a client reaches the model of a session."""

    env: dict[str, str]
    """The session's variables and the client's."""
    arguments: tuple[str, ...]
    """Before the person's own."""

    def variables(self, session: Session) -> dict[str, str]:
        """All variables, with the session's name."""
        names = {"POLAR_SESSION_ID": session.session_id, "POLAR_TASK_ID": task_id_of(session.session_id)}
        return names | self.env

    def environment(self) -> dict[str, str]:
        """Our own environment with these variables, for a program that has nothing to do with Polar: it can't close its session."""
        return {name: value for name, value in os.environ.items() if not name.startswith("POLAR_")} | self.env


def command(client: str, arguments: list[str]) -> list[str]:
    """The program and the person's arguments. Raises InputError, and NotReadyError if the program isn't on PATH."""
    found = clients.find(client)
    if found.program is None:
        if not arguments:
            message = f"{client} is a library: give your program, as in `polar session run {client} -- python agent.py`"
            raise InputError("ARGS", "", message)
        return arguments
    if shutil.which(found.program) is None:
        raise NotReadyError(f"{found.program} isn't on PATH; install it: {found.install}")
    return [found.program, *arguments]


def set_up(settings: Settings, session: Session, client: str, model: str) -> ClientSetup:
    """Write the client's settings. Raises NotReadyError if they can't be written."""
    # The variable for Anthropic's clients is the proxy's URL itself.
    access = ModelAccess(session.env["ANTHROPIC_BASE_URL"], session.key, model)
    if clients.uses_context(client):
        access = replace(access, context=engines_context(access))
    folder = settings.data.absolute() / FOLDER / session.session_id
    try:
        written = asyncio.run(clients.write_settings(client, access, folder))
    except OSError as error:
        raise NotReadyError(f"the settings of {client} can't be written: {error}") from None
    return ClientSetup(session.env | written.env, written.arguments)
