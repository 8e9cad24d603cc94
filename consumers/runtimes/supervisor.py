"""The process between a worker and one program of a `process` runtime: it makes sure that no process of the program lives on.

It is a child subreaper: processes that the program leaves behind become its children, even daemons that forked twice and have a
session of their own. So without a child the whole tree is dead. It kills the tree when the program ends, when the worker asks, and
when the worker dies. It notices the worker's death by the closed socket, or by a pidfd if forked children of the worker keep the
socket open. If the supervisor itself is killed, the kernel kills the program (PDEATHSIG), and marks in the environment find the other
processes (`proctree`).

The socket, from the worker: one marshalled `Orders` behind its length (4 bytes, big-endian); then any byte asks for a stop
(SIGTERM, grace, kill), and the end of the stream for a kill at once. To the worker: one marshalled `Report` when all is dead, then the
end. The format is marshal, because both ends are the same interpreter. Orders come through the socket, so no secret is ever in an
argument vector.

`launch.py` owns timeouts and the meaning of the end, `forkserver.py` the start.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import resource
import select
import signal
import time
from pathlib import Path
from typing import TypedDict

from consumers.runtimes import landlock, proctree, seccomp
from consumers.runtimes.cell.enter import CellOrders, enter


class GuardOrders(TypedDict):
    """Restrictions of the program: `landlock.restrict` explains the paths and ports, `seccomp.install` the filter."""

    read: list[str]
    write: list[str]
    ports: list[int] | None
    filter: bytes


class Orders(TypedDict):
    """The program to run. `worker`: the pid whose death ends the program; None where it can't be seen: then only the socket tells of it.
    `marks`: shown by the supervisor itself, see `proctree`. `log`: a path, or an open file of ours. `rlimits`: hard limits of the program.

    With a `cell` the program runs in it, `env` and `cwd` are the cell's to set, and all other paths are this host's. A `guard` restricts
    a program without a cell.
    """

    argv: list[str]
    env: dict[str, str]
    cwd: str
    stdin: str
    log: str | int
    log_limit: int
    marks: dict[str, str]
    worker: int | None
    rlimits: list[tuple[int, int]]
    guard: GuardOrders | None
    cell: CellOrders | None


class Report(TypedDict):
    """How it ended. `status`: from waitpid, None if we ended it; `tail`: the end of its output; `left`: pids that can't be killed;
    `error`: why it was never started, otherwise empty. An exit code of 127 is always the program's own."""

    status: int | None
    tail: bytes
    left: list[int]
    error: str


GRACE_S = 2.0
"""From SIGTERM to SIGKILL: enough to write a last line, short beside any budget."""
KILL_S = 10.0
"""Limit for killing the whole tree; only uninterruptible sleep or another user's process takes longer."""
STARTED = b'"exit-code"'
"""In bubblewrap's report if it has started the program."""
CELL_S = 1.0
"""Limit for a cell to end by itself, before its processes are looked for one by one: the kernel needs a few milliseconds."""
REAP_S = 0.001
REPORTED = 4096
"""Bytes of output in the report. The report has them because the program could replace its log."""
TAIL = 1024 * 1024
"""Bytes kept of the end of a log that exceeds its limit: the end shows how a program failed."""

_READ = 65536
_PIPE_READS = 32
"""More than the largest pipe holds (1 MiB); a limit in case a process elsewhere was passed the descriptor and goes on writing."""
_PR_SET_PDEATHSIG = 1
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_CAPABILITIES = 64
"""More than any kernel has."""
_LIBC = ctypes.CDLL(None, use_errno=True)


