"""Groups of sessions on this host's real cgroups, whichever version it has, with real programs in them."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest

from consumers.runtimes import proctree
from consumers.runtimes.base import SandboxError
from consumers.runtimes.cell import cgroup, limits
from consumers.runtimes.cell.cgroup import Group, Parent
from consumers.runtimes.cell.limits import Host, Limits
from tests.consumers.runtimes.conftest import groups_named
from tests.waiting import until

MB = 1024 * 1024
HOG = "import sys; hog = bytearray(int(sys.argv[1])); hog[::4096] = b'x' * len(hog[::4096]); print('has it all', flush=True)"
BOMB = """
import os, time
forked = 0
try:
    while forked < 200:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        forked += 1
except BlockingIOError:
    pass
print(forked, flush=True)
time.sleep(60)
"""
HYDRA = """
import os
while True:  # each process ends at once, and two others take its place
    try:
        if os.fork() and os.fork():
            os._exit(0)
    except BlockingIOError:
        pass
"""
SPIN = "print('spins', flush=True)\nwhile True: pass"
SLEEP = "import time; print('sleeps', flush=True); time.sleep(60)"
JOIN = """
import subprocess, sys, time
from pathlib import Path
from consumers.runtimes.cell import cgroup
from consumers.runtimes.cell.limits import Limits, probe

def start(group, program, *arguments):
    join = lambda: [Path(path).write_text("0") for path in group.join_paths]
    return subprocess.Popen([sys.executable, "-c", program, *arguments], preexec_fn=join)
"""
MAKER = f"""{JOIN}
start(probe().group(sys.argv[1], Limits()), sys.argv[2])
time.sleep(60)
"""
NESTED_HOG = f"""{JOIN}
group = probe().group(sys.argv[1], Limits(memory_mb=400))
start(group, sys.argv[2], str(200 * 1024 * 1024)).wait()
print(group.oom_killed(), group.host_out_of_memory(), flush=True)
cgroup.remove(group.folders)
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="module")
def host() -> Host:
    found = limits.probe()
    if found.cgroups.reasons:
        pytest.skip(f"this host has no cgroups for us: {found.cgroups.reasons}")
    return found


@pytest.fixture
def name(host: Host) -> Iterator[str]:
    """A name that begins the names of all groups of a test; they are removed at its end."""
    prefix = f"test-{secrets.token_hex(4)}"
    yield prefix
    for folder in groups_named(prefix):
        members = folder / "cgroup.procs"
        proctree.kill_until_gone(partial(_pids, members), 10)
        cgroup.remove([str(folder)])


def _pids(members: Path) -> set[int]:
    return set(map(int, members.read_text().split()))


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a Python program in a group, as a supervisor's forked child would."""
    programs: list[subprocess.Popen[str]] = []

    def started(group: Group, program: str, *arguments: str) -> subprocess.Popen[str]:
        def join() -> None:
            for path in group.join_paths:
                fd = os.open(path, os.O_WRONLY)
                os.write(fd, b"0")
                os.close(fd)

        argv = [sys.executable, "-c", program, *arguments]
        programs.append(subprocess.Popen(argv, preexec_fn=join, stdout=subprocess.PIPE, text=True))
        return programs[-1]

    yield started
    for program in programs:
        program.kill()
        program.communicate()


def line(program: subprocess.Popen[str]) -> str:
    assert program.stdout is not None
    return program.stdout.readline().strip()


@pytest.mark.contract
def test_a_memory_hog_ends_by_its_own_limit_and_its_neighbour_goes_on(host: Host, name: str, start: Start) -> None:
    hog_group = host.group(f"{name}-hog", Limits(memory_mb=60))
    neighbour_group = host.group(f"{name}-neighbour", Limits(memory_mb=60))
    neighbour = start(neighbour_group, SLEEP)
    assert line(neighbour) == "sleeps"
    hog = start(hog_group, HOG, str(200 * MB))
    assert hog.wait() == -signal.SIGKILL
    assert line(hog) == ""
    assert hog_group.oom_killed()
    assert not hog_group.host_out_of_memory()
    assert neighbour.poll() is None
    assert not neighbour_group.oom_killed()


@pytest.mark.contract
def test_the_next_program_in_a_group_starts_with_a_clean_record(host: Host, name: str, start: Start) -> None:
    first = host.group(name, Limits(memory_mb=60))
    start(first, HOG, str(200 * MB)).wait()
    assert first.oom_killed()
    second = host.group(name, Limits(memory_mb=300))
    program = start(second, HOG, str(200 * MB))
    assert line(program) == "has it all"
    assert not second.oom_killed()


@pytest.mark.contract
def test_a_lack_of_memory_outside_of_the_group_is_the_machine_s(host: Host, name: str, start: Start) -> None:
    """The machine is a group around the session's group here, with less memory than the session may use."""
    machine = host.group(f"{name}-machine", Limits(memory_mb=120))
    for path in (Path(join).parent / "memory.oom.group" for join in machine.join_paths):
        if path.exists():  # in v2 the kernel would otherwise kill all in the machine
            path.write_text("0")
    program = start(machine, NESTED_HOG, f"{name}-session", HOG)
    assert line(program) == "False True"
    program.wait()
    remove_workers(machine)


@pytest.mark.contract
def test_a_fork_bomb_stops_at_the_limit_and_is_killed_as_a_whole(host: Host, name: str, start: Start) -> None:
    group = host.group(name, Limits(pids=30))
    bomb = start(group, BOMB)
    assert line(bomb) == "29"
    assert len(group.pids()) == 30
    assert cgroup.kill(group.folders) == set()
    assert bomb.wait() == -signal.SIGKILL
    assert group.pids() == set()


