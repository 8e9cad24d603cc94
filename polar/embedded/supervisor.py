"""The parent process of the JVM: it ends the JVM when its own parent has ended, for whatever reason.

Run by path, with the standard library alone: `python -I -S supervisor.py LOCK_FD GRACE_S COMMAND…`. Its parent holds standard input, a
pipe, open and writes orders to it: `T` stops the command (SIGTERM, then SIGKILL after GRACE_S); `K`, or closing the pipe, kills it. The
supervisor exits with the command's exit code, or 128 + signal.
Invariant: no command outlives its supervisor (the kernel kills it), and LOCK_FD, which both inherit, stays locked while either lives.
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
    """Run `command` to its end and return the exit code for this process."""
    woken = _wake_on_signals()
    child = _spawn(command, lock)
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{child.pid}\n".encode(), 0)
    deadline: float | None = None
    while (code := child.poll()) is None:
        timeout_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select([0, woken], [], [], timeout_s)
        if woken in ready:
            os.read(woken, 512)
        elif 0 in ready and os.read(0, 1) == b"T":
            child.terminate()
            deadline = time.monotonic() + grace_s
        else:  # `K`, a closed pipe, or the end of the grace period
            child.kill()
            code = child.wait()
            break
    return 128 - code if code < 0 else code


def _wake_on_signals() -> int:
    """A file descriptor that becomes readable when the child ends.

    Signals that would end this process are ignored, since only the parent gives orders. They are ignored by a handler: SIG_IGN would be
    inherited by the JVM, which would then ignore SIGTERM.
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
        # The kernel sends the signal when the *thread* that forked ends; this process has only one.
        if sys.platform == "linux":
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(lock,), preexec_fn=die_with_parent)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
