"""Landlock on this kernel: what `restrict` reports is what a process can't do any more."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import pytest

from consumers.runtimes import landlock
from consumers.runtimes.landlock import SINCE, Guard
from tests.consumers.runtimes.bare import ROOT, run_bare

pytestmark = pytest.mark.contract

ATTEMPTS = """
import ctypes, fcntl, json, os, socket, subprocess, sys
from pathlib import Path
from consumers.runtimes import landlock, seccomp

def error_of(attempt):
    try:
        attempt()
    except OSError as error:
        return error.errno
    return 0

def connect(port):
    with socket.socket() as client:
        client.connect(("127.0.0.1", port))

def fast_open(port):
    with socket.socket() as client:
        client.sendto(b"x", socket.MSG_FASTOPEN, ("127.0.0.1", port))

def multipath(port):
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262) as client:
        client.connect(("127.0.0.1", port))

def bind():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))

def abstract(name):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect("\\0" + name)

def terminal_settings():
    with open("/dev/null") as device:
        fcntl.ioctl(device, 0x5401, bytes(64))

def move():
    Path("write/moved").touch()
    os.rename("write/moved", "write/folder/moved")

def mount():
    if ctypes.CDLL(None, use_errno=True).mount(b"none", b"write", b"tmpfs", 0, None):
        raise OSError(ctypes.get_errno(), "mount")

def signal_own_child():
    child = subprocess.Popen(["sleep", "100"])
    child.kill()
    child.wait()
"""
SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/etc", "/dev", "/proc")
"""What an interpreter and its programs read; a machine has most of it."""


class Outcome(TypedDict):
    """Errors of the attempts (0 for success), and the fields of `Enforced`."""

    errors: dict[str, int]
    abi: int
    guards: list[str]
    lacking: list[str]
    missing: list[str]


@dataclass(frozen=True)
class Surroundings:
    """What lies outside: folders, listeners of the test's own process."""

    folder: Path
    open_port: int
    closed_port: int
    abstract: str

    def attempts(self) -> dict[str, str]:
        """Python expressions by name."""
        return {
            "read": "Path('read/file').read_text()",
            "execute": "subprocess.run(['read/program'], check=True)",
            "list": "os.listdir('read')",
            "write": "Path('write/file').write_text('new')",
            "write to a file": "Path('single').write_text('new')",
            "make": "os.mkdir('write/new')",
            "remove": "os.unlink('write/spare')",
            "signal own child": "signal_own_child()",
            "allowed port": f"connect({self.open_port})",
            "move": "move()",
            **{name: expression for name, (_, expression) in self.guarded().items()},
        }

    def guarded(self) -> dict[str, tuple[Guard, str]]:
        """Attempts that a guard refuses."""
        return {
            "write where it may read": (Guard.FILES, "Path('read/file').write_text('new')"),
            "make where it may read": (Guard.FILES, "os.mkdir('read/new')"),
            "read outside": (Guard.FILES, "Path('outside/file').read_text()"),
            "list outside": (Guard.FILES, "os.listdir('outside')"),
            "execute outside": (Guard.FILES, "subprocess.run(['outside/program'], check=True)"),
            "write outside": (Guard.FILES, "Path('outside/new').write_text('new')"),
            "follow a link out": (Guard.FILES, "Path('write/link').read_text()"),
            "remove outside": (Guard.FILES, "os.unlink('outside/spare')"),
            "truncate": (Guard.TRUNCATE, "os.truncate('read/file', 0)"),
            "other port": (Guard.PORTS, f"connect({self.closed_port})"),
            "bind": (Guard.PORTS, "bind()"),
            "abstract socket": (Guard.ABSTRACT_SOCKETS, f"abstract({self.abstract!r})"),
            "signal to the parent": (Guard.SIGNALS, "os.kill(os.getppid(), 0)"),
        }


@pytest.fixture
def around(tmp_path: Path) -> Iterator[Surroundings]:
    for folder in ("read", "write/folder", "outside"):
        (tmp_path / folder).mkdir(parents=True)
    for path in ("read/file", "write/file", "write/spare", "outside/file", "outside/spare", "single"):
        (tmp_path / path).write_text("text")
    for path in ("read/program", "outside/program"):
        (tmp_path / path).write_text("#!/bin/sh\n")
        (tmp_path / path).chmod(0o755)
    (tmp_path / "write/link").symlink_to(tmp_path / "outside/file")
    name = f"polar-{os.getpid()}-{tmp_path.name}"
    with _listening() as first, _listening() as second, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind("\0" + name)
        abstract.listen()
        yield Surroundings(tmp_path, first, second, name)


@contextmanager
def _listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0), backlog=16) as server:
        yield server.getsockname()[1]


