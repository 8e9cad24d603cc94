"""The worker's end of the connections to the keeper of a container: requests with files, and forked supervisors.

A socket's path may hold 107 bytes, and a session's folder has a longer one, so paths go through an open folder.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from consumers.runtimes.base import HOST_DISK_FULL, SandboxError
from consumers.runtimes.supervisor import KILL_S, new_log
from topics.types.errors import InputError

SOCKET = "keeper"
"""Name of the keeper's socket in a container's folder on this host."""
KILLED_S = KILL_S + 10
"""For the keeper to kill all that it is asked to."""
SHORT_S = 60.0
"""For what takes the keeper a millisecond."""
_TASK = frozenset(
    {
        *(errno.EEXIST, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EACCES, errno.EPERM),
        *(errno.ENXIO, errno.ENAMETOOLONG, errno.EINVAL, errno.EROFS, errno.ETXTBSY, errno.EBUSY),
    }
)
"""Errors that what lies at a path causes."""


@contextmanager
def socket_path(path: Path) -> Iterator[str]:
    """A short path of a socket, or of a place for one."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


class Line:
    """The keeper of the container whose folder on this host is `folder`."""

    def __init__(self, folder: Path, workspace: str) -> None:
        self.folder = folder
        self._workspace = workspace

    def connect(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> socket.socket:
        """A connection with its first message. OSError if the container has ended."""
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # The keeper takes connections in a millisecond, and this keeps the loop if it hangs.
            line.setblocking(False)
            with socket_path(self.folder / SOCKET) as path:
                line.connect(path)
            data = json.dumps({"workspace": self._workspace, **message}).encode()
            socket.send_fds(line, [len(data).to_bytes(4, "big") + data], list(descriptors))
        except BaseException:
            line.close()
            raise
        return line

    async def ask(
        self,
        message: dict[str, Any],
        descriptors: Sequence[int] = (),
        *,
        send: Callable[[socket.socket], None] | None = None,
        receive: bool = False,
        within_s: float | None = SHORT_S,
    ) -> tuple[dict[str, Any], bytes]:
        """The answer, and if `receive` the bytes behind it. `descriptors` are closed once they are sent. `send` writes what follows the
        message, in a thread.

        Raises InputError for `path` that can't take it, SandboxError `runtime_gone`, HOST_DISK_FULL and `files_failed`, FileNotFoundError,
        and what `send` raises.
        """
        try:
            line = self.connect(message, descriptors)
        except OSError as error:
            raise self.gone(error) from error
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        with line:
            try:
                async with asyncio.timeout(within_s):
                    if send is not None:
                        await _in_thread(send, line)
                    answer, data = await self._answer(line, receive=receive)
            except TimeoutError:
                raise SandboxError("files_failed", f"the container didn't answer within {within_s:g} s") from None
        if "error" in answer:
            raise _failure(message, answer)
        return answer, data

    async def _answer(self, line: socket.socket, *, receive: bool) -> tuple[dict[str, Any], bytes]:
        size = int.from_bytes(await self._exactly(line, 4), "big")
        answer = cast("dict[str, Any]", json.loads(await self._exactly(line, size)))
        return answer, await self._exactly(line, answer["size"]) if receive and "error" not in answer else b""

    async def _exactly(self, line: socket.socket, size: int) -> bytes:
        loop = asyncio.get_running_loop()
        data = bytearray()
        while len(data) < size:
            try:
                more = await loop.sock_recv(line, min(size - len(data), 1 << 20))
            except ConnectionError:
                more = b""
            if not more:
                raise self.gone("the process in it was killed")
            data += more
        return bytes(data)

    def gone(self, why: object) -> SandboxError:
        return SandboxError("runtime_gone", f"the container of {self.folder.name} doesn't answer: {why}")

    async def kill(self, claim: str | None) -> None:
        """Kill all that a claim started, or everything; nothing to do if the container has ended. SandboxError `unkillable`."""
        try:
            answer, _ = await self.ask({"op": "kill", "claim": claim}, within_s=KILLED_S)
        except SandboxError as error:
            if error.code != "runtime_gone":
                raise SandboxError("unkillable", str(error)) from error
            return
        if answer["left"]:
            raise SandboxError("unkillable", f"processes {answer['left']} in a container can't be killed")


class KeeperForks:
    """Forks supervisors in a container; see `launch.Forks`."""

    def __init__(self, line: Line, claim: str, ports: Sequence[int], log: Path) -> None:
        self._line = line
        self._message = {"op": "exec", "claim": claim, "ports": list(ports)}
        self._log = log

    def fork(self) -> socket.socket:
        log = new_log(str(self._log))
        try:
            return self._line.connect(self._message, [log])
        finally:
            os.close(log)

    def replace(self) -> None:
        """The keeper ends with its container alone."""


def _failure(message: dict[str, Any], answer: dict[str, Any]) -> Exception:
    text, number = str(answer["error"]), int(answer.get("errno", 0))
    if answer.get("is_content"):
        return InputError("content", message.get("path"), text)
    if message["op"] == "read" and number == errno.ENOENT:
        return FileNotFoundError(number, text)
    if number in _TASK:
        what = (
            "can't be read"
            if message["op"] == "read"
            else "can't take the file"
            if message["op"] == "write"
            else "can't take the upload"
        )
        return InputError("path", message.get("path"), f"{what}: {text}")
    if number in (errno.ENOSPC, errno.EDQUOT):
        return SandboxError(HOST_DISK_FULL, f"the disk of the container engine is full: {text}")
    return SandboxError("files_failed", text)


async def _in_thread(send: Callable[[socket.socket], None], line: socket.socket) -> None:
    """Let a thread write, through a socket of its own that blocks. A cancellation ends it: nothing reads any more."""
    writing = line.dup()

    def work() -> None:
        with writing:
            writing.setblocking(True)
            try:
                send(writing)
                writing.shutdown(socket.SHUT_WR)
            except (BrokenPipeError, ConnectionResetError):
                pass  # the answer says why it read no more
            finally:
                writing.setblocking(False)  # of both: they share it

    doing = asyncio.create_task(asyncio.to_thread(work))
    try:
        await asyncio.shield(doing)
    except asyncio.CancelledError:
        line.shutdown(socket.SHUT_RDWR)
        await asyncio.wait({doing})
        raise
