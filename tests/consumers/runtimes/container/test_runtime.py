"""Sessions in containers: what programs reach, what is kept from them, and what is left."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
from pathlib import Path

import docker
import pytest

from consumers.runtimes.base import Exec, Labels, ModelAccess, Runtime, SandboxError
from consumers.runtimes.container import preparations
from consumers.runtimes.container.runtime import ContainerBackend
from consumers.runtimes.preparation_names import FOLDER
from consumers.runtimes.prepare import steps
from tests.compose import base
from tests.consumers.runtimes.conftest import Living, command_lines
from tests.consumers.runtimes.container.conftest import ImageBackend, in_image, things_of
from tests.consumers.runtimes.test_supervisor import daemon
from tests.serving import serving
from tests.waiting import eventually
from topics.environment.blobs import FolderBlobs
from topics.types.errors import InputError, NotReadyError
from topics.types.runtime import Network, RuntimeSpec

pytestmark = pytest.mark.docker

SESSIONS = 32


def labels(claim: str, number: int = 0) -> Labels:
    return Labels("polar", f"task.{number}", 1, claim)


async def output(runtime: Runtime, command: str) -> str:
    return (await runtime.exec(Exec(command))).tail


def call(port: int, path: str = "/v1/models", host: str = "model") -> str:
    """A request by bash alone: the image has no HTTP client."""
    lines = (
        f"GET {path} HTTP/1.1\\r\\nHost: {host}\\r\\nAuthorization: Bearer stolen\\r\\nConnection: close\\r\\n\\r\\n"
    )
    return f"exec 3<>/dev/tcp/127.0.0.1/{port} && printf '{lines}' >&3 && cat <&3"


async def test_the_harness_alone_reaches_its_model_and_with_the_key_of_its_session_alone(
    backend: ContainerBackend, claim: str
) -> None:
    made = await backend.create(labels(claim), RuntimeSpec())
    run = await backend.attach(made.handle, f"{claim}-run", RuntimeSpec())
    with serving(lambda _: (200, b"answered")) as (url, requests):
        model = ModelAccess(url, "sk-polar-own", "m")
        inside = run.reached_at(model)
        assert inside.proxy_url == "http://127.0.0.1:11800"
        assert "sk-polar-own" not in str(inside.env)
        for _ in range(2):
            assert (await run.exec(Exec(call(11800), model=model))).tail.endswith("\r\n\r\nanswered")
        assert [(path, key) for path, key, _ in requests] == [("/v1/models", "Bearer sk-polar-own")] * 2
        outside = int(url.rpartition(":")[2])
        for denied in (Exec(call(11800)), Exec(call(outside), model=model)):
            assert "Connection refused" in (await run.exec(denied)).tail
        assert len(requests) == 2


async def test_an_allowed_host_is_reached_and_no_other(backend: ContainerBackend, claim: str) -> None:
    with serving(lambda _: (200, b"answered")) as (url, _):
        host = url.removeprefix("http://").replace("127.0.0.1", "localhost")
        spec = RuntimeSpec(setup_network=Network.ALLOWLIST, allowed_hosts=[host])
        made = await backend.create(labels(claim), spec)
        denied = await output(made, call(11801, "http://denied.example/", "denied.example"))
        assert "403" in denied.splitlines()[0]
        assert (await output(made, "echo $http_proxy")).strip() == "http://127.0.0.1:11801"


async def test_with_the_hosts_network_for_prepare_alone_the_run_has_none_and_all_that_was_prepared(
    backend: ContainerBackend, claim: str
) -> None:
    spec = RuntimeSpec(setup_network=Network.HOST)
    made = await backend.create(labels(claim), spec)
    with serving(lambda _: (200, b"answered")) as (url, _):
        port = int(url.rpartition(":")[2])
        assert (await output(made, f"{call(port)} | tail -1 | tee fetched /etc/fetched")) == "answered"
        run = await backend.attach(made.handle, f"{claim}-run", spec)
        assert await output(run, "cat fetched /etc/fetched; echo run >fetched") == "answeredanswered"
        assert "refused" in await output(run, call(port))
    evaluation = await backend.attach(made.handle, f"{claim}-evaluate", spec, fresh=True)
    assert await output(evaluation, "cat fetched /etc/fetched") == "run\nanswered"


async def test_the_keeper_is_out_of_reach(runtime: Runtime) -> None:
    attack = """
    for number in 2 9 15 17 19; do kill -$number 1; done
    cat /proc/1/mem /proc/1/environ /proc/$PPID/environ >/dev/null
    echo forged >/proc/$PPID/fd/1; cat </proc/1/fd/3
    find /.polar -type s; echo x >/.polar/tools/bin/python3; echo x >/.polar/line/first
    """
    said = await output(runtime, attack)
    assert said.count("Permission denied") == 5
    assert said.count("Read-only file system") == 2
    assert len(said.splitlines()) == 7, said
    assert await output(runtime, "echo alive") == "alive\n"


async def test_a_program_has_no_capability_and_gets_none(runtime: Runtime) -> None:
    status = await output(runtime, "cat /proc/self/status")
    shown = dict(line.split(":\t", 1) for line in status.splitlines())
    assert {shown[f"Cap{name}"] for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
    assert (shown["NoNewPrivs"], shown["Seccomp"]) == ("1", "2")


async def test_a_killed_supervisor_leaves_no_program_and_the_caller_is_told(
    runtime: Runtime, token: str, living: Living
) -> None:
    with pytest.raises(SandboxError) as raised:
        await runtime.exec(Exec(daemon("double fork", token) + "kill -9 $PPID; sleep 1000"))
    assert raised.value.code == "supervisor_lost"
    assert living() == []
    assert await output(runtime, "echo on") == "on\n"


WORKER = """
import asyncio, pathlib, sys
from consumers.runtimes.base import Exec
from consumers.runtimes.container.runtime import ContainerBackend
from topics.types.task import RuntimeSpec

