"""What every runtime owes its callers: what paths may name, how a runtime is found again and removed. See also `test_supervisor.py`."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from consumers.runtimes.base import UNENFORCED, Exec, Labels, Runtime, RuntimeBackend, SandboxError
from consumers.runtimes.upload import Upload
from tests.consumers.runtimes.conftest import workspace_of
from tests.uploading import upload_of
from tests.waiting import eventually
from topics.environment import registry
from topics.environment.blobs import FolderBlobs
from topics.types.errors import InputError, NotReadyError
from topics.types.runtime import LIMITS, RuntimeSpec

pytestmark = pytest.mark.contract

CLAIM = f"claim-{uuid.uuid4().hex}"
"""Unlike that of any other run on this machine: processes are killed by it."""
LABELS = Labels("polar", "task.0", 1, CLAIM)


async def test_a_program_has_no_open_files_but_its_three(runtime: Runtime) -> None:
    result = await runtime.exec(Exec("ls /proc/$$/fd; true"))
    assert result.tail.split() == ["0", "1", "2"]


async def test_programs_start_in_the_workspace_or_the_tasks_workdir_or_where_they_are_told(
    backend: RuntimeBackend,
) -> None:
    runtime = await backend.create(LABELS, RuntimeSpec(workdir="repo"))
    inside = await runtime.exec(Exec("pwd"))
    above = await runtime.exec(Exec("pwd", cwd="."))
    assert inside.tail == f"{runtime.workspace}/repo\n"
    assert above.tail == f"{runtime.workspace}\n"


async def test_folders_of_programs_come_before_all_others(backend: RuntimeBackend) -> None:
    runtime = await backend.create(LABELS, RuntimeSpec(path=["/opt/a/bin", "/opt/b"]))
    usual = (
        await (await backend.create(replace(LABELS, claim_id=f"{CLAIM}-usual"), RuntimeSpec())).exec(Exec("echo $PATH"))
    ).tail
    assert (await runtime.exec(Exec("echo $PATH"))).tail == f"/opt/a/bin:/opt/b:{usual}"
    assert (
        await runtime.exec(Exec("echo $PATH", env={"PATH": "/usr/bin:/bin"}))
    ).tail == "/opt/a/bin:/opt/b:/usr/bin:/bin\n"


@pytest.mark.parametrize("path", ["../../x", "/etc/polar-x", "a/../../../x", "link/x", "a\0b"])
async def test_a_path_that_leaves_the_sandbox_is_refused(runtime: Runtime, tmp_path: Path, path: str) -> None:
    (workspace_of(runtime) / "link").symlink_to(tmp_path)
    with pytest.raises(InputError, match="path"):
        await runtime.write_file(path, b"x")
    with pytest.raises(InputError, match="path"):
        await runtime.read_file(path, 1)
    with pytest.raises(InputError, match="path"):
        await runtime.upload(upload_of(Path(__file__), FolderBlobs(tmp_path / "blobs")), path)
    with pytest.raises(InputError, match="cwd"):
        await runtime.exec(Exec("true", cwd=path))
    with pytest.raises(InputError, match="stdin"):
        await runtime.exec(Exec("true", stdin=path))
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("name", ["../x.log", "a/b.log", "", ".", "..", "/tmp/x.log", "a\0"])
async def test_a_log_is_a_plain_file_name(runtime: Runtime, name: str) -> None:
    with pytest.raises(InputError, match="log"):
        await runtime.exec(Exec("true", log=name))


async def test_a_workdir_outside_is_refused_before_anything_is_made(backend: RuntimeBackend, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"runtime\.workdir: leads out of the sandbox"):
        await backend.create(LABELS, RuntimeSpec(workdir="/testbed"))
    assert await backend.labelled() == []


@pytest.mark.parametrize("claim", ["", ".", "..", "../x", "a/b", "/x", "a\n", "-x", "a" * 201])
async def test_a_claim_id_that_names_no_folder_of_its_own_is_refused(backend: RuntimeBackend, claim: str) -> None:
    handle = {"backend": "process", "host": "here", "id": claim}
    with pytest.raises(InputError, match="claim_id"):
        await backend.create(Labels("polar", "task.0", 1, claim), RuntimeSpec())
    with pytest.raises(SandboxError, match="no runtime has the id"):
        await backend.attach(handle, "b", RuntimeSpec())
    with pytest.raises(SandboxError, match="no runtime has the id"):
        await backend.remove(handle)


async def test_files_are_written_with_their_mode_and_read_up_to_a_limit(runtime: Runtime) -> None:
    await runtime.write_file(runtime.home / ".agent/settings.json", b"{}")
    await runtime.write_file("bin/run", b"#!/bin/sh\necho ran\n", mode=0o755)
    assert (await runtime.exec(Exec(("./bin/run",)))).tail == "ran\n"
    assert await runtime.read_file(runtime.home / ".agent/settings.json", 100) == b"{}"
    assert await runtime.read_file("bin/run", 5) == b"#!/bi"
    assert (await runtime.exec(Exec("stat -c %a ~/.agent/settings.json"))).tail == "600\n"


async def test_another_worker_attaches_by_the_handle_alone(backend: RuntimeBackend, tmp_path: Path) -> None:
    made = await backend.create(LABELS, RuntimeSpec())
    await made.exec(Exec("echo mended > file"))

    again: RuntimeBackend = registry.load(registry.Kind.RUNTIME, made.handle["backend"])(tmp_path / "runtimes")
    other = await again.attach(dict(made.handle), "claim-b", RuntimeSpec())

    assert (await other.exec(Exec("cat file"))).tail == "mended\n"
    assert other.handle == made.handle


async def test_runtimes_are_found_by_label_half_made_ones_by_their_claim(
    backend: RuntimeBackend, tmp_path: Path
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


async def test_a_runtime_with_folders_nested_without_end_is_removed(backend: RuntimeBackend) -> None:
    made = await backend.create(LABELS, RuntimeSpec())
    nest = "import os\nfor _ in range(3000): os.mkdir('d'); os.chdir('d')"
    assert (await made.exec(Exec((sys.executable, "-c", nest)))).exit_code == 0
    await made.remove()
    assert await backend.labelled() == []


@pytest.mark.parametrize(
    ("links", "source"),
    [
        ("mkdir d; ln -s {out}/kept d/file", "file"),
        ("mkdir d; ln -s {out}/kept d/file", "folder"),
        ("mkdir d; ln -s {out} d/sub", "folder"),
        ("mkdir -p d/sub; ln -s {out}/kept d/sub/inner", "folder"),
    ],
)
async def test_an_upload_follows_no_link_that_a_program_has_made(
    runtime: Runtime, tmp_path: Path, links: str, source: str
) -> None:
    out = tmp_path / "outside"
    out.mkdir()
    (out / "kept").write_text("kept")
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    for path in (tmp_path / "file", folder / "file", folder / "sub" / "inner"):
        path.write_text("new")
    assert (await runtime.exec(Exec(links.format(out=out)))).exit_code == 0
    with pytest.raises(InputError, match="can't take"):
        await runtime.upload(upload_of(tmp_path / source, FolderBlobs(tmp_path / "blobs")), "d")
    assert [path.name for path in out.iterdir()] == ["kept"]
    assert (out / "kept").read_text() == "kept"


async def test_an_upload_keeps_what_may_be_run_and_what_lies_beside_it(runtime: Runtime, tmp_path: Path) -> None:
    folder, blobs = tmp_path / "folder", FolderBlobs(tmp_path / "blobs")
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "run").write_text("#!/bin/sh\necho ran\n")
    (folder / "sub" / "run").chmod(0o700)
    await runtime.write_file("sub/kept", b"kept")
    for _ in range(2):  # the second replaces the first
        await runtime.upload(upload_of(folder, blobs), ".")
    assert (await runtime.exec(Exec("sub/run; cat sub/kept; echo more >> sub/kept"))).tail == "ran\nkept"
    run = upload_of(folder / "sub" / "run", blobs)
    await runtime.upload(run, "sub")
    await runtime.upload(run, "new/place")
    assert (await runtime.exec(Exec("echo '# more' >>sub/run && sub/run && new/place"))).tail == "ran\nran\n"


@pytest.mark.parametrize("damage", ["missing", "changed", "cut"])
async def test_an_upload_that_the_blob_store_lacks_is_not_ready_and_names_it(
    runtime: Runtime, tmp_path: Path, damage: str
) -> None:
    (tmp_path / "file").write_text("text")
    files = upload_of(tmp_path / "file", FolderBlobs(tmp_path / "blobs"))
    (blob,) = (path for path in (tmp_path / "blobs").rglob("*") if path.is_file())
    data = blob.read_bytes()
    match damage:
        case "missing":
            blob.unlink()
        case "changed":
            blob.write_bytes(data.replace(b"text", b"evil"))
        case "cut":
            blob.write_bytes(data[:600])
    with pytest.raises(NotReadyError, match=rf"^{files.ref}.*POLAR_BLOBS"):
        await runtime.upload(files, "file")


async def test_content_that_is_no_archive_is_the_task_s_fault(runtime: Runtime, tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path / "blobs")
    files = Upload(blobs, blobs.put(b"a harness's log\n" * 100).ref)
    with pytest.raises(InputError, match=rf"^content: has a bad header.*{files.ref}"):
        await runtime.upload(files, "logs")


async def test_one_claim_makes_one_runtime(backend: RuntimeBackend) -> None:
    await backend.create(LABELS, RuntimeSpec())
    with pytest.raises(SandboxError, match="has made a runtime before"):
        await backend.create(LABELS, RuntimeSpec())


async def test_a_workspace_is_empty_until_something_lies_in_it(runtime: Runtime) -> None:
    assert await runtime.is_empty()
    await runtime.write_file(".hidden", b"")
    assert not await runtime.is_empty()


CELLS = 64
WAIT_AT_GATE = "mkfifo gate; touch started; read word < gate; echo $word; ls"


async def test_64_sessions_run_at_once_and_each_is_by_itself(backend: RuntimeBackend) -> None:
    labels = [Labels("polar", f"task.{number}", 1, f"{CLAIM}-{number}") for number in range(CELLS)]
    made = [await backend.create(each, RuntimeSpec()) for each in labels]
    workspaces = [workspace_of(runtime) for runtime in made]
    running = [asyncio.create_task(runtime.exec(Exec(WAIT_AT_GATE, timeout_s=120))) for runtime in made]
    await eventually(lambda: all((workspace / "started").exists() for workspace in workspaces), 60)
    for number, workspace in enumerate(workspaces):
        await asyncio.to_thread((workspace / "gate").write_text, f"{number}\n")
    for number, ended in enumerate(await asyncio.gather(*running)):
        assert (ended.exit_code, ended.tail) == (0, f"{number}\ngate\nstarted\n")
    await asyncio.gather(*(runtime.remove() for runtime in made))
    assert await backend.labelled() == []


async def test_a_backend_names_what_it_does_not_enforce(backend: RuntimeBackend, runtime: Runtime) -> None:
    """Known words, so that people find them in the docs; those of a cell are its limits."""
    found = backend.unenforced(RuntimeSpec())
    assert set(found) <= {*UNENFORCED, *LIMITS}
    assert ("session_key" in found, "host_files" in found) == {
        "cell": (False, False),
        "landlock": (True, False),
        "process": (True, True),
    }[runtime.handle["backend"]]


REMOVE = """
import asyncio, os, resource, sys
from pathlib import Path
from consumers.runtimes import session_folder
folder = Path(sys.argv[1])
folder.mkdir()
os.chdir(folder)
for _ in range(200):
    os.mkdir("d")
    os.chdir("d")
os.chdir("/")
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
asyncio.run(session_folder.remove(folder))
"""


def test_a_folder_deeper_than_the_limit_of_open_files_is_removed(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", REMOVE, tmp_path / "i-1"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert not (tmp_path / "i-1").exists()
