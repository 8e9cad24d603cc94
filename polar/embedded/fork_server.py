"""Forks the parts of `polar up` from one process that has imported what they share: each starts in a tenth of a second, not in one.

    polar up ── an order, as a line of JSON ──▶ fork server ── fork ──▶ part: `python -m MODULE ARGUMENTS`
             ◀── its process id, its exit code ──

Run as `python -m polar.embedded.fork_server TITLE SHARED_MODULE…`, with a socket as standard input, of which `forks.py` has the other end.
Invariant: a part ends when this process ends, for whatever reason (`parent_watch.py`), and this process ends with that of `forks.py`.
The server has one thread and opens nothing but what is listed here, so a part is like a new process.
"""

from __future__ import annotations

import gc
import os
import runpy
import selectors
import signal
import socket
import sys
from collections.abc import Sequence
from importlib import import_module

import msgspec

from polar.embedded import parent_watch

READ_BYTES = 1 << 16


class Start(msgspec.Struct, frozen=True, tag=True):
    """Fork a part. `number` names it in what follows. The texts are bytes, since paths may be in any encoding."""

    number: int
    arguments: Sequence[bytes]
    """The module and its arguments."""
    environment: Sequence[tuple[bytes, bytes]]
    log: bytes
    """File to which its output is appended."""


class Signal(msgspec.Struct, frozen=True, tag=True):
    """Send a signal to a part, unless it has ended."""

    number: int
    signal: int


class Started(msgspec.Struct, frozen=True, tag=True):
    number: int
    pid: int


class Ended(msgspec.Struct, frozen=True, tag=True):
    number: int
    code: int
    """Exit code, or the negative number of a signal."""


ORDERS = msgspec.json.Decoder(Start | Signal)
REPLIES = msgspec.json.Decoder(Started | Ended)


def main() -> None:
    title, *shared = sys.argv[1:]
    for module in shared:
        import_module(module)
    # Now, since the library finds the place of the title by the environment that a process began with, and parts replace theirs.
    _set_title(f"{title}: fork server")
    gc.collect()
    gc.freeze()  # a part that looked through these objects for garbage would copy their memory
    order = _Server(socket.socket(fileno=os.dup(0))).serve()
    # In a part, whose stack is as short as that of a new process.
    _become(order, title)
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


class _Server:
    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._life, self._held = os.pipe()
        """The parts read the first end, which closes with us: only this process has the second."""
        self._child_ended, self._wake = os.pipe()
        self._numbers: dict[int, int] = {}
        """Numbers of living parts by process id."""
        os.set_blocking(self._wake, False)
        signal.set_wakeup_fd(self._wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> Start:
        """Fork for each order. Returns in each part, with its order; in the server it doesn't return, but exits."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._line, selectors.EVENT_READ)
            selector.register(self._child_ended, selectors.EVENT_READ)
            unread = b""
            while True:
                for key, _ in selector.select():
                    if key.fileobj is not self._line:
                        os.read(self._child_ended, READ_BYTES)
                        continue
                    received = self._line.recv(READ_BYTES)
                    if not received:
                        sys.exit()
                    *lines, unread = (unread + received).split(b"\n")
                    for line in lines:
                        order = ORDERS.decode(line)
                        if isinstance(order, Start) and self._is_part(order):
                            return order
                        if isinstance(order, Signal):
                            self._signal(order)
                self._reap()

    def _is_part(self, order: Start) -> bool:
        """Fork, and tell in which of the two processes this is."""
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._line.close()
            with open(os.devnull) as nothing:  # noqa: PTH123 - as in parent_watch.py
                os.dup2(nothing.fileno(), 0)
            for end in (self._held, self._child_ended, self._wake):
                os.close(end)
            parent_watch.start(self._life)
            return True
        self._numbers[pid] = order.number
        self._reply(Started(order.number, pid))
        return False

    def _signal(self, order: Signal) -> None:
        # What has ended is reaped here alone, so that a process id is that of the part.
        for pid, number in self._numbers.items():
            if number == order.number:
                os.kill(pid, order.signal)

    def _reap(self) -> None:
        while self._numbers:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self._reply(Ended(self._numbers.pop(pid), os.waitstatus_to_exitcode(status)))

    def _reply(self, reply: Started | Ended) -> None:
        try:
            self._line.sendall(msgspec.json.encode(reply) + b"\n")
        except OSError:  # `polar up` is gone
            sys.exit()


def _become(order: Start, title: str) -> None:
    """Make this process what a new one would be: session, output, environment, arguments, title."""
    os.setsid()
    os.environb.clear()
    os.environb.update(order.environment)
    sys.stdout.flush()
    log = os.open(order.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    sys.argv = list(map(os.fsdecode, order.arguments))
    _set_title(" ".join((f"{title}:", *sys.argv)))


def _set_title(title: str) -> None:
    # Imported only here: `forks.py` imports this module also where the extra `embedded` isn't installed.
    from setproctitle import setproctitle

    setproctitle(title)


if __name__ == "__main__":
    main()
