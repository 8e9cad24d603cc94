"""The first exchange with a new container: its keeper fetches the socket at which workers reach it, and answers.

A container's folder on this host holds that socket, and `line`, the only part of it that is mounted: it has the socket at which the keeper
fetches the other one, until it has.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from consumers.runtimes.base import SandboxError
from consumers.runtimes.container.keeper import FIRST_SOCKET
from consumers.runtimes.container.line import SOCKET, socket_path

START_S = 120.0
"""For a container's first answer, from its start: 0.1 s, and longer while many start."""
LOOK_S = 2.0
"""Between two looks at whether a container that hasn't answered still runs."""
LOG_END = 2000
"""Characters of a container's own output in an error."""


@dataclass(frozen=True)
class Greeting:
    """Waits for the keeper of one container. `line`: the folder to mount."""

    line: Path
    _first: socket.socket
    _kept: socket.socket

    async def answer(
        self,
        name: str,
        folders: Sequence[str],
        read_only: Sequence[str],
        *,
        is_over: Callable[[], Awaitable[bool]],
        output: Callable[[], Awaitable[str]],
    ) -> dict[str, Any]:
        """Give the keeper its socket; its answer. `name`: the container's, for errors.

        `folders` are made inside if they are missing; the answer's `missing` lists those that the keeper may not make. `read_only`: the
        mounts that programs must not change. `is_over` tells whether the container has ended, `output` what it wrote.

        Raises SandboxError `not_made`.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + START_S
        # One accept for all looks: a cancelled one can lose the connection that it has just taken.
        accepting = asyncio.ensure_future(loop.sock_accept(self._first))
        try:
            while not (await asyncio.wait({accepting}, timeout=LOOK_S))[0]:
                if await is_over() or loop.time() > end:
                    text = (await output())[-LOG_END:]
                    raise SandboxError("not_made", f"the container of {name} doesn't answer; it says: {text}")
            line, _ = accepting.result()
        finally:
            accepting.cancel()
        message = {"folders": list(folders), "read_only": list(read_only)}
        with line:
            socket.send_fds(line, [json.dumps(message).encode()], [self._kept.fileno()])
            data = b""
            try:
                async with asyncio.timeout_at(end):
                    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
                        if not (more := await loop.sock_recv(line, 65536)):
                            raise SandboxError("not_made", f"the container of {name} ended while it started")
                        data += more
            except TimeoutError:
                raise SandboxError("not_made", f"the container of {name} didn't answer in {START_S:g} s") from None
        answer: dict[str, Any] = json.loads(data[4:])
        if writable := answer["writable"]:
            raise SandboxError("not_made", f"the container of {name} can write to this host's {', '.join(writable)}")
        return answer


@contextmanager
def greeting(folder: Path) -> Iterator[Greeting]:
    """Listen for the keeper of a container that is started within the block. `folder`: new, for this container."""
    line = folder / "line"
    line.mkdir(parents=True)
    line.chmod(0o755)
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as kept,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as first,
    ):
        _listen(kept, folder / SOCKET)
        place = line / Path(FIRST_SOCKET).name
        _listen(first, place)
        place.chmod(0o666)  # the image's user is any; its folder is in this container alone
        first.setblocking(False)
        try:
            yield Greeting(line, first, kept)
        finally:
            place.unlink()


def _listen(listener: socket.socket, place: Path) -> None:
    with socket_path(place) as path:
        listener.bind(path)
    listener.listen(128)
