"""The process between us and the JVM: it ends the JVM when its parent is gone, whatever ended the parent.

Run by path, with the standard library alone: `python -I -S supervisor.py LOCK_FD GRACE_S COMMAND…`. Its standard input is
a pipe that the parent holds open: `T` stops the command (SIGTERM, then SIGKILL after GRACE_S), `K` or the pipe's end
kills it. The supervisor exits with the command's code (128 + signal where a signal ended it).
Invariant: no command outlives its supervisor (the kernel kills it), and LOCK_FD, which both inherit, stays locked for
as long as either lives.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import time

PR_SET_PDEATHSIG = 1


def main(lock: int, grace_s: float, command: list[str]) -> int:
    """Run `command` to its end; returns the exit code to leave with."""
    woken = _wake_on_signals()
    child = _spawn(command, lock)
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{child.pid}\n".encode(), 0)
    deadline: float | None = None
    while (code := child.poll()) is None:
        patience = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select([0, woken], [], [], patience)
        if woken in ready:
            os.read(woken, 512)
        elif 0 in ready and os.read(0, 1) == b"T":
            child.terminate()
            deadline = time.monotonic() + grace_s
        else:  # `K`, the pipe's end, or the grace is over
            child.kill()
            code = child.wait()
            break
    return 128 - code if code < 0 else code


def _wake_on_signals() -> int:
    """A file descriptor that turns readable when the child ends.

    Signals that would end this process are taken and dropped: its parent's word counts, and a handler, unlike SIG_IGN,
    is not inherited by the JVM, which would then be deaf to SIGTERM.
    """
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    return woken


def _spawn(command: list[str], lock: int) -> subprocess.Popen[bytes]:
    parent = os.getpid()
    libc = ctypes.CDLL(None, use_errno=True)

    def die_with_parent() -> None:
        # The kernel sends the signal when the *thread* that forked ends: here that is the only one.
        if sys.platform == "linux":
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(lock,), preexec_fn=die_with_parent)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
