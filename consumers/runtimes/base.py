"""The interface of runtimes: sandboxes that a session's stages share, each stage perhaps in another worker process.

Owns what stage workers, harnesses and evaluators see, and nothing of any one backend. Invariants that every backend keeps:

- A runtime carries its labels from the moment it exists, so any worker can find and remove it after its claim has died.
- When `exec` has returned, raised or been cancelled, no process that it started lives, daemons included (protocol 16).
- A handle of plain strings identifies a runtime and travels in tickets: any worker of the pool can attach to the runtime.
- Programs inside see the environment that they are given, and nothing of the worker's own environment.

There are two errors, for two decisions of the caller. `InputError`: the task asks for something impossible, and another attempt won't
help. `SandboxError`: the sandbox failed, and another attempt may succeed. How a program ended is a value, not an error.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import stat
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Protocol

from consumers.runtimes.upload import Upload
from topics.environment.keys import environment
from topics.types.runtime import RuntimeSpec

Handle = Mapping[str, str]
"""The data with which another worker of the pool attaches. The key `backend` names the backend that reads the other keys."""

LOG_LIMIT = 16 * 1024 * 1024
"""Bytes kept of one program's output. Of a longer output the middle is left out, and a note in the log says how much."""
NOTE_LIMIT = 100
"""Bytes of that note, which come on top."""
TAIL_BYTES = 4096
"""Bytes of a program's last output in its result: enough for an error message."""
CUT_WORD = re.compile(r"\A[\w.-]+")
"""The rest of a word, at the beginning of a text that was cut."""


STORAGE_EXCEEDED = "storage_exceeded"
IMAGE_UNAVAILABLE = "image_unavailable"
OUT_OF_MEMORY = 137
"""The exit code of a program that the kernel killed: 128 and SIGKILL."""
HOST_DISK_FULL = "host_disk_full"


class SandboxError(Exception):
    """The sandbox failed, not the program in it.

    `code` is stable: `runtime_gone`, `runtime_exists`, `prepare_failed`, `not_started`, `supervisor_lost`, `unkillable`,
    `not_removed`, `not_made`, `host_out_of_memory`, `image_unavailable`, `engine_failed`,
    `files_failed`, `unhealthy`. HOST_DISK_FULL: the disk is full, and not by this session.
    STORAGE_EXCEEDED: the files that the agent left fill the disk.
    """

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)


@dataclass(frozen=True)
class Labels:
    """The owner of a runtime, by which reaping decides. `claim_id` is the claim that made the runtime."""

    namespace: str
    session_id: str
    attempt: int
    claim_id: str


@dataclass(frozen=True)
class Labelled:
    """A runtime that exists on this host, as `RuntimeBackend.labelled` finds it."""

    labels: Labels
    handle: Handle


@dataclass(frozen=True)
class ModelAccess:
    """How the harness reaches the model."""

    proxy_url: str
    """Without a trailing slash or `/v1`."""
    key: str = field(repr=False)
    model_name: str
    """The model's name in the harness's requests; the proxy decides which engine serves it."""
    context: int | None = None
    """Tokens that a prompt and its answer may have together, as the engine states; None: unknown, or the harness has no use for it."""

    @property
    def env(self) -> dict[str, str]:
        """The variables that every harness gets; each URL has the form that its client expects."""
        return environment(self.proxy_url, self.key)


UNENFORCED = (
    "host_files",  # reads and writes what the worker's user can
    "network",  # reaches what the host reaches
    "udp",  # reaches all hosts by UDP, and any host by TCP at the proxy's port
    "unix_sockets",  # connects to named Unix sockets of the host that the worker's user may use
    "processes",  # sees the host's processes
    "system_calls",  # may make all system calls
    "session_key",  # has the session's key
    "evaluation",  # prepares the home that its evaluation gets
)
"""Words for the things that a program can do in a runtime that doesn't keep it from them; docs/security.md has them."""


