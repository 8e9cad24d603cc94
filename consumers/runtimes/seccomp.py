"""The seccomp filter of a cell: which system calls its programs may not make.

A refused call fails with EPERM, and the program goes on. For the calls of `BY_ARGUMENT` that depends on an argument. `clone3` gets
ENOSYS, because the filter can't read the flags behind its pointer; the C library then uses `clone`. Calls that are newer than `NEWEST`
get ENOSYS too, as on an older kernel, so a new kernel adds nothing that nobody has looked at. A program for another ABI (32-bit x86 or
ARM) is killed with SIGSYS: without any system call it couldn't even end.

Programs may trace one another (ptrace, process_vm_readv). Debuggers do, and so does LeakSanitizer: without ptrace every program built
with `gcc -fsanitize=address` ends with an error. To refuse ptrace would gain little, because /proc/PID/mem gives the same access by
plain reads and writes. Processes outside are protected by the cell's PID namespace, or by Landlock. A tracer gets no refused call
through: since Linux 4.8 the filter sees a call after the tracer has changed it. PID 1 can't be traced: in a cell it is bubblewrap, which
has the same user, ends the cell with its parent, and reports the exit code. There /proc/1 needs a mount over it as well.

Docker's default profile, a list of allowed calls, allows these refused ones: adjtimex and clock_adjtime, both ioctls, fast open, PID 1's
trace, and most socket families and protocols; Flatpak refuses ptrace and NUMA policies too, but not bpf, io_uring, userfaultfd or kexec.

Sources of the numbers: linux/audit.h, linux/bpf_common.h, linux/seccomp.h, linux/sched.h, linux/personality.h, linux/prctl.h,
asm-generic/ioctls.h, linux/socket.h, linux/net.h and linux/in.h, each beside its use. Numbers of calls: the kernel's
arch/x86/entry/syscalls/syscall_64.tbl and scripts/syscall.tbl (aarch64).
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

REFUSED: Mapping[str, tuple[int, int | None]] = {
    # New namespaces.
    "unshare": (272, 97),
    "setns": (308, 268),
    # Mounts, and other roots.
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    # Keyrings belong to no namespace.
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # Takes open files out of other processes; debuggers do without.
    "pidfd_getfd": (438, 438),
    # Large parts of the kernel that many exploits began with.
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    # The machine, for a process that has a container's root.
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "iopl": (172, None),
    "ioperm": (173, None),
    # The kernel's log tells about the host; where dmesg_restrict is off, everyone may read it.
    "syslog": (103, 116),
    # Opens files outside of every mount of the cell. name_to_handle_at only names files.
    "open_by_handle_at": (304, 265),
    # The clock is the host's.
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
}
"""Calls that are refused with EPERM, whatever their arguments: numbers on x86_64 and aarch64. None: the machine lacks the call."""

PRETENDED: Mapping[str, tuple[int, int | None]] = {
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
}
"""Calls that give a file to another user, numbered as above. In a cell with an image only one user can own files. So these calls do nothing
there and succeed, as package managers such as dpkg expect of root."""

BY_ARGUMENT: Mapping[str, tuple[int, int]] = {
    "clone": (56, 220),
    "clone3": (435, 435),
    "ioctl": (16, 29),
    "personality": (135, 92),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "sendto": (44, 206),
    "sendmsg": (46, 211),
    "sendmmsg": (307, 269),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
}
"""Calls that `_source` looks at more closely, numbered as above."""

NEWEST = 469
"""file_setattr of Linux 6.17: the last call that this list was written for. x32 numbers begin far above it."""

MACHINES: Mapping[str, tuple[int, int]] = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""By machine, as uname(2) names it: the column of its calls, and its AUDIT_ARCH (linux/audit.h)."""

