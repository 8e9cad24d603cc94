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

from consumers.runtimes.base import LOG_LIMIT, Exec, Labels, SandboxError
from consumers.runtimes.process import ProcessBackend, ProcessRuntime
from topics.types.errors import InputError
from topics.types.task import RuntimeSpec

pytestmark = pytest.mark.contract

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


async def test_a_program_has_no_open_files_but_its_three(runtime: ProcessRuntime) -> None:
    result = await runtime.exec(Exec("ls /proc/$$/fd; true"))
    assert result.tail.split() == ["0", "1", "2"]


async def test_programs_start_in_the_workspace_or_the_tasks_workdir_or_where_they_are_told(
    backend: ProcessBackend,
) -> None:
    runtime = await backend.create(LABELS, RuntimeSpec(workdir="repo"))
    inside = await runtime.exec(Exec("pwd"))
    above = await runtime.exec(Exec("pwd", cwd="."))
    assert inside.tail == f"{runtime.workspace}/repo\n"
    assert above.tail == f"{runtime.workspace}\n"


@pytest.mark.parametrize("path", ["../../x", "/etc/polar-x", "a/../../../x", "link/x", "a\0b"])
async def test_a_path_that_leaves_the_sandbox_is_refused(runtime: ProcessRuntime, tmp_path: Path, path: str) -> None:
    Path(runtime.workspace, "link").symlink_to(tmp_path)
    with pytest.raises(InputError, match="path"):
        await runtime.write_file(path, b"x")
    with pytest.raises(InputError, match="path"):
        await runtime.read_file(path, 1)
    with pytest.raises(InputError, match="path"):
        await runtime.upload(Path(__file__), path)
    with pytest.raises(InputError, match="cwd"):
        await runtime.exec(Exec("true", cwd=path))
    with pytest.raises(InputError, match="stdin"):
        await runtime.exec(Exec("true", stdin=path))
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("name", ["../x.log", "a/b.log", "", ".", "..", "/tmp/x.log", "a\0"])
async def test_a_log_is_a_plain_file_name(runtime: ProcessRuntime, name: str) -> None:
    with pytest.raises(InputError, match="log"):
        await runtime.exec(Exec("true", log=name))


async def test_a_workdir_outside_is_refused_before_anything_is_made(backend: ProcessBackend, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"runtime\.workdir: leads out of the sandbox"):
        await backend.create(LABELS, RuntimeSpec(workdir="/testbed"))
    assert await backend.labelled() == []


@pytest.mark.parametrize("claim", ["", ".", "..", "../x", "a/b", "/x", "a\n", "-x", "a" * 201])
async def test_a_claim_id_that_names_no_folder_of_its_own_is_refused(backend: ProcessBackend, claim: str) -> None:
    handle = {"backend": "process", "host": "here", "id": claim}
    with pytest.raises(InputError, match="claim_id"):
        await backend.create(Labels("polar", "task.0", 1, claim), RuntimeSpec())
    with pytest.raises(SandboxError, match="no runtime has the id"):
        await backend.attach(handle, "b", RuntimeSpec())
    with pytest.raises(SandboxError, match="no runtime has the id"):
        await backend.remove(handle)


async def test_files_are_written_with_their_mode_and_read_up_to_a_limit(runtime: ProcessRuntime) -> None:
    await runtime.write_file(runtime.home / ".agent/settings.json", b"{}")
    await runtime.write_file("bin/run", b"#!/bin/sh\necho ran\n", mode=0o755)
    assert (await runtime.exec(Exec(("./bin/run",)))).tail == "ran\n"
    assert await runtime.read_file(runtime.home / ".agent/settings.json", 100) == b"{}"
    assert await runtime.read_file("bin/run", 5) == b"#!/bi"
    assert Path(runtime.home, ".agent/settings.json").stat().st_mode & 0o777 == 0o600


async def test_a_pipe_that_a_program_put_in_a_files_place_blocks_nobody(runtime: ProcessRuntime) -> None:
    await runtime.exec(Exec("mkfifo pipe; rm ../logs/next.log; mkfifo ../logs/next.log"))
    assert await runtime.read_file("pipe", 10) == b""
    with pytest.raises(OSError, match="No such device"):
        await runtime.write_file("pipe", b"x")
    assert (await runtime.exec(Exec("echo fine", log="next.log", timeout_s=5))).log.read_text() == "fine\n"


async def test_another_worker_attaches_by_the_handle_alone(tmp_path: Path) -> None:
    made = await ProcessBackend(tmp_path).create(LABELS, RuntimeSpec())
    await made.exec(Exec("echo mended > file"))

    other = await ProcessBackend(tmp_path).attach(dict(made.handle), "claim-b", RuntimeSpec())

    result = await other.exec(Exec("cat file; echo $POLAR_RUNTIME $POLAR_CLAIM"))
    assert result.tail == f"mended\n{CLAIM} claim-b\n"
    assert other.handle == made.handle


async def test_runtimes_are_found_by_label_half_made_ones_by_their_claim(
    backend: ProcessBackend, tmp_path: Path
) -> None:
    made = await backend.create(LABELS, RuntimeSpec())
    (tmp_path / "runtimes" / "claim-of-a-dead-worker").mkdir()

    whole, half = await backend.labelled()

    assert (whole.labels, whole.handle) == (LABELS, made.handle)
    assert half.labels.claim_id == "claim-of-a-dead-worker"
    for found in (whole, half):
        await backend.remove(found.handle)
        await backend.remove(found.handle)
    assert await backend.labelled() == []
    with pytest.raises(SandboxError, match=f"no runtime {CLAIM}"):
        await backend.attach(whole.handle, "claim-b", RuntimeSpec())


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


async def test_a_runtime_with_folders_nested_without_end_is_removed(backend: ProcessBackend) -> None:
    made = await backend.create(LABELS, RuntimeSpec())
    nest = "import os\nfor _ in range(3000): os.mkdir('d'); os.chdir('d')"
    assert (await made.exec(Exec((sys.executable, "-c", nest)))).exit_code == 0
    await made.remove()
    assert await backend.labelled() == []


async def test_one_claim_makes_one_runtime(backend: ProcessBackend) -> None:
    await backend.create(LABELS, RuntimeSpec())
    with pytest.raises(SandboxError, match="has made a runtime before"):
        await backend.create(LABELS, RuntimeSpec())


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


async def test_a_workspace_is_empty_until_something_lies_in_it(runtime: ProcessRuntime) -> None:
    assert await runtime.is_empty()
    await runtime.write_file(".hidden", b"")
    assert not await runtime.is_empty()
    await runtime.exec(Exec("rm -r ../workspace"))
    assert not await runtime.is_empty()
