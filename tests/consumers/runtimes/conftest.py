"""What lives on this machine."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from consumers.runtimes.base import Runtime, RuntimeBackend
from topics.environment import registry

Living = Callable[[], list[str]]
KINDS = ("process", "landlock", "cell")


@pytest.fixture(params=KINDS)
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[RuntimeBackend]:
    """Each backend in turn: what a test shows with it holds for all."""
    made: RuntimeBackend = registry.load(registry.Kind.RUNTIME, request.param)(tmp_path / "runtimes")
    yield made
    for left in await made.labelled():
        await made.remove(left.handle)


def workspace_of(runtime: Runtime) -> Path:
    """On this host."""
    return runtime.logs.parent / "workspace"


@pytest.fixture
def token() -> str:
    """A word that stands in no other process's arguments."""
    return f"token-{uuid.uuid4().hex}"


@pytest.fixture
def living(token: str) -> Living:
    """Command lines of all processes that hold the token; a zombie has none."""

    def look() -> list[str]:
        return [line for line in command_lines() if token in line]

    return look


def command_lines() -> list[str]:
    return [data.replace(b"\0", b" ").decode(errors="replace") for _, data in processes("cmdline")]


def processes(file: str) -> Iterator[tuple[int, bytes]]:
    """Pid and content of /proc/<pid>/`file` of all that can be read."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                yield int(folder.name), (folder / file).read_bytes()
            except OSError:  # it ended meanwhile
                continue


def groups_named(prefix: str) -> list[Path]:
    """Control groups of sessions whose name begins with `prefix`, in all hierarchies; those that lie in others come first."""
    # Not rglob, which fails where other tests' groups go meanwhile.
    names = [(parent, name) for parent, names, _ in os.walk("/sys/fs/cgroup") for name in names]
    found = (Path(parent, name) for parent, name in names if name.startswith(f"polar-{prefix}"))
    return sorted(found, key=lambda path: -len(path.parts))
