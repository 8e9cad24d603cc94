"""The changes of a run to its git work tree, as a patch for `git apply`: committed or not, new files included.

A snapshot before the harness starts and a second one after it ends are git trees in a repository of our own, in the runtime's home.
That repository begins as a copy of the task's index and of the objects of its work tree, without its history. Invariants: nothing is
written to the task's repository; after the run only the work tree's files are read. So an agent may rewrite history or delete `.git`,
and its git configuration, attributes and hooks start no program here.

The patch leaves out what `.gitignore` excludes, untracked files that tools make (caches, virtual environments, installed packages,
compiled code; the list is in `patch_record.sh`), files over 16 MiB, and changes inside nested repositories (their commit is shown). What
was tracked before the run is never left out; a file that the agent commits is untracked in this sense. If a patch is too large, or a
binary file in it would carry a session's key, it holds text alone and is cut at the limit.

A patch never fails a session: each step has a deadline of its own, and an error becomes a log line. If what the run left can be why there
is no patch, a note stands in its place: a judge must not take it for a run without changes, and the agent must not get out of a bad
rating. `patch_*.sh` are the scripts that run inside the runtime, with the agent's rights: it can change our repository, or programs of an
image, and so what a patch shows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import structlog

from consumers.runtimes.base import (
    LOG_LIMIT,
    STORAGE_EXCEEDED,
    Exec,
    Runtime,
    SandboxError,
    is_broken_inside,
    raise_fault,
)
from topics.environment.redaction import PREFIX
from topics.types.errors import InputError

STEP_S = 20.0
"""Limit for one snapshot. 5,000 files take 0.1 to 0.8 s, whatever the repository's history. The coordinator waits longer than this
after a run's budget."""
NOTHING = 40
"""Exit code of the scripts if there is no git, no repository or no change."""
LOGGED = 1000
"""Characters of git's output that a log line or a note repeats."""
NOT_MADE = b"[there is no patch of this run's changes, since git failed on what the run left: "
"""The beginning of a note in the place of a patch."""

_HERE = Path(__file__).parent
_RECORD = (_HERE / "patch_record.sh").read_text()
_BEFORE = _RECORD + (_HERE / "patch_before.sh").read_text()
_AFTER = _RECORD + (_HERE / "patch_after.sh").read_text()
_ENV = {"HOME": "/dev/null", "XDG_CONFIG_HOME": "/dev/null", "LC_ALL": "C"} | {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_ATTR_NOSYSTEM": "1",
}
"""Makes git ignore all configuration of this host."""

log = structlog.get_logger()


class PatchLostError(Exception):
    """There is no patch, and the agent isn't why. A log line reports it."""


@dataclass(frozen=True)
class Snapshot:
    """A work tree before the run."""

    tree: str
    top: str
    """The work tree's root, as programs inside see it."""
    config: bytes
    """Configuration of our repository. It is written again before the second snapshot, because the agent could have changed it."""


async def snapshot(runtime: Runtime) -> Snapshot | None:
    """A snapshot of the repository around the working directory, or of the only one directly below it; None without a repository.

    Raises PatchLostError.
    """
    if await runtime.is_empty():
        return None  # the case of many tasks: their runs don't wait for git
    store = _store(runtime)
    try:
        output = await _git(runtime, _BEFORE, {"STORE": str(store)})
        if output is None:
            return None
        tree, _, top = output.rstrip("\n").rpartition("\n")[2].partition(" ")
        return Snapshot(tree, top, await runtime.read_file(store / "config", LOG_LIMIT))
    except (_GitError, SandboxError, InputError, OSError) as error:
        raise _lost(runtime, error) from error


async def changes(runtime: Runtime, before: Snapshot) -> bytes | None:
    """The changes since `before` as a patch of at most LOG_LIMIT bytes and one line, or a note that begins with NOT_MADE; None if there are
    none. Raises PatchLostError."""
    store = _store(runtime)
    env = {"STORE": str(store), "TOP": before.top, "BEFORE": before.tree, "LIMIT": str(LOG_LIMIT + 1)}
    try:
        try:
            await runtime.write_file(store / "config", before.config)
            if await _git(runtime, _AFTER, env, cwd=str(runtime.home)) is None:
                return None
            return await _read_patch(runtime, store / "made")
        except (InputError, OSError) as error:
            raise_fault(error)
            raise _GitError(str(error)) from error
        except SandboxError as error:
            if error.code != STORAGE_EXCEEDED and not await is_broken_inside(runtime, error):
                raise
            raise _GitError(str(error)) from error
    except _GitError as error:
        _warn(runtime, str(error))
        return NOT_MADE + str(error)[:LOGGED].encode(errors="replace") + b"]\n"
    except SandboxError as error:
        raise _lost(runtime, error) from error


async def _read_patch(runtime: Runtime, made: PurePosixPath) -> bytes:
    patch = await runtime.read_file(made / "whole", LOG_LIMIT + 1)
    if re.search(rb"^GIT binary patch$", patch, re.MULTILINE):
        # Binary contents are compressed in the patch, so a key is searched for in the contents themselves.
        contents = await runtime.read_file(made / "contents", LOG_LIMIT + 1)
        if max(len(patch), len(contents)) > LOG_LIMIT or PREFIX.encode() in contents:
            patch = await runtime.read_file(made / "text", LOG_LIMIT + 1)
    if len(patch) <= LOG_LIMIT:
        return patch
    return patch[: patch.rindex(b"\n", 0, LOG_LIMIT) + 1] + b"[... the rest is left out: this patch can't be applied]\n"


class _GitError(Exception):
    """A script failed, or something is in its way; the message says why."""


async def _git(runtime: Runtime, script: str, env: dict[str, str], cwd: str | None = None) -> str | None:
    """The end of a script's output; None if there was nothing to do. Raises _GitError, and as `Runtime.exec`."""
    # A workspace inside another project's checkout doesn't belong to that project.
    ceiling = {"GIT_CEILING_DIRECTORIES": str(runtime.workspace.parent)}
    ended = await runtime.exec(Exec(script, cwd=cwd, env=_ENV | ceiling | env, log="patch.log", timeout_s=STEP_S))
    if ended.exit_code not in (0, NOTHING):
        why = f"took longer than {STEP_S:g} s" if ended.timed_out else f"exit code {ended.exit_code}"
        raise _GitError(f"{why}; {ended.output_end}")
    return ended.tail if ended.exit_code == 0 else None


def _store(runtime: Runtime) -> PurePosixPath:
    return runtime.home / ".polar" / "patch"


def _lost(runtime: Runtime, error: Exception) -> PatchLostError:
    _warn(runtime, str(error))
    return PatchLostError(str(error))


def _warn(runtime: Runtime, why: str) -> None:
    log.warning("no patch of this run", action="patch.lost", runtime=dict(runtime.handle), why=why[-LOGGED:])
