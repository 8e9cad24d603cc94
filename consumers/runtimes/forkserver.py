"""Forks supervisors from one small process per worker: a fork takes 1 ms, the start of an interpreter 10 ms.

    worker ── a message with one end of a socket pair ──▶ fork server ── fork ──▶ supervisor, which has that end

Invariant: the server does nothing but fork, so a supervisor is like a new process: no thread, no lock, no secret. The server ends with
its worker. Supervisors outlive the server, because each has a socket of its own. A server that was killed or hangs is replaced.
`supervisor.py` owns what a supervisor does, `launch.py` what is sent over its socket.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import weakref
from pathlib import Path

from consumers.runtimes import supervisor
from consumers.runtimes.proctree import ROOM, ROOM_NAME

_PACKAGES = str(Path(__file__).parents[2])
_COMMAND = (
    sys.executable,
    *("-I", "-S", "-c"),
    "import sys; sys.path.append(sys.argv[1]); from consumers.runtimes.forkserver import main; main()",
    _PACKAGES,
)
_END_S = 0.5
"""Time for the server to end by itself. Then it is killed, which does no harm."""
_TAKE_S = 2.0
"""Limit for sending a message: a fork takes 1 ms, and a worker that blocks for longer would lose its lease."""


class ForkServer:
    """The worker's end. Not for several threads."""

    def __init__(self) -> None:
        self._line: socket.socket | None = None
        self._end: weakref.finalize[..., ForkServer] | None = None

    def fork(self) -> socket.socket:
        """The socket of a new supervisor, which waits for its orders there. OSError if no server can be started.

        A socket that closes at once belongs to a supervisor that could not be forked or was killed.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                if self._line is None or not _sent(self._line, theirs):
                    self._start()
                    assert self._line is not None, "just started"
                    socket.send_fds(self._line, [b"+"], [theirs.fileno()])
            except BaseException:
                ours.close()
                raise
        return ours

    def replace(self) -> None:
        """Use a new server from now on. Supervisors that this server forked go on."""
        if self._end is not None:
            self._end()
        self._line = None

    def _start(self) -> None:
        self.replace()
        ours, theirs = socket.socketpair()
        ours.settimeout(_TAKE_S)
        # An interpreter that was built against libraries in odd places doesn't start without the last.
        library_path = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
        with theirs:
            process = subprocess.Popen(
                _COMMAND,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env={ROOM_NAME: ROOM, **library_path},
                start_new_session=True,
            )
        self._line = ours
        self._end = weakref.finalize(self, _end, ours, process)


def _sent(line: socket.socket, theirs: socket.socket) -> bool:
    """False if the server was killed or hangs."""
    try:
        socket.send_fds(line, [b"+"], [theirs.fileno()])
    except (BrokenPipeError, ConnectionResetError, TimeoutError):
        return False
    return True


def _end(line: socket.socket, process: subprocess.Popen[bytes]) -> None:
    line.close()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:  # stopped by a signal, say
        process.kill()
        process.wait()


def main() -> None:
    """Run the server: fork for each socket that comes, until the worker is gone."""
    gc.freeze()  # a supervisor that looked through these objects for garbage would copy their memory
    signal.signal(signal.SIGCHLD, _reap)
    with socket.socket(fileno=0) as worker:
        while True:
            message, lines, _, _ = socket.recv_fds(worker, 1, 1)
            if not message:
                return
            for line in lines:
                os.set_inheritable(line, False)  # the program must not have it
                _fork(line, worker)
                os.close(line)


def _reap(*_: object) -> None:
    # Not SIG_IGN: the kernel sums up the CPU time only of children that are waited for, so sessions' costs would be lost.
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        pass


def _fork(line: int, worker: socket.socket) -> None:
    try:
        if os.fork():
            return
    except OSError as error:
        # The socket closes, and so the worker notices.
        sys.stderr.write(f"no supervisor could be forked: {error}\n")
        return
    try:
        worker.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        supervisor.main(line)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(0)