def attempted(
    around: Surroundings, attempts: dict[str, str], *, abi: int | None = None, ports: bool = True, before: str = ""
) -> Outcome:
    """Make the attempts in a restricted process. `abi`: what an older kernel would answer; `before`: code between."""
    read = [*SYSTEM, sys.prefix, sys.base_prefix, str(ROOT), "read", "nowhere", "single/below"]
    lines = "\n".join(f"errors[{name!r}] = error_of(lambda: {expression})" for name, expression in attempts.items())
    code = f"""
os.chdir({str(around.folder)!r})
{"" if abi is None else f"landlock.abi = lambda: {abi}"}
enforced = landlock.restrict(
    list(map(Path, {read!r})), [Path("write"), Path("single")], {[around.open_port] if ports else None!r}
)
{before}
errors = {{}}
{lines}
json.dump({{"errors": errors, "abi": enforced.abi, "guards": sorted(enforced.guards), "lacking": sorted(enforced.lacking),
    "missing": [str(path) for path in enforced.missing if not path.is_absolute()]}}, sys.stdout)
"""
    result = run_bare(ATTEMPTS + code)
    assert result.returncode == 0, result.stderr
    outcome: Outcome = json.loads(result.stdout)
    return outcome


@pytest.mark.parametrize("abi", range(8))
def test_what_is_enforced_is_refused_and_all_else_works(around: Surroundings, abi: int) -> None:
    """As on the kernels of each ABI, and on the newest that this one has."""
    abi = min(abi, landlock.abi())
    outcome = attempted(around, around.attempts(), abi=abi)
    errors = outcome["errors"]
    assert (outcome["abi"], outcome["guards"]) == (abi, sorted(guard for guard in Guard if SINCE[guard] <= abi))
    assert outcome["lacking"] == sorted(guard for guard in Guard if SINCE[guard] > abi)
    refused = {name for name, (guard, _) in around.guarded().items() if guard in outcome["guards"]}
    assert {name for name in refused if errors[name] not in (errno.EACCES, errno.EPERM)} == set()
    # Only the first ABI has no right for moves between folders.
    without_right = {"move"} if abi == 1 else set()
    assert {name: error for name, error in errors.items() if error and name not in refused} == dict.fromkeys(
        without_right, errno.EXDEV
    )


def test_paths_that_do_not_exist_are_returned(around: Surroundings) -> None:
    missing = ["nowhere", "single/below"] if landlock.abi() else []
    assert attempted(around, {})["missing"] == missing


def test_tcp_is_left_alone_without_ports(around: Surroundings) -> None:
    attempts = {"connect": f"connect({around.closed_port})", "bind": "bind()"}
    outcome = attempted(around, attempts, ports=False)
    assert (outcome["errors"], Guard.PORTS in outcome["guards"], Guard.PORTS in outcome["lacking"]) == (
        {"connect": 0, "bind": 0},
        False,
        False,
    )


def test_devices_and_processes_outside_are_out_of_reach(around: Surroundings) -> None:
    attempts = {
        "ioctl": "terminal_settings()",
        "make a device": "os.mknod('write/disk', 0o60600, 0x700)",
        "memory of the parent": "open(f'/proc/{os.getppid()}/mem', 'rb')",
        "own memory": "open('/proc/self/mem', 'rb')",
        "mount": "mount()",
    }
    outcome = attempted(around, attempts)
    assert Guard.FILES in outcome["guards"], "the kernel that runs this test has no Landlock"
    ioctl = errno.EACCES if Guard.DEVICES in outcome["guards"] else errno.ENOTTY
    refused = dict.fromkeys(("make a device", "memory of the parent"), errno.EACCES)
    assert outcome["errors"] == {"ioctl": ioctl, "own memory": 0, "mount": errno.EPERM, **refused}


def test_with_the_seccomp_filter_no_other_way_leads_to_a_tcp_server(around: Surroundings) -> None:
    """Landlock alone lets both through."""
    attempts = {"fast open": f"fast_open({around.closed_port})", "MPTCP": f"multipath({around.closed_port})"}
    filtered = attempted(around, attempts, before="seccomp.install(seccomp.program(os.uname().machine))")
    assert filtered["errors"] == dict.fromkeys(attempts, errno.EPERM)


def test_a_refused_rule_restricts_nothing(around: Surroundings) -> None:
    code = f"""
try:
    landlock.restrict([], [], [70000])
except OSError as error:
    print(error)
print(Path({str(around.folder / "outside" / "file")!r}).read_text())
"""
    assert run_bare(ATTEMPTS + code).stdout == "[Errno 22] Landlock refused call 445: Invalid argument\ntext\n"


def test_what_the_restricted_process_starts_is_restricted_too(around: Surroundings) -> None:
    code = f"""
os.chdir({str(around.folder)!r})
landlock.restrict(list(map(Path, {[*SYSTEM]!r})), [Path("write")], None)
os.execvp("sh", ["sh", "-c", "cat outside/file; echo new >write/file && cat write/file"])
"""
    result = run_bare(ATTEMPTS + code)
    assert result.stdout == "new\n"
    assert "Permission denied" in result.stderr