@pytest.mark.contract
def test_processes_that_replace_each_other_without_end_are_killed(host: Host, name: str, start: Start) -> None:
    group = host.group(name, Limits(pids=40))
    start(group, HYDRA)
    until(lambda: len(group.pids()) > 20)
    assert cgroup.kill(group.folders) == set()
    cgroup.remove(group.folders)
    assert not [path for path in group.join_paths if Path(path).exists()]


@pytest.mark.contract
def test_a_spinner_gets_no_more_than_its_share(host: Host, name: str, start: Start) -> None:
    group = host.group(f"{name}-some", Limits(cpus=0.25))
    spinner = start(group, SPIN)
    assert line(spinner) == "spins"
    process = psutil.Process(spinner.pid)
    began, used = time.monotonic(), sum(process.cpu_times()[:2])
    until(lambda: time.monotonic() - began > 1.5)
    share = (sum(process.cpu_times()[:2]) - used) / (time.monotonic() - began)
    assert share < 0.35
    assert throttled(group) > 0  # also where a busy machine left it less than its share


def throttled(group: Group) -> int:
    """How often the kernel has made the group wait."""
    texts = [
        path.read_text() for path in (Path(join).parent / "cpu.stat" for join in group.join_paths) if path.exists()
    ]
    counts = dict(line.split() for text in texts for line in text.splitlines())
    return int(counts["nr_throttled"])


@pytest.mark.contract
def test_limits_of_an_existing_group_go_up_and_down(host: Host, name: str, start: Start) -> None:
    for memory_mb in (100, 400, 50):
        group = host.group(name, Limits(memory_mb=memory_mb, cpus=1, pids=10))
    hog = start(group, HOG, str(80 * MB))
    assert hog.wait() == -signal.SIGKILL


@pytest.mark.contract
def test_a_group_is_removed_from_outside_once_it_is_empty(host: Host, name: str, start: Start) -> None:
    """The worker that made it ran in another group than ours, and was killed."""
    elsewhere = host.group(f"{name}-elsewhere", Limits())
    worker = start(elsewhere, MAKER, f"{name}-claim", SLEEP)
    assert line(worker) == "sleeps"
    worker.kill()
    worker.wait()
    remains = groups_named(f"{name}-claim")
    with pytest.raises(SandboxError, match="busy"):
        cgroup.remove(map(str, remains), deadline_s=0.1)
    (pid,) = set[int]().union(*(_pids(folder / "cgroup.procs") for folder in remains))
    assert SLEEP in psutil.Process(pid).cmdline()
    os.kill(pid, signal.SIGKILL)
    cgroup.remove(map(str, remains))
    assert groups_named(f"{name}-claim") == []
    remove_workers(elsewhere)


def remove_workers(group: Group) -> None:
    """Remove the group into which a worker in cgroup v2 has moved itself."""
    for path in group.join_paths:
        with suppress(FileNotFoundError):
            (Path(path).parent / "polar.worker").rmdir()


@pytest.mark.contract
def test_a_removed_group_has_nothing_to_kill_and_nothing_to_remove(host: Host, name: str) -> None:
    group = host.group(name, Limits())
    cgroup.remove(group.folders)
    cgroup.remove(group.folders)
    assert cgroup.kill(group.folders) == set()
    assert not group.oom_killed()


@pytest.mark.contract
def test_a_group_that_cannot_be_made_is_an_error_of_the_sandbox(host: Host) -> None:
    with pytest.raises(SandboxError, match="No such file or directory") as error:
        host.group("no/folder", Limits())
    assert error.value.code == "supervisor_lost"


V1_HOST = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
33 31 0:30 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
34 31 0:31 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd"""
V1_OWN = "4:cpu,cpuacct:/\n3:memory:/user.slice/user-1000.slice\n1:name=systemd:/user.slice\n"


def test_v1_has_a_place_for_each_controller() -> None:
    assert list(cgroup.places(V1_HOST, V1_OWN)) == [
        (Parent(1, "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpu,cpuacct"), ["cpu"]),
        (Parent(1, "/sys/fs/cgroup/memory/user.slice/user-1000.slice", "/sys/fs/cgroup/memory"), ["memory"]),
    ]


@pytest.mark.parametrize(
    ("root", "own", "folder"),
    [
        ("/", "0::/user.slice/run-7.scope", "/sys/fs/cgroup/user.slice/run-7.scope"),
        ("/", "0::/user.slice/run-7.scope/polar.worker", "/sys/fs/cgroup/user.slice/run-7.scope"),
        ("/", "0::/", "/sys/fs/cgroup"),
        ("/docker/4f", "0::/docker/4f", "/sys/fs/cgroup"),
        ("/docker/4f", "0::/docker/4f/job", "/sys/fs/cgroup/job"),
        ("/docker/4f", "0::/docker/99", None),
        ("/", "0::/../99", None),
        ("/", "", None),
    ],
)
def test_v2_has_one_place_if_the_mount_shows_our_group(root: str, own: str, folder: str | None) -> None:
    mounts = f"30 25 0:26 {root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup rw,nsdelegate"
    expected: list[tuple[Parent, list[str]]] = [(Parent(2, folder, "/sys/fs/cgroup"), [])] if folder else []
    assert list(cgroup.places(mounts, own)) == expected


def test_a_mount_point_may_have_spaces() -> None:
    mounts = r"30 25 0:26 / /mnt/control\040groups rw - cgroup2 cgroup rw"
    assert list(cgroup.places(mounts, "0::/a b")) == [(Parent(2, "/mnt/control groups/a b", "/mnt/control groups"), [])]
