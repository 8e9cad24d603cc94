"""The sandbox itself: what programs see, what paths may name, how a runtime is found again and removed."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from consumers.runtimes.base import LOG_LIMIT, Exec, Labels
from consumers.runtimes.process import ProcessBackend, ProcessRuntime
from topics.types.runtime import RuntimeSpec

pytestmark = pytest.mark.contract


@pytest.fixture
def backend(tmp_path: Path) -> ProcessBackend:
    return ProcessBackend(tmp_path / "runtimes")


CLAIM = f"claim-{uuid.uuid4().hex}"
"""Unlike that of any other run on this machine: processes are killed by it."""
LABELS = Labels("polar", "task.0", 1, CLAIM)


async def test_a_program_sees_only_the_environment_that_it_is_given(
    backend: ProcessBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLAR_KAFKA_PASSWORD", "secret")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("LANG", "C.UTF-8")
    runtime = await backend.create(LABELS, RuntimeSpec(env={"FROM_TASK": "a b\nc", "HOME_PAGE": "x"}))

    result = await runtime.exec(Exec(("cat", "/proc/self/environ"), env={"HOME_PAGE": "y"}, log="env.log"))

    seen = dict(entry.split("=", 1) for entry in result.log.read_text().rstrip("\0").split("\0"))
    home = Path(runtime.home)
    assert seen.pop("USER")
    assert seen == {
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "HOME": str(home),
        "TMPDIR": str(home.parent / "tmp"),
        "GIT_CEILING_DIRECTORIES": str(home.parent),
        "FROM_TASK": "a b\nc",
        "HOME_PAGE": "y",
        "POLAR_RUNTIME": CLAIM,
        "POLAR_CLAIM": CLAIM,
    }


async def test_a_workspace_in_a_checkout_is_none_of_it(backend: ProcessBackend) -> None:
    """The data folder of who tries Polar lies in their clone of it, and agents commit."""
    runtime = await backend.create(LABELS, RuntimeSpec())
    folder = Path(runtime.home).parent
    assert (await runtime.exec(Exec(("git", "init", "-q", str(folder.parent))))).exit_code == 0
    assert (await runtime.exec(Exec("git rev-parse --show-toplevel"))).exit_code == 128
    own = await runtime.exec(Exec("git init -q && git rev-parse --show-toplevel"))
    assert own.tail.strip() == str(folder / "workspace")


async def test_a_pipe_that_a_program_put_in_a_files_place_blocks_nobody(runtime: ProcessRuntime) -> None:
    await runtime.exec(Exec("mkfifo pipe; rm ../logs/next.log; mkfifo ../logs/next.log"))
    assert await runtime.read_file("pipe", 10) == b""
    with pytest.raises(OSError, match="No such device"):
        await runtime.write_file("pipe", b"x")
    assert (await runtime.exec(Exec("echo fine", log="next.log", timeout_s=5))).log.read_text() == "fine\n"


@pytest.mark.parametrize(
    "overwrite",
    ["mkfifo meta.json", "mkdir meta.json", "ln -s /dev/zero meta.json", "echo '{\"session_id\": [[]]}' >meta.json"],
    ids=["pipe", "folder", "link", "json"],
)
async def test_labels_that_a_program_has_overwritten_are_none_and_hold_nobody_up(
    backend: ProcessBackend, overwrite: str
) -> None:
    made = await backend.create(LABELS, RuntimeSpec())
    await made.exec(Exec(f"cd .. && rm meta.json && {overwrite}"))
    (found,) = await backend.labelled()
    assert found.labels == Labels("", "", 0, CLAIM)
    await backend.remove(found.handle)
    assert await backend.labelled() == []


@pytest.mark.parametrize(
    "instead",
    ["mkfifo {}", "ln -s /dev/zero {}", "mkdir {}", "true", "truncate -s 1T {}"],
    ids=lambda it: it.split()[0],
)
async def test_whatever_a_program_puts_in_its_logs_place_costs_the_log_alone(
    runtime: ProcessRuntime, instead: str
) -> None:
    log = runtime.logs / "mine.log"
    result = await runtime.exec(Exec(f"echo said; rm {log}; {instead.format(log)}", log="mine.log"))
    output = await asyncio.wait_for(asyncio.to_thread(result.output), 5)
    assert output == b"said\n" or (instead.startswith("truncate") and len(output) < 2 * LOG_LIMIT)


def test_read_only_folders_are_removed_and_links_are_not_followed(tmp_path: Path) -> None:
    """Where we are root, in a process without root's power to pass over modes."""
    program = """
import asyncio, pathlib, sys, uuid
from consumers.runtimes.base import Labels
from consumers.runtimes.process import ProcessBackend
from topics.types.task import RuntimeSpec

async def main(base: pathlib.Path) -> None:
    outside = base / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    outside.chmod(0o555)
    made = await ProcessBackend(base / "runtimes").create(Labels("n", "s.0", 1, "claim-" + uuid.uuid4().hex), RuntimeSpec())
    deep = pathlib.Path(made.workspace, "a", "b")
    deep.mkdir(parents=True)
    (deep / "file").touch()
    (deep / "link").symlink_to(outside)
    for folder in (deep, deep.parent):
        folder.chmod(0o555 if folder is deep else 0o000)
    await made.remove()
    assert list((base / "runtimes").iterdir()) == []
    assert (outside / "kept").exists() and outside.stat().st_mode & 0o777 == 0o555
    outside.chmod(0o755)

asyncio.run(main(pathlib.Path(sys.argv[1])))
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    if os.getuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("we are root, to whom nothing is read-only, and setpriv isn't there to change that")
        command = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search", *command]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[3])


async def test_a_workspace_that_a_program_has_removed_is_not_empty(runtime: ProcessRuntime) -> None:
    await runtime.exec(Exec("rm -r ../workspace"))
    assert not await runtime.is_empty()
