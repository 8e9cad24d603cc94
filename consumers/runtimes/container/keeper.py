"""The first process of a container: it forks the supervisors of programs, and the processes that read and write files for the worker.

It runs on a Python that the toolbox brings (`toolbox.py`), so it needs nothing of the image, and as the image's user. At its start it
fetches a listening socket from the worker; workers that attach later connect to that socket, whose path is never inside. So no program of
the container can ask anything of it. Being the first process of its PID namespace, it gets no signal from inside that could end it, and
its end ends all others. It isn't dumpable, so programs of the same user can't read or change it.

A connection begins with a message: a JSON object behind its length (4 bytes, big-endian), with `op`:

- `exec`: fork a supervisor (`supervisor.py`), which has the connection and the log; `ports` are listened at first, and the sockets sent.
- `kill`: kill all of `claim`, or everything if it is null; the answer names what can't be killed.
- `memory`: the kernel's counts of the container's memory group.
- the others: fork a process that does one thing with files (`files.py`).

Invariant: every process of a program is below its supervisor, a child subreaper. A child of the keeper that it hasn't forked is what a
killed supervisor left, and is killed.

Runs with the standard library alone; see `toolbox.py` for what it may import.
"""

from __future__ import annotations

import ctypes
import gc
import json
import marshal
import os
import resource
import select
import signal
import socket
import sys
from typing import Any

from consumers.runtimes import proctree, supervisor
from consumers.runtimes.container import files

PLACE = "/.polar"
"""Where the toolbox and the folder of the first socket lie in a container."""
FIRST_SOCKET = f"{PLACE}/line/first"
LOG = 1
"""The descriptor of a program's log in its supervisor: the file came with the message."""
LISTENING = b"L"
"""The message that carries the sockets, as from a cell."""

_LOCALHOST = "127.0.0.1"
_BACKLOG = 128
_FDS = 4
_MESSAGE_S = 5.0
"""For the rest of a message that has begun: it is sent at once, and nobody else is served meanwhile."""
_MESSAGE = 65536
"""More bytes than the first message has."""
_WAIT_S = 30.0
_MEMORY_FILES = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
_PR_SET_DUMPABLE = 4
_LIBC = ctypes.CDLL(None, use_errno=True)


class Keeper:
    """Serves the workers until the container ends."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._claims: dict[int, str] = {}
        """The claim of each child that was forked here, by pid."""
        self._unread: dict[int, socket.socket] = {}
        """Connections without a message yet, by descriptor."""
        self._wake, self._signal = os.pipe()

    def serve(self) -> None:
        for descriptor in (self._wake, self._signal):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(self._signal, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == self._wake:
                    os.read(self._wake, 4096)
                elif descriptor == self._listener.fileno():
                    line, _ = self._listener.accept()
                    self._unread[line.fileno()] = line
                    poll.register(line, select.POLLIN)
                else:
                    poll.unregister(descriptor)
                    self._take(self._unread.pop(descriptor))
            self._reap()

    def _take(self, line: socket.socket) -> None:
        """Do what a connection asks for."""
        descriptors: list[int] = []
        try:
            line.settimeout(_MESSAGE_S)
            size, descriptors, _, _ = socket.recv_fds(line, 4, _FDS)
            message = json.loads(line.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL))
            line.settimeout(None)
            op = message["op"]
            if op == "kill":
                files.answer(line, {"left": sorted(self._kill(message["claim"]))})
            elif op == "memory":
                files.answer(line, _memory())
            else:
                self._fork(line, message, descriptors)
        except (OSError, ValueError, KeyError) as error:
            sys.stderr.write(f"a worker's message can't be used: {error!r}\n")
        finally:
            line.close()
            for descriptor in descriptors:
                os.close(descriptor)

    def _fork(self, line: socket.socket, message: dict[str, Any], descriptors: list[int]) -> None:
        if pid := os.fork():
            self._claims[pid] = message["claim"]
            return
        try:
            self._become_child()
            if message["op"] == "exec":
                os.dup2(descriptors[0], LOG)
                for descriptor in descriptors:
                    os.close(descriptor)
                _offer_to_the_kernel()
                _supervise(line, message)
            else:
                files.serve(line, message, descriptors)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(0)

    def _become_child(self) -> None:
        """Leave all that is the keeper's own."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        for other in (self._listener, *self._unread.values()):
            other.close()
        os.close(self._wake)
        os.close(self._signal)
        os.setsid()

    def _reap(self) -> None:
        """Reap dead children, and kill what killed supervisors left."""
        if self._reap_children() and self._orphans():
            proctree.kill_until_gone(self._orphans, supervisor.KILL_S)

    def _reap_children(self) -> bool:
        """Whether any had died."""
        has_died = False
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                has_died = True
                self._claims.pop(ended[0], None)
        except ChildProcessError:
            return False
        return has_died

    def _orphans(self) -> set[int]:
        tree = proctree.parents()
        own = self._claims.keys() & tree.keys()
        return proctree.descendants({os.getpid()}, tree) - own - proctree.descendants(set(own), tree)

    def _kill(self, claim: str | None) -> set[int]:
        """Kill all of a claim, or everything; returns what is left."""

        def doomed() -> set[int]:
            self._reap_children()
            tree = proctree.parents()
            if claim is None:
                return proctree.descendants({os.getpid()}, tree)
            roots = {pid for pid, its in self._claims.items() if its == claim} & tree.keys()
            return roots | proctree.descendants(roots, tree) | self._orphans()

        return proctree.kill_until_gone(doomed, supervisor.KILL_S)