async def main(root, session, claim, command):
    backend = ContainerBackend(pathlib.Path(root))
    handle = {"backend": "docker", "host": "", "id": session}
    runtime = await backend.attach(handle, claim, RuntimeSpec())
    await runtime.exec(Exec(command))

asyncio.run(main(*sys.argv[1:]))
"""


async def start_worker(backend: ContainerBackend, session: str, claim: str, command: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", WORKER, str(backend.folders.root), session, claim, command),
        cwd=Path(__file__).parents[4],
        start_new_session=True,
    )


def programs(lines: list[str]) -> list[str]:
    return [line for line in lines if "import asyncio" not in line]


async def test_when_the_worker_is_killed_nothing_of_its_programs_lives_on(
    backend: ContainerBackend, runtime: Runtime, claim: str, token: str, living: Living
) -> None:
    worker = await start_worker(backend, claim, claim, daemon("double fork", token) + "sleep 1000")
    await eventually(lambda: programs(living()), 60)
    worker.kill()
    await worker.wait()
    await eventually(lambda: not living())


async def test_a_stopped_workers_claim_is_killed_by_another_worker_and_spares_all_others(
    backend: ContainerBackend, runtime: Runtime, claim: str, token: str, living: Living
) -> None:
    own = asyncio.create_task(runtime.exec(Exec("touch here; sleep 1000")))
    worker = await start_worker(backend, claim, f"{claim}-run", daemon("setsid", token) + "sleep 1000")
    try:
        await eventually(lambda: programs(living()), 60)
        worker.send_signal(signal.SIGSTOP)
        await backend.kill_claim(f"{claim}-run")
        assert not programs(living())
        await asyncio.wait({own}, timeout=0.2)
        assert not own.done()
        await runtime.kill_all()
        with pytest.raises(SandboxError):
            await own
    finally:
        os.killpg(worker.pid, signal.SIGKILL)
        await worker.wait()


async def test_two_programs_of_a_claim_run_at_once_and_the_end_of_one_spares_the_other(runtime: Runtime) -> None:
    waiting = asyncio.create_task(
        runtime.exec(Exec("mkfifo gate; touch up; read word <gate; echo $word", log="a.log", timeout_s=60))
    )
    while not (await output(runtime, "ls")).count("up"):
        await asyncio.sleep(0.01)
    await runtime.exec(Exec("sleep 1000 & exit 3", log="b.log"))
    assert await output(runtime, "echo through >gate") == ""
    assert (await waiting).tail == "through\n"


async def test_no_secret_is_in_a_process_list_or_in_what_the_engine_tells(
    engine: docker.DockerClient, backend: ContainerBackend, runtime: Runtime, token: str
) -> None:
    running = asyncio.create_task(runtime.exec(Exec("sleep 1000", env={"API_KEY": token})))
    await eventually(lambda: [line for line in command_lines() if line.startswith("sleep 1000")])
    assert not [line for line in command_lines() if token in line]
    told = [engine.api.inspect_container(one) for one in things_of(engine, backend)]
    assert len(told) == 1
    assert token not in str(told)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@pytest.mark.parametrize(
    ("limit", "spec", "command", "code", "said"),
    [
        ("memory_mb", RuntimeSpec(memory_mb=64), "tail /dev/zero", 137, "needed more than 64 MB of memory"),
        ("pids", RuntimeSpec(pids=30), "for _ in $(seq 60); do sleep 9 & done; kill $(jobs -p)", None, "retry: Resource"),
        ("files", RuntimeSpec(files=20), "for n in $(seq 10 40); do eval \"exec $n</dev/null\" || exit 4; done", 4, "Bad file"),
    ],
)  # fmt: skip
async def test_what_takes_too_much_ends_its_own_session_alone(
    backend: ContainerBackend, claim: str, limit: str, spec: RuntimeSpec, command: str, code: int | None, said: str
) -> None:
    if limit in backend.unenforced(spec):
        pytest.skip(f"this engine doesn't limit {limit} on this host, and says so")
    made = await backend.create(labels(claim), spec)
    ended = await made.exec(Exec(command, timeout_s=30))
    assert code is None or ended.exit_code == code
    assert said in ended.exceeded + ended.tail
    assert await output(made, "echo alive") == "alive\n"


async def test_an_image_needs_nothing_of_its_own(
    engine: docker.DockerClient, backend: ContainerBackend, claim: str, tmp_path: Path
) -> None:
    name = f"polar-test-empty:{claim}"
    (tmp_path / "empty.tar").write_bytes(bytes(10240))
    base.import_image(engine, tmp_path / "empty.tar", name, [])
    try:
        made = await backend.create(labels(claim), RuntimeSpec(backend="docker", image=name))
        await made.write_file("a", b"text")
        assert await made.read_file("/workspace/a", 9) == b"text"
        with pytest.raises(SandboxError, match=r"bash.*No such file") as raised:
            await made.exec(Exec("true"))
        assert raised.value.code == "not_started"
        await made.remove()
    finally:
        engine.images.remove(name)


async def test_the_images_user_owns_its_workspace_and_home_and_the_images_variables_are_set(
    engine: docker.DockerClient, backend: ContainerBackend, claim: str
) -> None:
    # The whole name, since Podman searches no registry for a short one in a recipe.
    recipe = f'FROM docker.io/library/{base.IMAGE}\nUSER 1234:1234\nENV FLAVOUR=sweet LD_PRELOAD=/none.so\nENTRYPOINT ["false"]\n'
    # One without a name stays when a session's snapshot goes, but not on Podman 4.3.
    name = f"polar-test-user:{claim}" if engine.info().get("Rootless") else None
    image, _ = engine.images.build(fileobj=io.BytesIO(recipe.encode()), tag=name, rm=True, forcerm=True)
    try:
        made = await backend.create(
            labels(claim), RuntimeSpec(backend="docker", image=image.id, workdir="deep/down", env={"OWN": "1"})
        )
        said = await output(made, "id -u; echo $FLAVOUR $OWN $LD_PRELOAD; pwd; touch x ~/x ../x && echo made")
        assert [line for line in said.splitlines() if "ld.so" not in line] == [
            "1234", "sweet 1 /none.so", "/workspace/deep/down", "made",
        ]  # fmt: skip
        run = await backend.attach(made.handle, f"{claim}-run", RuntimeSpec(backend="docker", image=image.id))
        await run.write_file("later", b"")
        evaluation = await backend.attach(
            made.handle, f"{claim}-e", RuntimeSpec(backend="docker", image=image.id), fresh=True
        )
        assert (await evaluation.exec(Exec(("ls",)))).tail.splitlines()[-2:] == ["deep", "later"]
    finally:
        for left in await backend.labelled():
            await backend.remove(left.handle)
        engine.images.remove(name or image.id)


async def test_a_container_without_its_folder_is_found_and_removed(
    engine: docker.DockerClient, backend: ContainerBackend, claim: str, tmp_path: Path
) -> None:
    made = await backend.create(labels(claim, 7), RuntimeSpec())
    await made.exec(Exec("touch x"))
    await backend.attach(made.handle, f"{claim}-run", RuntimeSpec())
    assert len(things_of(engine, backend)) == 2, "a container and a snapshot"
    (backend.folders.root / claim).rename(tmp_path / "elsewhere")
    (found,) = await ImageBackend(backend.folders.root).labelled()
    assert found.labels == labels(claim, 7)
    await backend.remove(found.handle)
    await backend.remove(found.handle)
    assert things_of(engine, backend) == []


def prepared_by(command: str) -> RuntimeSpec:
    """A task whose preparation leaves the number of a new file in `/srv/made` and in the workspace."""
    script = f"mktemp -u XXXXXXXX | tee /srv/made > made.txt; {command}"
    return in_image(RuntimeSpec.model_validate({"prepare": [{"type": "exec", "command": script}]}))


async def begun(backend: ContainerBackend, claim: str, spec: RuntimeSpec, blobs: FolderBlobs) -> tuple[Runtime, str]:
    """A prepared session, and the number that it finds."""
    made = await backend.create(labels(claim), spec, steps(spec.prepare, blobs))
    run = await backend.attach(made.handle, f"{claim}-run", spec)
    found = (await output(run, "cat /srv/made made.txt; echo changed > /srv/made; rm made.txt")).split()
    assert found[0] == found[1]
    return run, found[0]


def preparations_of(backend: ContainerBackend) -> set[str]:
    """The names of those that are kept."""
    return {path.name for path in (backend.folders.root / FOLDER).iterdir() if not path.name.startswith(".")}


async def test_sessions_with_equal_preparations_share_what_the_first_left(
    engine: docker.DockerClient,
    backend: ContainerBackend,
    claim: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    blobs, spec = FolderBlobs(tmp_path / "blobs"), prepared_by(f"true {claim}")
    monkeypatch.setattr(preparations, "KEPT", 1)
    at_once = await asyncio.gather(*(begun(backend, f"{claim}-{number}", spec, blobs) for number in range(4)))
    assert len({number for _, number in at_once}) == 1
    evaluation = await backend.attach(at_once[0][0].handle, f"{claim}-evaluation", spec, fresh=True)
    assert (await output(evaluation, "cat /srv/made")).strip() == at_once[0][1]
    assert (await evaluation.exec(Exec("cat made.txt"))).exit_code == 1, "the run removed it"

    with pytest.raises(SandboxError) as failed:
        await begun(backend, f"{claim}-fails", prepared_by(f"exit 3 # {claim}"), blobs)
    assert failed.value.code == "prepare_failed"
    _, other = await begun(backend, f"{claim}-other", prepared_by(f"false {claim} || true"), blobs)
    assert other != at_once[0][1]
    names = preparations_of(backend)
    assert len(names) == 2, "one is over KEPT, and in use"

    for left in await backend.labelled():
        await backend.remove(left.handle)
    engine.images.remove(f"{preparations.REPOSITORY}:{min(names)}")  # as a user may
    _, third = await begun(backend, f"{claim}-third", prepared_by(f"true third {claim}"), blobs)
    (kept,) = preparations_of(backend)
    tags = [tag for image in engine.images.list(preparations.REPOSITORY) for tag in image.tags]
    here = {tag.removeprefix("docker.io/library/") for tag in tags}  # as Podman says them
    assert f"{preparations.REPOSITORY}:{kept}" in here
    assert not here & {f"{preparations.REPOSITORY}:{name}" for name in names}
    assert third not in (other, at_once[0][1])
    for left in await backend.labelled():
        await backend.remove(left.handle)
    engine.images.remove(f"{preparations.REPOSITORY}:{kept}")


async def test_many_sessions_run_at_once_and_each_is_by_itself(
    engine: docker.DockerClient, backend: ContainerBackend, claim: str
) -> None:
    made = await asyncio.gather(
        *(backend.create(labels(f"{claim}-{number}", number), RuntimeSpec()) for number in range(SESSIONS))
    )
    wait = "mkfifo gate; touch started; read word <gate; echo $word; ls"
    running = [asyncio.create_task(runtime.exec(Exec(wait, timeout_s=200))) for runtime in made]
    for number, runtime in enumerate(made):
        open_gate = f"until [ -p gate ]; do sleep 0.01; done; echo {number} >gate"
        assert (await runtime.exec(Exec(open_gate, log="gate.log", timeout_s=60))).exit_code == 0
    for number, ended in enumerate(await asyncio.gather(*running)):
        assert (ended.exit_code, ended.tail) == (0, f"{number}\ngate\nstarted\n")
    await asyncio.gather(*(runtime.remove() for runtime in made))
    assert await backend.labelled() == []
    assert things_of(engine, backend) == []


async def test_a_backend_names_what_it_does_not_enforce(
    engine: docker.DockerClient, backend: ContainerBackend, runtime: Runtime
) -> None:
    info = engine.info()
    is_limited = not info.get("Rootless") or info["CgroupVersion"] == "2"
    limits = ["storage_mb"] if is_limited else ["memory_mb", "pids", "storage_mb"]
    assert backend.unenforced(RuntimeSpec()) == limits
    assert "session_key" in backend.unenforced(RuntimeSpec(network=Network.HOST))


async def test_a_tool_is_seen_where_it_lies_on_the_host_and_cannot_be_changed(
    backend: ContainerBackend, claim: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLAR_CACHE", str(tmp_path / "cache"))
    tool = tmp_path / "cache" / "tool-1"
    tool.mkdir(parents=True)
    (tool / "run").write_text("#!/bin/bash\necho ran\n")
    (tool / "run").chmod(0o755)
    made = await backend.create(labels(claim), RuntimeSpec())
    ended = await made.exec(Exec(f"{tool}/run; echo x >{tool}/run", tools=(tool,)))
    assert ended.tail.startswith("ran\n")
    assert "Read-only file system" in ended.tail
    with pytest.raises(NotReadyError, match="isn't in a folder that containers see"):
        await made.exec(Exec("true", tools=(tmp_path / "elsewhere",)))


async def test_where_no_engine_answers_tasks_are_told_and_the_reaper_goes_on(
    engine: docker.DockerClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    alone = ContainerBackend(tmp_path / "runtimes")
    assert await alone.labelled() == []
    with pytest.raises(NotReadyError, match=r"reaches no container engine.*DOCKER_HOST"):
        await alone.create(labels("c"), in_image(RuntimeSpec()))
    (tmp_path / "runtimes" / "claim-of-a-dead-worker").mkdir(parents=True)
    (found,) = await alone.labelled()
    with pytest.raises(SandboxError, match="reaches no container engine"):
        await alone.remove(found.handle)


async def test_an_image_is_needed(engine: docker.DockerClient, tmp_path: Path) -> None:
    plain = ContainerBackend(tmp_path / "runtimes")
    with pytest.raises(InputError, match=r"runtime\.image: a container needs an image"):
        await plain.create(labels("c"), RuntimeSpec())
    assert await plain.labelled() == []
