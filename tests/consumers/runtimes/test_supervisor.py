"""Programs under a supervisor: how they end, and that nothing of them lives on, however the end comes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.runtimes.base import Exec, Labels, Runtime, RuntimeBackend, SandboxError
from consumers.runtimes.process import ProcessBackend
from consumers.runtimes.supervisor import BoundedLog
from tests.consumers.runtimes.conftest import Living, command_lines, processes, workspace_of
from tests.waiting import eventually
from topics.environment import registry
from topics.types.runtime import RuntimeSpec

pytestmark = pytest.mark.contract

KINDS = ("process", "cell")
"""`landlock` differs from `process` in what its programs may do."""

PYTHON_DAEMON = """
import os, sys, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
for fd in (0, 1, 2): os.close(fd)
with open("pid", "w") as file: file.write(str(os.getpid()))
time.sleep(1000)
"""
ENDED_MAIN_THREAD = """
import ctypes, os, threading, time
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
with open("pid", "w") as file: file.write(str(os.getpid()))
ctypes.CDLL(None).syscall(60, 0)
"""
DAEMONS = {
    "nohup": "nohup bash -c 'echo $$ >pid; exec -a TOKEN sleep 1000' >/dev/null 2>&1 &",
    "holding the output": "bash -c 'echo $$ >pid; exec -a TOKEN sleep 1000' &",
    "setsid": "setsid bash -c 'echo $$ >pid; exec -a TOKEN sleep 1000' </dev/null >/dev/null 2>&1 &",
    "double fork": "( ( setsid bash -c 'echo $$ >pid; exec -a TOKEN sleep 1000' & ) & )",
    "without environment": "env -i setsid bash -c 'echo $$ >pid; exec -a TOKEN sleep 1000' &",
    "deaf to SIGTERM": "setsid bash -c 'trap \"\" TERM HUP INT; echo $$ >pid; while :; do sleep 1; done' TOKEN &",
    "restarting its child": "setsid bash -c 'while :; do bash -c \"echo \\$\\$ >pid; sleep 1000\" TOKEN; done' TOKEN &",
    "always forking": "setsid bash -c 'f() { echo $$ >pid; f & }; while :; do f TOKEN & sleep 0.02; done' TOKEN &",
    "python daemon": f"{sys.executable} -c '{PYTHON_DAEMON}' TOKEN",
    "ended main thread": f"setsid {sys.executable} -c '{ENDED_MAIN_THREAD}' TOKEN &",
}
STARTED_S = 2.0
"""By then a program has set its traps, on a busy machine too."""
UNTIL_IT_RUNS = "\nuntil [ -s pid ]; do sleep 0.01; done; "


def daemon(name: str, token: str) -> str:
    return DAEMONS[name].replace("TOKEN", token) + UNTIL_IT_RUNS


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("exit 7", 7),
        ("false | true", 1),
        ("yes | head -1", 141),
        ("kill -9 $$", 137),
        ("kill -TERM $$", 143),
        (("true",), 0),
        ("no-such-program", 127),
    ],
)
async def test_a_programs_exit_code_is_told_as_a_shell_tells_it(
    runtime: Runtime, command: str | tuple[str, ...], code: int
) -> None:
    result = await runtime.exec(Exec(command))
    assert (result.exit_code, result.timed_out) == (code, False)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (Exec(("no-such-program",)), r"no-such-program.*: No such file or directory"),
        (Exec("true", env={"PATH": "/nowhere"}), r"bash.*: No such file or directory"),
        (Exec(("./folder",)), r"\./folder: Permission denied"),
        (Exec("true", env={"HUGE": "x" * 200_000}), "bash.*: Argument list too long"),
        (Exec("true", stdin="not-there"), "not-there: No such file or directory"),
        (Exec(("true", "a\0b")), "null byte"),
    ],
)
async def test_a_program_that_cannot_be_started_is_a_fault_not_an_exit_code(
    runtime: Runtime, what: Exec, said: str
) -> None:
    await runtime.exec(Exec(("mkdir", "folder")))
    with pytest.raises(SandboxError, match=said) as raised:
        await runtime.exec(what)
    assert raised.value.code == "not_started"


async def test_an_instruction_comes_through_stdin_and_none_is_an_empty_one(runtime: Runtime) -> None:
    instruction = b"mend it \xff" * 50_000
    await runtime.write_file(runtime.home / "instruction", instruction)
    told = await runtime.exec(Exec("wc -c", stdin=str(runtime.home / "instruction")))
    untold = await runtime.exec(Exec("wc -c"))
    assert (told.tail, untold.tail) == (f"{len(instruction)}\n", "0\n")


async def test_orders_larger_than_a_pipe_arrive_whole(runtime: Runtime) -> None:
    env = {f"V{n}": "x" * 100_000 for n in range(10)}
    assert (await runtime.exec(Exec("echo ${#V9}", env=env))).tail == "100000\n"


@pytest.mark.parametrize("name", DAEMONS)
async def test_a_daemon_dies_with_its_program(runtime: Runtime, name: str, token: str, living: Living) -> None:
    result = await runtime.exec(Exec(daemon(name, token) + "exit 5", timeout_s=20))
    assert result.exit_code == 5
    assert living() == []
    if runtime.handle["backend"] == "process":  # a cell's ids are its own
        # The one that always forks may have died just before it wrote.
        assert not any(alive(int(pid)) for pid in (workspace_of(runtime) / "pid").read_text().split())


async def test_a_program_that_overruns_its_time_is_asked_first(runtime: Runtime, token: str, living: Living) -> None:
    polite = "trap 'echo bye; exit 0' TERM; " + daemon("setsid", token) + "sleep 1000 & wait"
    result = await runtime.exec(Exec(polite, timeout_s=STARTED_S))
    assert (result.exit_code, result.timed_out, result.tail) == (None, True, "bye\n")
    assert result.duration_s < STARTED_S + 1.5
    assert living() == []


async def test_a_program_that_ignores_the_asking_is_killed_after_its_grace(
    runtime: Runtime, token: str, living: Living
) -> None:
    deaf = "trap '' TERM; " + daemon("deaf to SIGTERM", token) + "while :; do sleep 0.1; done"
    result = await runtime.exec(Exec(deaf, timeout_s=STARTED_S))
    assert (result.exit_code, result.timed_out) == (None, True)
    assert STARTED_S + 1.9 < result.duration_s < STARTED_S + 4.5
    assert living() == []


async def test_a_caller_with_a_clock_of_its_own_stops_a_program(runtime: Runtime, token: str, living: Living) -> None:
    stop = asyncio.Event()
    running = asyncio.create_task(runtime.exec(Exec(daemon("setsid", token) + "sleep 1000"), stop))
    await eventually(living)
    stop.set()
    result = await running
    assert (result.exit_code, result.timed_out) == (None, False)
    assert living() == []


async def test_cancelling_kills_at_once_and_waits_for_the_end_however_often_it_is_asked(
    runtime: Runtime, token: str, living: Living
) -> None:
    program = "trap '' TERM; " + daemon("double fork", token) + "while :; do sleep 0.1; done"
    running = asyncio.create_task(runtime.exec(Exec(program)))
    await eventually(living)
    while not running.done():
        running.cancel()
        await asyncio.sleep(0)
    assert running.cancelled()
    assert living() == []


async def test_cancelling_at_any_moment_of_the_start_leaves_nothing(
    runtime: Runtime, claim: str, token: str, living: Living
) -> None:
    for after_ms in range(0, 45, 3):
        running = asyncio.create_task(runtime.exec(Exec(("bash", "-c", "sleep 1000; true", token))))
        await asyncio.sleep(after_ms / 1000)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert living() == []
    assert not supervisors_of(claim)


async def test_when_the_supervisor_is_killed_its_programs_die_and_the_caller_is_told(
    runtime: Runtime, claim: str, token: str, living: Living
) -> None:
    running = asyncio.create_task(runtime.exec(Exec(daemon("double fork", token) + "touch up; sleep 1000")))
    await eventually((workspace_of(runtime) / "up").exists)
    assert living()
    os.kill(supervisors_of(claim)[0], signal.SIGKILL)
    with pytest.raises(SandboxError) as caught:
        await running
    assert caught.value.code == "supervisor_lost"
    assert living() == []


WORKER = """
import asyncio, os, pathlib, sys
from consumers.runtimes.base import Exec, Labels
from topics.environment import registry
from topics.types.task import RuntimeSpec

