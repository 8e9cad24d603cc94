"""Sessions in containers of Apptainer: what programs see, what an evaluation sees of a run, and what is left."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from consumers.runtimes import proctree
from consumers.runtimes.apptainer import place
from consumers.runtimes.apptainer.images import SifStore
from consumers.runtimes.apptainer.runtime import MAIN, RUN, ApptainerBackend
from consumers.runtimes.base import Exec, Labels, ModelAccess, Runtime, SandboxError
from consumers.runtimes.images.store import ImageStore
from consumers.runtimes.session_folder import RUNTIME_MARK
from tests.consumers.runtimes.apptainer.conftest import IMAGE, ImageBackend
from tests.consumers.runtimes.conftest import Living, processes
from tests.serving import serving
from topics.types.errors import InputError, NotReadyError
from topics.types.runtime import Network, RuntimeSpec

pytestmark = pytest.mark.contract

CALL = (
    "exec 3<>/dev/tcp/127.0.0.1/{port} && "
    "printf 'GET /v1/models HTTP/1.1\\r\\nHost: m\\r\\nAuthorization: Bearer x\\r\\nConnection: close\\r\\n\\r\\n' >&3 && cat <&3"
)


def labels(claim: str) -> Labels:
    return Labels("polar", "task.0", 1, claim)


async def output(runtime: Runtime, text: str) -> str:
    return (await runtime.exec(Exec(text))).output().decode()


async def test_programs_see_the_image_as_root_without_capabilities_and_nothing_of_the_host(
    runtime: Runtime, tmp_path: Path
) -> None:
    assert await output(runtime, "cat /etc/conf; echo $RIVER $HOME; id -u; pwd") == (
        "from the image\nRhine /home/agent\n0\n/workspace\n"
    )
    assert await output(runtime, "grep -E '^(CapPrm|CapEff|NoNewPrivs)' /proc/self/status") == (
        "CapPrm:\t0000000000000000\nCapEff:\t0000000000000000\nNoNewPrivs:\t1\n"
    )
    assert await output(runtime, "echo more >>/etc/conf; rm /usr/bin/wc; cat /etc/conf; ls /usr/bin/wc || true") == (
        "from the image\nmore\nls: cannot access '/usr/bin/wc': No such file or directory\n"
    )
    assert "127.0.0.1 localhost" in await output(runtime, "cat /etc/hosts")
    assert (await runtime.exec(Exec(f"ls {tmp_path}"))).exit_code != 0
    assert (await output(runtime, "cat /proc/net/dev | grep -c :")).strip() == "1"


async def test_what_is_shown_of_the_host_cannot_be_changed(runtime: Runtime) -> None:
    for folder in ("/.polar/tools", "/.polar/line", sys.prefix):
        assert "Read-only file system" in await output(runtime, f"touch {folder}/x 2>&1 || true")


async def test_the_harness_alone_reaches_its_model_and_its_key_is_on_no_line_and_not_inside(
    backend: ApptainerBackend, runtime: Runtime, claim: str
) -> None:
    run = await backend.attach(runtime.handle, f"{claim}-run", RuntimeSpec())
    with serving(lambda _: (200, b"answered")) as (url, requests):
        model = ModelAccess(url, "sk-polar-own", "m")
        inside = run.reached_at(model)
        assert "sk-polar-own" not in str(inside.env)
        ended = await run.exec(Exec(CALL.format(port=11800), model=model, env={"SECRET": "word-of-the-task"}))
        assert ended.tail.endswith("\r\n\r\nanswered")
        assert [(path, key) for path, key, _ in requests] == [("/v1/models", "Bearer sk-polar-own")]
        assert "Connection refused" in (await run.exec(Exec(CALL.format(port=11800)))).tail
        assert (
            "Connection refused" in (await run.exec(Exec(CALL.format(port=url.rpartition(":")[2]), model=model))).tail
        )
    seen = Exec("echo $SECRET; exec sleep 0.5", env={"SECRET": "word-of-the-task"})
    assert (await run.exec(seen)).tail == "word-of-the-task\n"
    assert not any(b"sk-polar-own" in line or b"word-of-the-task" in line for _, line in processes("cmdline"))


async def test_an_evaluation_sees_the_runs_workspace_and_all_else_as_prepared(
    backend: ApptainerBackend, runtime: Runtime, claim: str
) -> None:
    assert (
        await output(
            runtime,
            "echo prepared >/etc/conf; echo prepared >~/x; echo old >file; mkdir -p gone/deep; echo x >gone/deep/x; "
            "rm /usr/bin/wc; echo prepared",
        )
        == "prepared\n"
    )
    run = await backend.attach(runtime.handle, f"{claim}-run", RuntimeSpec())
    assert await output(run, "cat /etc/conf ~/x file; ls /usr/bin/wc 2>&1 || true") == (
        "prepared\nprepared\nold\nls: cannot access '/usr/bin/wc': No such file or directory\n"
    )
    await output(run, "echo run >/etc/conf; echo run >~/x; echo run >file; rm -r gone; echo new >new; chmod 0600 new")
    first = await backend.attach(runtime.handle, f"{claim}-1", RuntimeSpec(), fresh=True)
    assert await output(first, "cat /etc/conf ~/x file new; ls; stat -c %a new") == (
        "prepared\nprepared\nrun\nnew\nfile\nnew\n600\n"
    )
    await output(first, "echo first >file; echo first >/etc/conf")
    second = await backend.attach(runtime.handle, f"{claim}-2", RuntimeSpec(), fresh=True)
    assert await output(second, "cat /etc/conf file") == "prepared\nrun\n"
    assert await output(run, "cat /etc/conf file") == "run\nrun\n"


async def test_another_worker_goes_on_with_the_session_and_only_the_runs_container_is_left(
    backend: ApptainerBackend, images: ImageStore, runtime: Runtime, claim: str
) -> None:
    await output(runtime, "echo prepared >file")
    other = ImageBackend(backend.folders.root, images)
    run = await other.attach(dict(runtime.handle), f"{claim}-run", RuntimeSpec())
    assert await output(run, "cat file") == "prepared\n"
    folder = backend.folders.root / claim
    parts = {part: proctree.marked(place.CONTAINER_MARK, place.name_of(folder, part)) for part in (MAIN, RUN)}
    assert (parts[MAIN], bool(parts[RUN])) == (set(), True)
    again = await backend.attach(dict(runtime.handle), f"{claim}-run", RuntimeSpec())
    assert await output(again, "cat file") == "prepared\n"


async def test_a_half_made_container_of_a_run_is_made_again(
    backend: ApptainerBackend, runtime: Runtime, claim: str
) -> None:
    """A worker died between the start of the container and the record of the workspace."""
    await output(runtime, "echo prepared >file")
    await backend.attach(runtime.handle, f"{claim}-dead", RuntimeSpec())
    (backend.folders.root / claim / "prepared").unlink()
    run = await backend.attach(runtime.handle, f"{claim}-run", RuntimeSpec())
    assert await output(run, "cat file") == "prepared\n"


async def test_removing_kills_all_containers_and_what_runs_in_them(
    backend: ApptainerBackend, runtime: Runtime, claim: str, token: str, living: Living
) -> None:
    run = await backend.attach(runtime.handle, f"{claim}-run", RuntimeSpec())
    evaluation = await backend.attach(runtime.handle, f"{claim}-1", RuntimeSpec(), fresh=True)
    await output(run, "mkdir shut; echo x >shut/x; chmod 0 shut")
    await output(evaluation, "true")
    assert proctree.marked(RUNTIME_MARK, claim)
    await run.remove()
    assert proctree.marked(RUNTIME_MARK, claim) == set()
    assert living() == []
    assert not (backend.folders.root / claim).exists()
    await run.remove()
    with pytest.raises(SandboxError, match="no runtime"):
        await backend.attach(runtime.handle, f"{claim}-2", RuntimeSpec())


async def test_a_container_that_does_not_start_is_an_error_with_apptainers_own_words(
    engine: str, layout: Path, tmp_path: Path, claim: str
) -> None:
    own = ImageStore(tmp_path / "images", {IMAGE: f"oci:{layout}/layout:latest"}, trusts_tasks=False)
    (await SifStore(own).get(IMAGE)).path.write_bytes(b"no image")
    backend = ImageBackend(tmp_path / "runtimes", own)
    with pytest.raises(SandboxError, match=r"doesn't answer; it says: .") as raised:
        await backend.create(labels(claim), RuntimeSpec())
    assert raised.value.code == "not_made"
    assert proctree.marked(RUNTIME_MARK, claim) == set()


async def test_an_absolute_workdir_is_the_workspace_and_a_relative_one_is_made(
    backend: ApptainerBackend, claim: str
) -> None:
    made = await backend.create(labels(claim), RuntimeSpec(workdir="/srv/app"))
    assert await output(made, "pwd") == "/srv/app\n"
    below = await backend.create(labels(f"{claim}-b"), RuntimeSpec(workdir="a/b"))
    assert await output(below, "pwd") == "/workspace/a/b\n"


async def test_what_is_not_kept_is_refused_or_named(backend: ApptainerBackend) -> None:
    assert backend.unenforced(RuntimeSpec()) == ["cpus", "memory_mb", "pids", "storage_mb", "system_calls"]
    assert set(backend.unenforced(RuntimeSpec(network=Network.HOST))) > {"network", "session_key", "udp"}
    for field, value in (("memory_mb", 512), ("gpus", 1), ("cpus", 1.0), ("pids", 64), ("storage_mb", 100)):
        with pytest.raises(ValueError, match=f"{field}=.* can't be kept by runtime.backend 'apptainer'"):
            RuntimeSpec.model_validate({"backend": "apptainer", "image": "river:1", field: value})
    with pytest.raises(ValueError, match="image is needed"):
        RuntimeSpec(backend="apptainer")
    assert RuntimeSpec(backend="apptainer", image="river:1", files=64).files == 64


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (None, "needs the program apptainer on PATH"),
        ("echo 1.1.9", r"needs Apptainer 1\.2 or newer; `apptainer version` says '1\.1\.9"),
        ("echo broken >&2; exit 1", "says 'broken"),
    ],
)
async def test_a_host_without_a_usable_apptainer_says_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, reason: str
) -> None:
    for name in ("setsid", "unshare"):
        (tmp_path / name).symlink_to("/bin/true")
    if script is not None:
        program = tmp_path / "apptainer"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotReadyError, match=reason):
        await ApptainerBackend(tmp_path / "runtimes").create(labels("claim-a"), RuntimeSpec(image=IMAGE))


async def test_a_task_without_an_image_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"runtime\.image"):
        await ApptainerBackend(tmp_path / "runtimes").create(labels("claim-a"), RuntimeSpec())


def test_a_data_folder_that_apptainer_cannot_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotReadyError, match="comma"):
        ApptainerBackend(tmp_path / "a,b")