NEW_NAMESPACE = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET (linux/sched.h). clone takes no CLONE_NEWTIME."""
TERMINAL_INPUT = (0x5412, 0x541C)
"""TIOCSTI (asm-generic/ioctls.h) and TIOCLINUX (ioctl_console(2)): they type into the terminal that started the program."""
PERSONALITIES = (0, 0x0040000, 0xFFFFFFFF)
"""Linux, the same without address randomisation, which sanitizers start themselves with, and the question for the current one."""
FAMILIES = (1, 16)
"""AF_UNIX, and AF_NETLINK, which the C library asks for network interfaces (linux/socket.h)."""
INTERNET = (2, 10)
"""AF_INET and AF_INET6."""
SOCKET_TYPES = (1, 2)
"""SOCK_STREAM and SOCK_DGRAM (linux/net.h); no raw packets."""
SOCKET_TYPE_MASK = 0xF
"""The other bits are flags such as SOCK_CLOEXEC."""
PROTOCOLS = (0, 1, 6, 17, 58)
"""Default, ICMP, TCP, UDP and ICMPv6 (linux/in.h). Landlock's port rules are for TCP alone, and MPTCP speaks with TCP servers."""
FAST_OPEN = 0x20000000
"""MSG_FASTOPEN connects without connect(2), where Landlock looks at ports (linux/socket.h)."""
INIT = 1
"""The first process of a PID namespace."""

_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_EQUAL, _GREATER, _ANY_BIT = 0x15, 0x25, 0x45
"""Instructions with a constant operand (linux/bpf_common.h); jumps compare without a sign."""
_LONGEST_JUMP = 255
"""A jump's distance has eight bits."""
_INSTRUCTION = struct.Struct("=HBBI")
"""`struct sock_filter` (linux/filter.h)."""
_NUMBER, _ARCH = 0, 4
"""Offsets in `struct seccomp_data` (linux/seccomp.h)."""
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000

_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, _PR_SET_NO_NEW_PRIVS = 22, 2, 38
_LIBC = ctypes.CDLL(None, use_errno=True)


class Instruction(NamedTuple):
    """One instruction. `then` and `otherwise` are the labels that a jump goes to; an empty one is the next instruction."""

    code: int
    value: int
    then: str = ""
    otherwise: str = ""


def assemble(source: Iterable[Instruction | str]) -> bytes:
    """The program as `struct sock_filter[]`. A text is the label of the instruction behind it.

    ValueError for a label that exists twice or not at all, for a jump backward and for one over more than 255 instructions: classic
    BPF has none of them.
    """
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    for item in source:
        if isinstance(item, Instruction):
            instructions.append(item)
        elif item in labels:
            raise ValueError(f"label {item!r} exists twice")
        else:
            labels[item] = len(instructions)

    def distance(label: str, position: int) -> int:
        if not label:
            return 0
        if label not in labels:
            raise ValueError(f"no label {label!r}, only {', '.join(labels)}")
        if not 0 <= (skipped := labels[label] - position - 1) <= _LONGEST_JUMP:
            raise ValueError(f"instruction {position} can't jump over {skipped} instructions to {label!r}")
        return skipped

    return b"".join(
        _INSTRUCTION.pack(code, distance(then, position), distance(otherwise, position), value)
        for position, (code, value, then, otherwise) in enumerate(instructions)
    )


def program(machine: str, *, pretends: bool = False) -> bytes:
    """The filter for a machine as uname(2) names it, in this machine's byte order: what `bwrap --seccomp` and `install` take. `pretends`:
    the calls of PRETENDED do nothing.

    NotReadyError for a machine other than `MACHINES`.
    """
    if machine not in MACHINES:
        # Not at the top: supervisors are forked from an interpreter without site-packages, which the module imports from.
        from topics.types.errors import NotReadyError

        raise NotReadyError(
            f"no seccomp filter for {machine!r}, only for {', '.join(MACHINES)}: use the runtime `process`"
        )
    column, arch = MACHINES[machine]
    return assemble(_source(column, arch, PRETENDED if pretends else {}))