async def main(root: str, claim: str, command: str, forks: bool, kind: str) -> None:
    backend = registry.load(registry.Kind.RUNTIME, kind)(pathlib.Path(root))
    made = await backend.create(Labels("polar", "task.0", 1, claim), RuntimeSpec())
    running = asyncio.create_task(made.exec(Exec(command)))
    while not (made.logs.parent / "workspace" / "pid").exists():
        await asyncio.sleep(0.01)
    if forks and os.fork() == 0:  # a child that holds the worker's end of every pipe
        import time
        time.sleep(60)
    await running

asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4] == "forks", sys.argv[5]))
"""


async def start_worker(
    root: Path, claim: str, command: str, forks: str = "", kind: str = "process"
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", WORKER, str(root), claim, command, forks, kind),
        cwd=Path(__file__).parents[3],
        start_new_session=True,
    )


@pytest.mark.parametrize("name", ["double fork", "without environment", "deaf to SIGTERM"])
@pytest.mark.parametrize("forks", ["", "forks"])
@pytest.mark.parametrize("kind", KINDS)
async def test_when_the_worker_is_killed_nothing_of_its_programs_lives_on(
    tmp_path: Path, claim: str, token: str, living: Living, name: str, forks: str, kind: str
) -> None:
    worker = await start_worker(tmp_path, claim, daemon(name, token) + "sleep 1000", forks, kind)
    try:
        await eventually((tmp_path / claim / "workspace" / "pid").exists)
        await eventually(lambda: programs(living()))
        worker.kill()
        await worker.wait()
        await eventually(lambda: not programs(living()) and not supervisors_of(claim))
    finally:
        kill_group(worker.pid)
        backend: RuntimeBackend = registry.load(registry.Kind.RUNTIME, kind)(tmp_path)
        for left in await backend.labelled():
            await backend.remove(left.handle)


async def test_a_stopped_workers_programs_are_killed_by_another_worker(
    tmp_path: Path, claim: str, token: str, living: Living
) -> None:
    worker = await start_worker(tmp_path, claim, daemon("without environment", token) + "sleep 1000")
    try:
        await eventually((tmp_path / claim / "workspace" / "pid").exists)
        worker.send_signal(signal.SIGSTOP)
        other = ProcessBackend(tmp_path)
        (found,) = await other.labelled()
        await (await other.attach(found.handle, "claim-b", RuntimeSpec())).kill_all()
        assert not programs(living())
    finally:
        worker.send_signal(signal.SIGCONT)
        worker.kill()
        await worker.wait()


async def test_what_outlived_both_worker_and_supervisor_is_found_by_its_mark(
    tmp_path: Path, claim: str, token: str, living: Living
) -> None:
    backend = ProcessBackend(tmp_path)
    worker = await start_worker(tmp_path, claim, daemon("double fork", token) + "sleep 1000")
    await eventually((tmp_path / claim / "workspace" / "pid").exists)
    (supervisor,) = supervisors_of(claim)
    os.kill(supervisor, signal.SIGSTOP)
    worker.kill()
    await worker.wait()
    os.kill(supervisor, signal.SIGKILL)
    await eventually(lambda: not alive(supervisor))
    assert programs(living()), "the daemon should have outlived both, or this test shows nothing"

    await backend.kill_claim(claim)

    assert living() == []


async def test_killing_a_claim_or_a_runtime_spares_all_others(
    backend: RuntimeBackend, runtime: Runtime, claim: str
) -> None:
    far_claim, guest_claim = claim + "-far", claim + "-guest"
    neighbour = await backend.create(Labels("polar", "task.1", 1, far_claim), RuntimeSpec())
    guest = await backend.attach(runtime.handle, guest_claim, RuntimeSpec())
    own, guests, far = (
        asyncio.create_task(each.exec(Exec(f"touch started-{holder}; sleep 1000", log=holder)))
        for each, holder in ((runtime, claim), (guest, guest_claim), (neighbour, far_claim))
    )
    for made, holder in ((runtime, claim), (runtime, guest_claim), (neighbour, far_claim)):
        await eventually((workspace_of(made) / f"started-{holder}").exists)

    await backend.kill_claim(guest_claim)
    with pytest.raises(SandboxError):
        await guests
    await asyncio.wait({own, far}, timeout=0.2)
    assert not own.done()

    await runtime.kill_all()
    with pytest.raises(SandboxError):
        await own
    await asyncio.wait({far}, timeout=0.2)
    assert not far.done()
    await neighbour.remove()
    with pytest.raises(SandboxError):
        await far


async def test_no_secret_stands_in_a_process_list(runtime: Runtime, claim: str, token: str) -> None:
    running = asyncio.create_task(runtime.exec(Exec("touch started; sleep 1000", env={"API_KEY": token})))
    await eventually((workspace_of(runtime) / "started").exists)
    (supervisor,) = supervisors_of(claim)
    shown = command_lines()
    assert any("sleep 1000" in line for line in shown)
    assert not any(token in line for line in shown)
    assert token.encode() not in Path(f"/proc/{supervisor}/environ").read_bytes()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_programs_output_is_bounded_and_it_never_waits_for_its_log(runtime: Runtime) -> None:
    result = await runtime.exec(
        Exec("echo first; head -c 50000000 /dev/zero; echo; echo last", log_limit=65536, timeout_s=60)
    )
    assert result.exit_code == 0
    data = result.log.read_bytes()
    assert data.startswith(b"first\n")
    assert data.endswith(b"\nlast\n")
    assert b" bytes left out here" in data
    assert len(data) < 65536 + 100
    assert result.tail.endswith("last\n")


async def test_a_program_that_writes_without_end_is_stopped_in_time(runtime: Runtime) -> None:
    floods = "trap '' TERM; for _ in 1 2 3 4; do yes & done; wait"
    result = await runtime.exec(Exec(floods, timeout_s=0.3, log_limit=65536))
    assert (result.exit_code, result.timed_out) == (None, True)
    assert result.duration_s < 5


@given(
    chunks=st.lists(st.binary(min_size=1, max_size=40), max_size=30),
    limit=st.integers(min_value=2, max_value=200),
)
def test_a_log_keeps_all_within_its_limit_and_beginning_and_end_beyond(
    tmp_path_factory: pytest.TempPathFactory, chunks: list[bytes], limit: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "log"
    log = BoundedLog(str(path), limit)
    for chunk in chunks:
        log.write(chunk)
    log.close()
    whole, kept = b"".join(chunks), path.read_bytes()
    if len(whole) <= limit:
        assert kept == whole
    else:
        head, told, tail = kept.partition(b"\n[... %d bytes left out here ...]\n" % (len(whole) - limit))
        assert told
        assert len(head + tail) == limit
        assert whole.startswith(head)
        assert whole.endswith(tail)
    assert log.last == whole[-4096:]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def programs(lines: list[str]) -> list[str]:
    """Of processes that hold the token, those that aren't a `WORKER`, whose arguments hold it, too."""
    return [line for line in lines if "import asyncio" not in line]


def supervisors_of(claim: str) -> list[int]:
    mark = f"POLAR_RUNTIME={claim}".encode()
    inside = {pid for pid, environment in processes("environ") if mark in environment.split(b"\0")}
    return [pid for pid, line in processes("cmdline") if pid in inside and b"runtimes.forkserver" in line]


def kill_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        pass
