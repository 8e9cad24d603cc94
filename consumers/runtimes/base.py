"""What a runtime is: a sandbox that a session's stages share, each stage perhaps in another worker process.

Owns the interface that stage workers, harnesses and evaluators see, and nothing of any one backend. The invariants that every
backend keeps:

- A runtime carries its labels from the moment it exists, so that one whose claim has died is found and removed by any worker.
- When `exec` has returned, raised or been cancelled, no process that it started lives, daemons included (protocol 16).
- A runtime is held through a handle of plain strings, which travels in tickets: any worker of the pool can attach to it.
- Programs inside see the environment that they are given and nothing of the worker's own.

Two kinds of bad news, for the two decisions of the caller: `InputError` (the task asks for what can't be; another attempt
won't help) and `SandboxError` (the sandbox failed; another attempt may go better). How a program ended is a value.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Protocol

from topics.types.task import RuntimeSpec

Handle = Mapping[str, str]
"""What another worker of the pool needs to attach; the key `backend` names who can read the rest."""

LOG_LIMIT = 16 * 1024 * 1024
"""Bytes kept of one program's output; with more, the middle is left out and the log says how much."""
NOTE_LIMIT = 100
"""Bytes of what a log says of that, on top."""
TAIL_BYTES = 4096
CUT_WORD = re.compile(r"\A[\w.-]+")
"""What of a text's first word is left, where the text was cut before it."""


class SandboxError(Exception):
    """The sandbox failed, not what ran in it.

    `code` is stable: `runtime_gone`, `runtime_exists`, `prepare_failed`, `not_started`, `supervisor_lost`, `unkillable`,
    `not_removed`.
    """

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)


@dataclass(frozen=True)
class Labels:
    """Whose a runtime is: what reaping decides by. `claim_id` is the claim that made it."""

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
class Exec:
    """A program to run: `command` is a text for `bash -c` with pipefail, or an argument vector."""

    command: str | tuple[str, ...]
    cwd: str | None = None
    """Relative to the workspace; None is the task's `runtime.workdir`, else the workspace."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Over the runtime's own. Kept out of every argument vector, so secrets may stand here."""
    stdin: str | None = None
    """A file inside, relative to the workspace or absolute; None is an empty stdin."""
    log: str = "exec.log"
    """Name of the file in the runtime's `logs` that takes stdout and stderr; an older one is replaced."""
    log_limit: int = LOG_LIMIT
    timeout_s: float | None = None


@dataclass(frozen=True)
class ExecResult:
    """How a program ended."""

    exit_code: int | None
    """128 + n where signal n ended it, as shells say; None where we ended it."""
    timed_out: bool
    """`timeout_s` passed before its end."""
    duration_s: float
    log: Path
    """On this host."""
    tail: str
    """The log's last 4 KiB (TAIL_BYTES), undecodable bytes replaced."""

    @property
    def said(self) -> str:
        """The end of its output, as the end of a sentence for people.

        Where there was more it begins with a whole word: a secret whose beginning is missing would not be known for one.
        """
        tail = self.tail if len(self.tail.encode()) < TAIL_BYTES else CUT_WORD.sub("…", self.tail)
        return f"its output ends with:\n{tail}" if tail.strip() else "it wrote no output"

    def output(self) -> bytes:
        """The log, or its tail alone where the program has put something else in the log's place. Never waits for it."""
        try:
            # O_NONBLOCK: opening a named pipe would wait for a writer, and hold up a thread of the worker for good.
            with os.fdopen(os.open(self.log, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
                if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    return file.read(LOG_LIMIT + NOTE_LIMIT)
        except OSError:
            pass
        return self.tail.encode()


class Runtime(Protocol):
    """A made sandbox, held by one claim. Paths are as programs inside see them; relative ones start at the workspace."""

    @property
    def handle(self) -> Handle: ...
    @property
    def workspace(self) -> PurePosixPath: ...
    @property
    def home(self) -> PurePosixPath:
        """A folder of its own, outside the workspace: settings and instructions don't show in a repository's diff."""

    @property
    def logs(self) -> Path:
        """On this host."""

    async def is_empty(self) -> bool:
        """Whether nothing lies in the workspace; False, too, where that isn't known without starting a program."""

    async def write_file(self, path: str | PurePosixPath, data: bytes, mode: int = 0o600) -> None:
        """Write a file, its folders made as needed. InputError where `path` leaves the sandbox."""

    async def read_file(self, path: str | PurePosixPath, limit: int) -> bytes:
        """At most `limit` bytes from a file's beginning. InputError where `path` leaves the sandbox, FileNotFoundError."""

    async def upload(self, source: Path, path: str | PurePosixPath) -> None:
        """Copy a file or a folder of this host to `path`. InputError where either can't be used."""

    async def exec(self, what: Exec, stop: asyncio.Event | None = None) -> ExecResult:
        """Run a program to its end.

        On timeout, or once `stop` is set (for callers whose clock can pause), it gets SIGTERM and 2 s of grace. Whatever ends
        it, all its descendants are dead on return; on cancellation they are killed at once. Every exit code is the program's own:
        one that can't be started at all is a SandboxError `not_started`. InputError for a `cwd` that is no folder inside,
        SandboxError `supervisor_lost`, `unkillable`.
        """

    async def kill_all(self) -> None:
        """Kill every process inside, whichever claim or worker started it. SandboxError `unkillable`."""

    async def remove(self) -> None:
        """Kill every process inside and delete the sandbox; no error where it is gone already."""


class RuntimeBackend(Protocol):
    """Makes and finds the runtimes of one kind on one host."""

    async def create(self, labels: Labels, spec: RuntimeSpec) -> Runtime:
        """An empty, labelled sandbox. `spec.prepare` is left to `prepare`, which works on any runtime."""

    async def attach(self, handle: Handle, claim_id: str, spec: RuntimeSpec) -> Runtime:
        """The runtime of `handle`, for a claim to work in. SandboxError `runtime_gone`."""

    async def labelled(self) -> list[Labelled]:
        """All runtimes of this kind on this host, half-made ones too."""

    async def remove(self, handle: Handle) -> None:
        """Kill and delete the runtime of `handle`, as `Runtime.remove`; for a reaper, who knows no task."""

    async def kill_claim(self, claim_id: str) -> None:
        """Kill whatever a dead claim left running, in its runtime or another's."""