def _source(column: int, arch: int, pretended: Mapping[str, tuple[int, int | None]]) -> Iterator[Instruction | str]:
    """The filter. Everything that isn't refused falls through to `allowed`."""
    looked_at = {name: numbers[column] for name, numbers in BY_ARGUMENT.items()}
    yield Instruction(_LOAD, _ARCH)
    yield Instruction(_EQUAL, arch, otherwise="killed")
    yield Instruction(_LOAD, _NUMBER)
    yield Instruction(_GREATER, NEWEST, then="missing")
    yield Instruction(_EQUAL, looked_at["clone3"], then="missing")
    yield Instruction(_EQUAL, looked_at["clone"], then="clone")
    yield Instruction(_EQUAL, looked_at["ioctl"], then="ioctl")
    yield Instruction(_EQUAL, looked_at["personality"], then="personality")
    yield Instruction(_EQUAL, looked_at["socket"], then="socket")
    yield Instruction(_EQUAL, looked_at["socketpair"], then="socket")
    yield Instruction(_EQUAL, looked_at["sendmsg"], then="third flags")
    yield Instruction(_EQUAL, looked_at["sendto"], then="fourth flags")
    yield Instruction(_EQUAL, looked_at["sendmmsg"], then="fourth flags")
    yield Instruction(_EQUAL, looked_at["ptrace"], then="second pid")
    yield Instruction(_EQUAL, looked_at["process_vm_readv"], then="first pid")
    yield Instruction(_EQUAL, looked_at["process_vm_writev"], then="first pid")
    for numbers in REFUSED.values():
        if (number := numbers[column]) is not None:
            yield Instruction(_EQUAL, number, then="refused")
    for numbers in pretended.values():
        if (number := numbers[column]) is not None:
            yield Instruction(_EQUAL, number, then="pretended")
    yield Instruction(_RETURN, _ALLOW)

    yield "clone"
    yield _load_argument(0)
    yield Instruction(_ANY_BIT, NEW_NAMESPACE, then="refused", otherwise="allowed")

    yield "ioctl"
    yield _load_argument(1)
    yield from _one_of(TERMINAL_INPUT, then="refused", otherwise="allowed")

    yield "personality"
    yield _load_argument(0)
    yield from _one_of(PERSONALITIES, then="allowed", otherwise="refused")

    yield "third flags"
    yield _load_argument(2)
    yield Instruction(_ANY_BIT, FAST_OPEN, then="refused", otherwise="allowed")

    yield "fourth flags"
    yield _load_argument(3)
    yield Instruction(_ANY_BIT, FAST_OPEN, then="refused", otherwise="allowed")

    yield "first pid"
    yield _load_argument(0)
    yield Instruction(_EQUAL, INIT, then="refused", otherwise="allowed")

    yield "second pid"
    yield _load_argument(1)
    yield Instruction(_EQUAL, INIT, then="refused", otherwise="allowed")

    yield "socket"
    yield _load_argument(0)
    yield from _one_of(FAMILIES, then="allowed", otherwise="")
    yield from _one_of(INTERNET, then="internet", otherwise="refused")
    yield "internet"
    yield _load_argument(1)
    yield Instruction(_AND, SOCKET_TYPE_MASK)
    yield from _one_of(SOCKET_TYPES, then="protocol", otherwise="refused")
    yield "protocol"
    yield _load_argument(2)
    yield from _one_of(PROTOCOLS, then="allowed", otherwise="refused")

    yield "allowed"
    yield Instruction(_RETURN, _ALLOW)
    yield "refused"
    yield Instruction(_RETURN, _ERRNO | errno.EPERM)
    yield "pretended"
    yield Instruction(_RETURN, _ERRNO)
    yield "missing"
    yield Instruction(_RETURN, _ERRNO | errno.ENOSYS)
    yield "killed"
    yield Instruction(_RETURN, _KILL_PROCESS)


def _load_argument(index: int) -> Instruction:
    """Load the lower half of an argument (both machines are little-endian). The kernel ignores the upper half of each that we look at."""
    return Instruction(_LOAD, 16 + 8 * index)


def _one_of(values: tuple[int, ...], *, then: str, otherwise: str) -> Iterator[Instruction]:
    """Jump to `then` if the loaded number is one of `values`."""
    for value in values[:-1]:
        yield Instruction(_EQUAL, value, then=then)
    yield Instruction(_EQUAL, values[-1], then=then, otherwise=otherwise)


class _FilterProgram(ctypes.Structure):
    """`struct sock_fprog` (linux/filter.h)."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def install(program: bytes) -> None:
    """Put the calling thread, and every process that it starts from now on, under a filter that nobody can take away.

    Also sets no_new_privs, without which the kernel refuses a filter of an unprivileged process: no program gains privileges by a
    setuid bit any more. For a process without other threads, as a forked child is. OSError if the kernel has no seccomp.
    """
    described = _FilterProgram(len(program) // _INSTRUCTION.size, program)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1, 0)
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(described))


def _prctl(option: int, second: int, third: int) -> None:
    # The kernel reads five long arguments; ctypes would pass a plain int as a short one.
    if _LIBC.prctl(option, *map(ctypes.c_ulong, (second, third, 0, 0))) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")
