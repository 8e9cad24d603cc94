"""Reads and writes files in a container, for a worker outside: each request in a process of its own, which the keeper has forked.

Links that programs have made lead such a process nowhere but into the container. An answer is a JSON object behind its length (4 bytes,
big-endian), perhaps with bytes behind it; an object with `error` says what can't be done.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
from pathlib import Path
from typing import Any

from consumers.runtimes.container import difference
from topics.environment import archive

READ = 1024 * 1024


def answer(line: socket.socket, what: dict[str, Any]) -> None:
    data = json.dumps(what).encode()
    line.sendall(len(data).to_bytes(4, "big") + data)


def serve(line: socket.socket, message: dict[str, Any], descriptors: list[int]) -> None:
    """Do what a message asks for, and answer."""
    line.setblocking(True)
    path = os.path.join(message["workspace"], message.get("path", ""))  # noqa: PTH118 - paths here are text, as they come
    try:
        match message["op"]:
            case "write":
                _write(line, path, message["mode"], message["size"])
                answer(line, {})
            case "read":
                data = _read(path, message["limit"])
                answer(line, {"size": len(data)})
                line.sendall(data)
            case "unpack":
                _unpack(line, path, message["file_name"])
                answer(line, {})
            case "look":
                answer(line, _look(path))
            case "record":
                difference.record(path, descriptors[0])
                answer(line, {})
            case "pack":
                difference.pack(path, descriptors[0], descriptors[1])
                answer(line, {})
            case "apply":
                difference.apply(path, descriptors[0])
                answer(line, {})
            case op:
                answer(line, {"error": f"no such request: {op}", "errno": errno.ENOSYS})
    except archive.ArchiveError as error:
        answer(line, {"error": str(error), "is_content": True})
    except OSError as error:
        name = error.filename if isinstance(error.filename, str) else path
        answer(line, {"error": f"{name!r}: {error.strerror or error}", "errno": error.errno or 0})
    except EOFError as error:
        answer(line, {"error": str(error), "errno": 0})


def _look(path: str) -> dict[str, Any]:
    """Whether programs find a folder at a path, and an empty one."""
    is_folder = os.path.isdir(path) and os.access(path, os.X_OK)  # noqa: PTH112 - as above
    try:
        is_empty = is_folder and next(os.scandir(path), None) is None
    except OSError:
        is_empty = False
    return {"is_folder": is_folder, "is_empty": is_empty}


def _write(line: socket.socket, path: str, mode: int, size: int) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120 - as above
    # O_NONBLOCK here and below: a named pipe that a program has put there gives an error instead of an endless wait.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK, mode)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)  # also if the file existed before, or the umask removed bits
        while size:
            if not (data := line.recv(min(size, READ))):
                raise EOFError("the worker has gone before its data were through")
            size -= len(data)
            file.write(data)


def _read(path: str, limit: int) -> bytes:
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "is no regular file", path)
        return file.read(limit)


def _unpack(line: socket.socket, path: str, file_name: str) -> None:
    target = Path(path)
    if file_name and target.is_dir():
        target /= file_name
    target.parent.mkdir(parents=True, exist_ok=True)
    with line.makefile("rb") as stream:
        if file_name:
            archive.unpack_file(stream, target)
        else:
            archive.unpack_folder(stream, target)