def _supervise(line: socket.socket, message: dict[str, Any]) -> None:
    listeners: list[socket.socket] = []
    try:
        for port in message["ports"]:
            listeners.append(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            listeners[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listeners[-1].bind((_LOCALHOST, port))
            listeners[-1].listen(_BACKLOG)
    except OSError as error:
        why = f"the way out at port {port} can't be opened: {error}; another program of this session may have it"
        report: supervisor.Report = {"status": None, "tail": b"", "left": [], "error": why}
        line.sendall(marshal.dumps(dict(report)))
        return
    if listeners:
        socket.send_fds(line, [LISTENING], [listener.fileno() for listener in listeners])
    for listener in listeners:
        listener.close()
    supervisor.main(line.fileno())


def _offer_to_the_kernel() -> None:
    """Have the kernel kill this process and its programs before the keeper, if memory ends."""
    _LIBC.prctl(_PR_SET_DUMPABLE, 1)  # otherwise the file is root's
    try:
        with open("/proc/self/oom_score_adj", "w") as score:  # noqa: PTH123 - as in `supervisor`
            score.write("1000")
    finally:
        _LIBC.prctl(_PR_SET_DUMPABLE, 0)


def _memory() -> dict[str, int]:
    """The counts, as the kernel names them; empty if the container doesn't show its group."""
    for path in _MEMORY_FILES:
        try:
            with open(path) as counts:  # noqa: PTH123 - as in `supervisor`
                return {name: int(value) for name, value in map(str.split, counts)}
        except OSError:
            continue
    return {}


def main() -> None:
    """Fetch the listening socket, make the folders that are missing, report what isn't as it must be, and serve."""
    _LIBC.prctl(_PR_SET_DUMPABLE, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.umask(0o022)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as first:
        first.settimeout(_WAIT_S)
        first.connect(FIRST_SOCKET)
        data, descriptors, _, _ = socket.recv_fds(first, _MESSAGE, 1)
        (listener,) = descriptors
        message = json.loads(data)
        files_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        answer = {
            "uid": os.getuid(),
            "gid": os.getgid(),
            "missing": [folder for folder in message["folders"] if not _made(folder)],
            "writable": [path for path in message["read_only"] if _is_writable(path)],
            "files": sys.maxsize if files_limit == resource.RLIM_INFINITY else files_limit,
        }
        files.answer(first, answer)
    os.set_inheritable(listener, False)
    gc.freeze()
    with socket.socket(fileno=listener) as serving:
        Keeper(serving).serve()


def _is_writable(mount: str) -> bool:
    """Whether a mount isn't read-only. One that the image's user can't reach is out of reach for programs as well."""
    try:
        return not os.statvfs(mount).f_flag & os.ST_RDONLY
    except OSError:
        return False


def _made(folder: str) -> bool:
    try:
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103 - as in `supervisor`
    except OSError:
        return False
    return True