@dataclass(frozen=True)
class Exec:
    """A program to run. `command` is a text for `bash -c` with pipefail, or an argument vector."""

    command: str | tuple[str, ...]
    cwd: str | None = None
    """Relative to the workspace. Default: the task's `runtime.workdir`, or the workspace."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Overrides the runtime's own variables. Never part of an argument vector, so it may hold secrets."""
    stdin: str | None = None
    """A file inside, relative to the workspace or absolute; None for an empty stdin."""
    log: str = "exec.log"
    """Name of the file in the runtime's `logs` that takes stdout and stderr and replaces an older file."""
    log_limit: int = LOG_LIMIT
    timeout_s: float | None = None
    model: ModelAccess | None = None
    """The model that the program may call, where its harness finds it (`Runtime.reached_at`). None: it is given no way to a model."""
    is_ours: bool = False
    """It is a program of Polar's, not of the task or its harness: it gets no variables of the image or of the task, which could lead it to
    programs of the agent's."""
    tools: tuple[Path, ...] = ()
    """Folders of this host that the program may read, at the same paths inside."""
    has_gpus: bool = False
    """It gets the GPUs of the task, `runtime.gpus`, and waits for them."""


def untrusted_opener(path: str, _flags: int) -> int:
    """For `open` on a file that a program may have replaced: follows no link, and waits for no writer of a pipe. An opener, because
    `os.fdopen` leaves the descriptor of a folder open when it fails."""
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)


@dataclass(frozen=True)
class ExecResult:
    """How a program ended."""

    exit_code: int | None
    """128 + n if signal n ended it, as in a shell; None if we ended it."""
    timed_out: bool
    """`timeout_s` passed before it ended."""
    duration_s: float
    log: Path
    """On this host."""
    tail: str
    """The log's last 4 KiB (TAIL_BYTES), undecodable bytes replaced."""

    exceeded: str = ""
    """One sentence on the limit of the sandbox that ended it; empty for every other end."""

    @property
    def output_end(self) -> str:
        """The end of its output, as the end of a sentence for people.

        A cut output begins with a whole word: a secret without its beginning would not be recognised and redacted.
        """
        tail = self.tail if len(self.tail.encode()) < TAIL_BYTES else CUT_WORD.sub("…", self.tail)
        return f"its output ends with:\n{tail}" if tail.strip() else "it wrote no output"

    def output(self) -> bytes:
        """The log, or only its tail if the program has replaced the log by something else. Never blocks."""
        try:
            # O_NONBLOCK: opening a named pipe would wait for a writer and block a thread of the worker for ever.
            with open(self.log, "rb", opener=untrusted_opener) as file:
                if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    return file.read(LOG_LIMIT + NOTE_LIMIT)
        except OSError:
            pass
        return self.tail.encode()


CONTROL_S = 10.0
"""Limit of a program that does nothing."""


