"""What a cell keeps from its programs, and an evaluation from the run before it."""

from __future__ import annotations

import asyncio
import os
import shlex
import socket
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from consumers.runtimes.base import LOG_LIMIT, NOTE_LIMIT, OUT_OF_MEMORY, Exec, Labels, ModelAccess, SandboxError
from consumers.runtimes.cell.backend import CellBackend
from consumers.runtimes.cell.runtime import CellRuntime
from tests.consumers.runtimes.conftest import Living, groups_named, processes, workspace_of
from tests.consumers.runtimes.test_supervisor import daemon, programs, start_worker
from tests.serving import serving
from tests.waiting import eventually
from topics.types.runtime import Network, RuntimeSpec

pytestmark = pytest.mark.contract

PROJECT = Path(__file__).parents[4]


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[CellBackend]:
    made = CellBackend(tmp_path / "runtimes")
    yield made
    for left in await made.labelled():
        await made.remove(left.handle)


async def output(runtime: CellRuntime, command: str) -> str:
    """What a command that must succeed writes."""
    ended = await runtime.exec(Exec(command, timeout_s=30))
    assert ended.exit_code == 0, ended.tail
    return ended.tail


def process_named(name: str) -> int | None:
    return next((pid for pid, line in processes("cmdline") if line.startswith(f"{name}\0".encode())), None)


