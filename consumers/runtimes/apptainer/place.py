"""One container with its folder on this host, from its start to its end.

The folder holds the keeper's socket (`container/greeting.py`), `overlay` with the container's changes, and `output` with what Apptainer and
the keeper write. A container has no daemon: its processes are found by the mark CONTAINER_MARK in their environment.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from consumers.runtimes import proctree, session_folder
from consumers.runtimes.apptainer import command
from consumers.runtimes.apptainer.command import Container
from consumers.runtimes.base import SandboxError
from consumers.runtimes.cell import bubblewrap
from consumers.runtimes.container.greeting import LOG_END, greeting
from consumers.runtimes.container.keeper import PLACE
from consumers.runtimes.container.toolbox import Toolbox
from consumers.runtimes.launch import to_the_end
from consumers.runtimes.session_folder import RUNTIME_MARK

CONTAINER_MARK = "POLAR_CONTAINER"
OVERLAY = "overlay"
_OUTPUT = "output"
_HOSTS = "hosts"


@dataclass(frozen=True)
class Plan:
    """A container to start. `session`: its session's folder; `part`: its own folder, relative to the session's."""

    session: Path
    part: str
    image: Path
    prepared: Path | None
    """The overlay under the container's own."""
    has_host_network: bool
    folders: list[str]
    """Those that are made inside if the image lacks them."""
    tools: list[str]
    """Folders of this host, mounted read-only at the same paths."""

    @property
    def name(self) -> str:
        return name_of(self.session, self.part)


def name_of(session: Path, part: str) -> str:
    """The container's mark. No other container on this host has it: the session's folder is named by its claim."""
    return f"{session.name}/{part}"


async def start(toolbox: Toolbox, plan: Plan) -> dict[str, Any]:
    """Start a container, with its keeper at work; the keeper's first answer. Raises SandboxError `not_made`, NotReadyError and OSError."""
    tools = await asyncio.to_thread(toolbox.folder)
    folder = plan.session / plan.part
    with greeting(folder) as waiting:
        (folder / OVERLAY).mkdir()
        hosts = Path("/etc/hosts")
        if not plan.has_host_network:
            # Images come without the file, and `localhost` would have no address.
            hosts = folder / _HOSTS
            hosts.write_text(bubblewrap.FILES["/etc/hosts"])
        mounts = {
            f"{PLACE}/tools": tools,
            f"{PLACE}/line": waiting.line,
            "/etc/hosts": hosts,
            **{tool: Path(tool) for tool in plan.tools},
        }
        container = Container(plan.image, folder / OVERLAY, plan.prepared, mounts, plan.has_host_network)

        async def is_over() -> bool:
            return not await asyncio.to_thread(proctree.marked, CONTAINER_MARK, plan.name)

        async def output() -> str:
            with (folder / _OUTPUT).open("rb") as file:
                return file.read()[-LOG_END:].decode(errors="replace")

        try:
            # To its end, even if we are cancelled: a container would otherwise appear after its removal.
            await to_the_end(asyncio.to_thread(_run, command.start(container, toolbox.command()), plan))
            answer = await waiting.answer(plan.name, plan.folders, list(mounts), is_over=is_over, output=output)
            if missing := answer["missing"]:
                raise SandboxError("not_made", f"the folders {', '.join(missing)} can't be made in the image")
        except BaseException:
            await end(plan.session, plan.part)
            raise
    return answer


def _run(line: list[str], plan: Plan) -> None:
    """Start the container. If that fails there are no processes with its mark, and the reason is in its output."""
    marks = {RUNTIME_MARK: plan.session.name, CONTAINER_MARK: plan.name}
    with (plan.session / plan.part / _OUTPUT).open("wb") as output:
        subprocess.run(
            line,
            env=command.environment(os.environ, marks),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            check=False,
        )


async def end(session: Path, part: str) -> None:
    """End a container; its folder stays. No error if it has ended. Raises SandboxError `unkillable`."""
    await session_folder.kill_marked(CONTAINER_MARK, name_of(session, part))