class Runtime(Protocol):
    """One sandbox, used by one claim. Paths are as programs inside see them; relative paths start at the workspace."""

    @property
    def handle(self) -> Handle: ...
    @property
    def workspace(self) -> PurePosixPath: ...
    @property
    def home(self) -> PurePosixPath:
        """A folder outside the workspace, so settings and instructions don't appear in a repository's diff."""

    @property
    def written(self) -> tuple[PurePosixPath, ...]:
        """Folders inside in which an evaluation can meet what programs of the run have written."""

    @property
    def logs(self) -> Path:
        """On this host."""

    def reached_at(self, model: ModelAccess) -> ModelAccess:
        """How programs inside reach `model`, if `Exec.model` names it: a sandbox may have a URL of its own, and keep the key outside."""

    async def is_empty(self) -> bool:
        """Whether the workspace has no entries; also False if the backend would have to start a program to know."""

    async def write_file(self, path: str | PurePosixPath, data: bytes, mode: int = 0o600) -> None:
        """Write a file and create its folders. InputError if `path` leaves the sandbox."""

    async def read_file(self, path: str | PurePosixPath, limit: int) -> bytes:
        """At most `limit` bytes from a file's beginning. FileNotFoundError; InputError if `path` leaves the sandbox."""

    async def upload(self, files: Upload, path: str | PurePosixPath) -> None:
        """Write a file to `path`, or what is in a folder into `path`. InputError if `path` can't take it; also raises as `Upload.write`."""

    async def exec(self, what: Exec, stop: asyncio.Event | None = None) -> ExecResult:
        """Run a program to its end.

        After `timeout_s`, or when `stop` is set (for callers whose clock can pause), it gets SIGTERM and 2 s of grace. In every case
        all its descendants are dead on return; on cancellation they are killed at once. Every exit code is the program's own: a
        program that can't be started raises SandboxError `not_started`. Also raises InputError for a `cwd` that is no folder inside,
        SandboxError `supervisor_lost` and `unkillable`.
        """

    async def can_start(self) -> bool:
        """Whether a program starts in a copy of this sandbox without the changes of the run and of the evaluation. If it does, those
        changes are why none starts here."""

    async def kill_all(self) -> None:
        """Kill every process inside, whichever claim or worker started it. SandboxError `unkillable`."""

    async def remove(self) -> None:
        """Kill every process inside and delete the sandbox; no error if it is already gone."""


Step = Callable[[Runtime], Awaitable[None]]
"""Takes one step of a preparation."""


async def starts(runtime: Runtime) -> bool:
    """Whether a program starts in the home, with the task's variables."""
    try:
        await runtime.exec(Exec(("true",), cwd=str(runtime.home), log="control.log", timeout_s=CONTROL_S))
    except SandboxError:
        return False
    return True


_OF_THE_MACHINE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO})
"""Errors of file operations that no file of the agent's causes."""


async def is_broken_inside(runtime: Runtime, error: Exception) -> bool:
    """Whether `error` says that a program wasn't started, and what the run left, or the evaluation ran of it, is why."""
    return isinstance(error, SandboxError) and error.code == "not_started" and await runtime.can_start()


def raise_fault(error: Exception) -> None:
    """Raise SandboxError if the machine caused the error, and no file could."""
    if isinstance(error, OSError) and error.errno in _OF_THE_MACHINE:
        raise SandboxError("worker_fault", f"a file of the session can't be used: {error}") from error


class RuntimeBackend(Protocol):
    """Makes and finds the runtimes of one kind on one host."""

    async def create(self, labels: Labels, spec: RuntimeSpec, steps: Sequence[Step] = ()) -> Runtime:
        """A labelled sandbox, empty or as `steps` leave it. They carry out the actions of `spec.prepare` (`prepare.py`), on any runtime. A
        backend may keep what equal actions left, and skip their steps."""

    async def attach(self, handle: Handle, claim_id: str, spec: RuntimeSpec, *, fresh: bool = False) -> Runtime:
        """The runtime of `handle`, for the claim `claim_id`. SandboxError `runtime_gone`.

        `fresh`: for an evaluation. It sees the workspace as the run left it, and the home and all else as `create` and `prepare` left it,
        unless `spec.verifier_sees` says more; its own changes are seen by nobody else.
        """

    def unenforced(self, spec: RuntimeSpec) -> list[str]:
        """The gaps of a runtime with this `spec` on this host: names of its limits (`topics.types.runtime.LIMITS`), and of UNENFORCED."""

    async def labelled(self) -> list[Labelled]:
        """All runtimes of this kind on this host, half-made runtimes included."""

    async def remove(self, handle: Handle) -> None:
        """Kill and delete the runtime of `handle`, like `Runtime.remove`; for the reaper, which doesn't know the task."""

    async def kill_claim(self, claim_id: str) -> None:
        """Kill whatever a dead claim left running, in any runtime."""