async def test_a_program_sees_only_the_environment_that_it_is_given(
    runtime: CellRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLAR_KAFKA_PASSWORD", "secret")
    ended = await runtime.exec(Exec(("cat", "/proc/self/environ"), env={"FROM_TASK": "a b\nc"}))
    seen = dict(entry.split("=", 1) for entry in ended.log.read_text().rstrip("\0").split("\0"))
    assert seen.pop("PATH").endswith("/usr/bin:/sbin:/bin")
    own = {"HOME": "/home/agent", "TMPDIR": "/tmp", "USER": "agent", "PWD": "/workspace"}
    assert seen == own | {"LANG": "C.UTF-8", "FROM_TASK": "a b\nc"}


async def test_the_cells_first_process_is_out_of_reach(runtime: CellRuntime) -> None:
    """It is bubblewrap, which has the programs' user: whoever writes its memory lives on after its parent."""
    opened = "for process in self 1; do (exec 3<>/proc/$process/mem) 2>/dev/null && echo $process; done; ls -A /proc/1"
    assert await output(runtime, opened) == "self\n"


async def test_a_program_sees_no_file_of_the_host_but_programs(runtime: CellRuntime, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    for path in (tmp_path / "secret", "/etc/shadow", "/etc/hostname", "/root/.ssh", PROJECT / "README.md", "/var/log"):
        assert (await runtime.exec(Exec(("ls", "-d", str(path))))).exit_code == 2, path
    writable = await output(runtime, "find / -xdev -maxdepth 2 -writable -not -path '/proc*' 2>/dev/null; true")
    assert set(writable.split()) <= {"/home/agent", "/workspace", "/tmp", "/run", "/dev/shm", "/var/tmp"} | {
        f"/dev/{name}"
        for name in (
            "null",
            "zero",
            "full",
            "random",
            "urandom",
            "tty",
            "ptmx",
            "fd",
            "stdin",
            "stdout",
            "stderr",
            "core",
            "console",
        )
    }, writable
    assert "Read-only file system" in (await runtime.exec(Exec("touch /usr/bin/x"))).tail


async def test_a_tool_is_seen_wherever_it_lies_on_the_host(runtime: CellRuntime, tmp_path: Path) -> None:
    assert tmp_path.is_relative_to("/tmp"), "where the cell has a folder of its own"
    tool = tmp_path / "tools" / "tool"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho ran\n")
    tool.chmod(0o755)
    assert (await runtime.exec(Exec((str(tool),), tools=(tool.parent,)))).tail == "ran\n"
    assert (await runtime.exec(Exec(f"touch {tool}", tools=(tool.parent,)))).exit_code == 1


async def test_a_program_sees_no_process_of_the_host_and_no_supervisor(runtime: CellRuntime) -> None:
    seen = await output(runtime, "for process in /proc/[0-9]*; do cat $process/comm 2>/dev/null; done; true")
    assert set(seen.split()) == {"bash"}
    assert await output(runtime, "kill -9 $PPID; echo $PPID") == "1\n"
    assert await output(runtime, "echo lives") == "lives\n"


async def test_a_program_has_no_capability_and_makes_no_namespace(runtime: CellRuntime) -> None:
    status = await output(runtime, "grep -E '^(Cap|NoNewPrivs)' /proc/self/status")
    fields = dict(line.split(":\t") for line in status.splitlines())
    assert fields.pop("NoNewPrivs") == "1"
    assert {int(value, 16) for value in fields.values()} == {0}
    assert (await runtime.exec(Exec("unshare --user true"))).exit_code == 1
    assert (await runtime.exec(Exec("mount -t tmpfs none /workspace"))).exit_code != 0


@pytest.mark.skipif(os.geteuid() != 0, reason="who isn't root has one user id")
async def test_each_session_of_a_privileged_worker_has_a_user_of_its_own(backend: CellBackend, claim: str) -> None:
    if backend.host.user_id(claim) is None:
        pytest.skip("this root has no other user's id to give")
    found = set()
    for number in (1, 2):
        made = await backend.create(Labels("polar", "task.0", number, f"{claim}-{number}"), RuntimeSpec())
        running = asyncio.create_task(made.exec(Exec(f"touch started; exec -a {claim}-{number} sleep 1000")))
        pid = await eventually(partial(process_named, f"{claim}-{number}"))
        user = Path(f"/proc/{pid}").stat().st_uid
        assert (workspace_of(made) / "started").stat().st_uid == user
        found.add(user)
        await made.remove()
        await asyncio.wait({running})
        running.exception()
    assert len(found) == 2
    assert os.getuid() not in found


async def test_a_program_reaches_no_listener_of_the_host(runtime: CellRuntime) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_server(("0.0.0.0", 0)) as public:
        addresses = {"127.0.0.1", "0.0.0.0", socket.gethostbyname(socket.gethostname())}
        for server in (listener, public):
            for address in addresses:
                script = f"exec 3<>/dev/tcp/{address}/{server.getsockname()[1]}"
                assert (await runtime.exec(Exec(script, timeout_s=5))).exit_code == 1, script
        for server in (listener, public):
            server.settimeout(0)
            with pytest.raises(BlockingIOError):
                server.accept()
    assert (await runtime.exec(Exec("getent hosts example.org", timeout_s=5))).exit_code == 2


async def test_with_the_hosts_network_a_program_reaches_what_the_host_does(backend: CellBackend, claim: str) -> None:
    spec = RuntimeSpec(setup_network=Network.HOST)
    made = await backend.create(Labels("polar", "task.0", 1, claim), spec)
    with serving(lambda _: (200, b"answered")) as (url, _):
        assert await output(made, f"curl -sS {url}; cmp /etc/resolv.conf <(cat /etc/resolv.conf)") == "answered"


async def test_the_harness_alone_reaches_its_model_and_with_the_key_of_its_session_alone(
    backend: CellBackend, claim: str
) -> None:
    made = await backend.create(Labels("polar", "task.0", 1, claim), RuntimeSpec())
    run = await backend.attach(made.handle, f"{claim}-run", RuntimeSpec())
    with serving(lambda _: (200, b"answered")) as (url, requests):
        model = ModelAccess(url, "sk-polar-own", "m")
        inside = run.reached_at(model)
        assert "sk-polar-own" not in str(inside.env)
        call = f"curl -sS -H 'Authorization: Bearer sk-polar-stolen' {inside.proxy_url}/v1/models"
        assert (await run.exec(Exec(call, model=model))).tail == "answered"
        assert [(path, key) for path, key, _ in requests] == [("/v1/models", "Bearer sk-polar-own")]
        for denied in (Exec(call), Exec(f"curl -sS {url}", model=model)):
            assert (await run.exec(denied)).exit_code == 7, "curl: can't connect"
        assert len(requests) == 1


async def test_an_abstract_socket_of_the_host_is_not_reached(runtime: CellRuntime) -> None:
    name = f"polar-{uuid.uuid4().hex}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0{name}")
        server.listen()
        script = f"import socket; socket.socket(socket.AF_UNIX).connect('\\0{name}')"
        ended = await runtime.exec(Exec(f"python -c {shlex.quote(script)}"))
    assert "ConnectionRefusedError" in ended.tail


HOLD = """
import array, errno, os, pathlib, socket, time
fd, kept = os.open("/dev/null", os.O_RDONLY), []
try:
    while True:
        kept += socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        for _ in range(5):
            kept[-1].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd] * 200))])
except OSError as error:
    pathlib.Path("held").write_text(errno.errorcode[error.errno])
time.sleep(60)
"""


async def test_descriptors_that_a_cell_has_in_flight_keep_no_other_from_starting(
    backend: CellBackend, runtime: CellRuntime, claim: str
) -> None:
    """The kernel counts them by user, and an unprivileged worker's cells have the worker's."""
    holder = await backend.create(Labels("polar", "task.1", 1, f"{claim}-holder"), RuntimeSpec())
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(holder.exec(Exec(("python", "-c", HOLD), timeout_s=60), stop))
        held = workspace_of(holder) / "held"
        await eventually(held.exists)
        assert await output(runtime, "echo fine") == "fine\n"
        stop.set()
    assert held.read_text() == "ETOOMANYREFS"


async def test_programs_go_first_when_the_hosts_memory_ends(runtime: CellRuntime) -> None:
    assert await output(runtime, "cat /proc/self/oom_score_adj") == "1000\n"


async def test_an_evaluation_sees_the_prepared_home_and_the_runs_workspace_and_changes_neither(
    backend: CellBackend, claim: str
) -> None:
    spec = RuntimeSpec()
    made = await backend.create(Labels("polar", "task.0", 1, claim), spec)
    await output(made, "echo prepared > ~/tool; echo base > file; mkdir folder; echo kept > folder/kept")
    run = await backend.attach(made.handle, f"{claim}-run", spec)
    poison = "mkdir -p ~/.local/lib/python3.11/site-packages; echo 'print(1)' > ~/.local/lib/python3.11/site-packages/usercustomize.py"
    await output(run, f"{poison}; echo poisoned > ~/tool; echo poison > /tmp/x; echo mended > file; rm folder/kept")
    for attempt in (1, 2):
        evaluation = await backend.attach(made.handle, f"{claim}-evaluation-{attempt}", spec, fresh=True)
        seen = await output(evaluation, "cat ~/tool file; ls -A ~ folder; ls /tmp/x 2>&1 || true")
        gone = "ls: cannot access '/tmp/x': No such file or directory\n"
        assert seen == f"prepared\nmended\n/home/agent:\ntool\n\nfolder:\n{gone}"
        await evaluation.write_file("tests/new.py", b"new")
        assert await output(evaluation, "cat tests/new.py; echo changed | tee file; rm -r folder") == "newchanged\n"
        assert await evaluation.read_file("file", 100) == b"changed\n"
    assert await output(run, "cat file; ls") == "mended\nfile\nfolder\n"


async def test_a_link_that_leads_out_of_the_cell_is_followed_by_nobody(runtime: CellRuntime, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    await output(runtime, f"ln -s {tmp_path} out; ln -s {tmp_path}/secret file; ln -s /etc etc")
    for path in ("out/secret", "file", "etc/shadow"):
        with pytest.raises(Exception, match="leads out of the sandbox"):
            await runtime.read_file(path, 10)
        with pytest.raises(Exception, match="leads out of the sandbox"):
            await runtime.write_file(path, b"x")
    assert (tmp_path / "secret").read_text() == "secret"


async def test_nothing_of_a_killed_workers_cell_is_left_after_reaping(
    backend: CellBackend, tmp_path: Path, claim: str, token: str, living: Living
) -> None:
    command = daemon("without environment", token) + "sleep 1000"
    worker = await start_worker(tmp_path / "runtimes", claim, command, kind="cell")
    await eventually((tmp_path / "runtimes" / claim / "workspace" / "pid").exists)
    worker.kill()
    await worker.wait()
    [found] = await backend.labelled()
    assert found.labels.claim_id == claim
    await backend.remove(found.handle)
    assert programs(living()) == []
    assert await backend.labelled() == []
    assert groups_named(claim) == []
    assert claim not in Path("/proc/mounts").read_text()


async def test_where_its_groups_are_not_seen_a_cell_is_ended_by_its_marks(
    backend: CellBackend, claim: str, token: str, living: Living
) -> None:
    made = await backend.create(Labels("polar", "task.0", 1, claim), RuntimeSpec())
    running = asyncio.create_task(made.exec(Exec(daemon("without environment", token) + "sleep 1000")))
    await eventually((workspace_of(made) / "pid").exists)
    seen_elsewhere = "/nowhere/polar-of-another-container\n"
    (backend.folders.root / claim / "groups").write_text(seen_elsewhere)
    await made.remove()
    with pytest.raises(SandboxError):
        await running
    assert programs(living()) == []
    groups = groups_named(claim)
    await eventually(lambda: not any((group / "cgroup.procs").read_text() for group in groups))
    for group in groups:
        group.rmdir()


async def test_an_evaluation_that_uses_nothing_copies_no_home(backend: CellBackend, claim: str) -> None:
    made = await backend.create(Labels("polar", "task.0", 1, claim), RuntimeSpec())
    evaluation = await backend.attach(made.handle, f"{claim}-evaluation", RuntimeSpec(), fresh=True)
    await evaluation.kill_all()
    views = backend.folders.root / claim / "views"
    assert list(views.iterdir()) == []
    await asyncio.gather(*(evaluation.write_file(f"/home/agent/{n}", b"x") for n in range(4)))
    assert sorted(path.name for path in (views / f"{claim}-evaluation").iterdir()) == ["home", "tmp", "upper", "work"]


FORK_BOMB = "bomb() { bomb | bomb & }; bomb; sleep 1000"
FILL = "for n in $(seq 1000); do head -c 10M /dev/zero > $n; done; sleep 1000"
FLOOD = "yes"
HOG = "python -c 'import time; held = b\"x\" * (400 << 20); time.sleep(1000)'"


@pytest.mark.parametrize("name", ["fork bomb", "disk filler", "log flooder", "memory hog"])
async def test_what_takes_too_much_ends_its_own_session_alone(backend: CellBackend, claim: str, name: str) -> None:
    spec = RuntimeSpec(memory_mb=100, pids=50, storage_mb=100)
    hostile = await backend.create(Labels("polar", "task.0", 1, claim), spec)
    neighbour = await backend.create(Labels("polar", "task.1", 1, f"{claim}-neighbour"), spec)
    command = {"fork bomb": FORK_BOMB, "disk filler": FILL, "log flooder": FLOOD, "memory hog": HOG}[name]
    timeout_s = 3 if name in ("fork bomb", "log flooder") else 60
    running = asyncio.create_task(hostile.exec(Exec(command, timeout_s=timeout_s)))
    while not running.done():
        assert await output(neighbour, "echo $(( $(seq 20 | wc -l) ))") == "20\n"
    ended = await running
    match name:
        case "fork bomb":
            assert (ended.timed_out, ended.exceeded) == (True, "")
            assert "Resource temporarily unavailable" in ended.tail
        case "log flooder":
            assert (ended.timed_out, ended.exceeded) == (True, "")
            assert LOG_LIMIT / 2 < ended.log.stat().st_size <= LOG_LIMIT + NOTE_LIMIT
        case "disk filler":
            assert (ended.exit_code, ended.timed_out) == (None, False)
            assert "more than 100 MB, its limit (storage_mb)" in ended.exceeded
        case "memory hog":
            assert ended.exit_code == OUT_OF_MEMORY
            assert "more than 100 MB of memory, their limit (memory_mb)" in ended.exceeded
    assert ended.duration_s < 30
    for made in (hostile, neighbour):
        await made.remove()
    assert groups_named(claim) == []


async def test_a_program_has_no_more_open_files_than_its_limit(backend: CellBackend, claim: str) -> None:
    made = await backend.create(Labels("polar", "task.0", 1, claim), RuntimeSpec(files=40))
    assert await output(made, "ulimit -Hn") == "40\n"


@pytest.mark.hard
def test_all_of_this_holds_without_privileges_too() -> None:
    """In a user namespace we are root of nothing: mounts and networks are made in a namespace of the cell's own."""
    here = Path(__file__)
    files = [
        here,
        here.with_name("test_attacks.py"),
        here.with_name("test_images.py"),
        here.with_name("test_layered.py"),
        here.parents[1] / "test_conformance.py",
    ]
    ended = subprocess.run(
        [
            *(
                "unshare",
                "--user",
                "--map-root-user",
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-n0",
                "-p",
                "no:cacheprovider",
            ),
            *(
                "-k",
                "(cell or test_runtime or test_images) and not without_privileges and not process",
                *map(str, files),
            ),
        ],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