class BoundedLog:
    """A log file with a size limit. It accepts all data, so no program ever waits for it; a full disk counts as the limit."""

    def __init__(self, log: str | int, limit: int) -> None:
        """`log`: the path of a file that is replaced, or an open file."""
        self._fd = new_log(log) if isinstance(log, str) else log
        self.last = b""
        self._room = max(limit - TAIL, limit // 2)
        self._kept = limit - self._room
        self._tail = bytearray()
        self._beyond = 0

    def write(self, data: bytes) -> None:
        self.last = (self.last + data[-REPORTED:])[-REPORTED:]
        head, overflow = data[: self._room], data[self._room :]
        if head:
            self._room -= len(head)
            self._to_disk(head)
        if overflow:
            self._beyond += len(overflow)
            self._tail += overflow
            if len(self._tail) > 2 * self._kept:
                del self._tail[: -self._kept]

    def close(self) -> None:
        del self._tail[: max(0, len(self._tail) - self._kept)]
        if left_out := self._beyond - len(self._tail):
            self._to_disk(b"\n[... %d bytes left out here ...]\n" % left_out)
        self._to_disk(bytes(self._tail))
        os.close(self._fd)

    def _to_disk(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError:
            self._room = 0
            self._beyond += len(data)


def new_log(path: str) -> int:
    """An open file that replaces whatever is at `path`."""
    try:
        os.unlink(path)  # noqa: PTH108 - paths here are text, as orders come
    except FileNotFoundError:
        pass
    # O_EXCL: a link or a pipe that an earlier program made here is neither followed nor waited for.
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


class Supervision:
    """One program, from its start to the death of its last process."""

    def __init__(self, orders: Orders, line: int) -> None:
        self._line = line
        self._worker = None if orders["worker"] is None else os.pidfd_open(orders["worker"])
        self._log = BoundedLog(orders["log"], orders["log_limit"])
        self._output, writer = os.pipe()
        os.set_blocking(self._output, False)
        self._status: int | None = None
        self._stopped = False
        self._unstarted, why = os.pipe()  # a successful exec closes it, like all our descriptors
        self._is_cell = orders["cell"] is not None
        self._cell_status, status = os.pipe()
        self._program = _start(orders, writer, why, line, status)
        for descriptor in (writer, why, status):
            os.close(descriptor)
        self._exit = os.pidfd_open(self._program)

    def run(self) -> Report:
        self._watch()
        left = self._kill_all()
        for _ in range(_PIPE_READS):
            if not self._copy_output():
                break
        self._log.close()
        return {
            "status": None if self._stopped else self._status,
            "tail": self._log.last,
            "left": sorted(left),
            "error": "" if left else self._why_unstarted(),
        }

    def _why_unstarted(self) -> str:
        """Why the program was never started; empty if it was.

        Bubblewrap fails with exit code 1, as programs do, but it reports an exit code only of a program that it has started. A signal
        that ends bubblewrap is the program's end: the kernel may kill all of a cell that is out of memory.
        """
        error = os.read(self._unstarted, _READ).decode(errors="replace")
        if error or not self._is_cell or self._stopped or self._status is None or not os.WIFEXITED(self._status):
            return error
        if STARTED in os.read(self._cell_status, _READ):
            return ""
        return self._log.last.decode(errors="replace").strip() or f"bubblewrap ended with {self._status}"

    def _watch(self) -> None:
        """Wait until the program has ended or must be killed. Wakes at least once a second, to reap daemons that ended."""
        poll = select.poll()
        for fd in (self._line, self._worker, self._output, self._exit):
            if fd is not None:
                poll.register(fd, select.POLLIN)
        end: float | None = None
        while True:
            ready = {fd for fd, _ in poll.poll(1000 if end is None else max(0, end - time.monotonic()) * 1000)}
            self._reap()
            if self._status is not None:
                return
            if self._output in ready and not self._copy_output():
                poll.unregister(self._output)
            worker_gone = self._worker in ready
            if self._line in ready:
                worker_gone |= not os.read(self._line, 1)
                if not self._stopped and not worker_gone:
                    self._stopped, end = True, time.monotonic() + GRACE_S
                    self._ask_to_stop()
            if worker_gone or (end is not None and time.monotonic() >= end):
                self._stopped = True
                return

    def _ask_to_stop(self) -> None:
        if self._is_cell:
            # A signal for bubblewrap would kill the cell at once, and the first process inside ignores it.
            tree = proctree.parents()
            first = {pid for pid, parent in tree.items() if parent == self._program}
            for pid in proctree.descendants(first, tree):
                proctree.send(pid, signal.SIGTERM)
            return
        try:
            os.killpg(self._program, signal.SIGTERM)
        except ProcessLookupError:  # it hasn't called setsid yet
            os.kill(self._program, signal.SIGTERM)

    def _kill_all(self) -> set[int]:
        """Kill all descendants, until no child is left: /proc alone could miss a process whose parent dies meanwhile."""
        if self._is_cell:
            self._end_cell()
        left: set[int] = set()
        while not left and self._reap():
            left = proctree.kill_until_gone(lambda: proctree.descendants({os.getpid()}, proctree.parents()), KILL_S)
        return left

    def _end_cell(self) -> None:
        """Kill the cell by its first process, which becomes our child and ends last: the kernel kills all others."""
        if self._status is None:
            proctree.send(self._program, signal.SIGKILL)
        end = time.monotonic() + CELL_S
        while self._reap() and time.monotonic() < end:
            time.sleep(REAP_S)

    def _reap(self) -> bool:
        """Reap dead children; False if no child is left, dead or alive, and so no descendant."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return True
                if pid == self._program:
                    self._status = status
        except ChildProcessError:
            return False

    def _copy_output(self) -> bool:
        """Move data from the pipe to the log; False if the pipe has none.

        One read at a time: a program that writes without end must not keep us from noticing that its time is up.
        """
        try:
            data = os.read(self._output, _READ)
        except BlockingIOError:
            return False
        self._log.write(data)
        return bool(data)


def _start(orders: Orders, output: int, why: int, line: int, status: int) -> int:
    """Fork the program in a session of its own; an error that prevents its start is written to `why`.

    `line` and `status`: for a cell, see `cell.enter`.
    """
    supervisor = os.getpid()
    if pid := os.fork():
        return pid
    try:
        os.setsid()
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:
            os._exit(127)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            _LIBC.signal(number, None)  # the interpreter ignores these signals, and the program would inherit that
        os.dup2(os.open(orders["stdin"], os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        argv, env = orders["argv"], orders["env"]
        if orders["cell"] is None:
            os.chdir(orders["cwd"])
            if orders["guard"] is not None:
                _restrict(orders["guard"])
        else:
            # The marks are bubblewrap's, by which the cell is found if this supervisor is killed; the program gets another environment.
            argv, env = enter(orders["cell"], argv, line, status), orders["marks"]
        for limit, value in orders["rlimits"]:
            resource.setrlimit(limit, (value, value))
        os.execvpe(argv[0], argv, env)  # noqa: S606 - the purpose of this process
    except OSError as error:
        # For a program looked up in PATH, execvpe names the last folder tried, as bytes.
        looked_up = not isinstance(error.filename, str)
        name = f"{orders['argv'][0]} (PATH={orders['env'].get('PATH')})" if looked_up else error.filename
        os.write(why, f"{name}: {error.strerror}".encode())
    except ValueError as error:  # a zero byte in an argument
        os.write(why, str(error).encode())
    finally:
        os._exit(127)


def _restrict(guard: GuardOrders) -> None:
    """Restrict this process, and so the program. Raises OSError."""
    for capability in range(_CAPABILITIES):
        # Without it in the bounding set no program gets it, though its user be root. Only root may remove it, and only root has it.
        _LIBC.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    try:
        landlock.restrict(
            [Path(path) for path in guard["read"]], [Path(path) for path in guard["write"]], guard["ports"]
        )
        seccomp.install(guard["filter"])
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), "the program can't be restricted") from error


def _read(line: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        if not (more := os.read(line, size - len(data))):
            raise EOFError("the worker closed the line before its orders were through")
        data += more
    return data


def main(line: int) -> None:
    """Run a supervisor in a process made for it; `line` is its end of the socket pair."""
    try:
        orders: Orders = marshal.loads(_read(line, int.from_bytes(_read(line, 4), "big")))  # noqa: S302 - our own worker's
    except (EOFError, ConnectionError):
        return  # the worker closed the socket before it sent orders
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    proctree.show_marks(orders["marks"])
    try:
        report = Supervision(orders, line).run()
    except OSError as error:
        report = {"status": None, "tail": b"", "left": [], "error": str(error)}
    data = marshal.dumps(dict(report))
    try:
        while data:
            data = data[os.write(line, data) :]
    except (BrokenPipeError, ConnectionResetError):
        pass  # the worker died; all processes are dead, and nobody waits for the report
