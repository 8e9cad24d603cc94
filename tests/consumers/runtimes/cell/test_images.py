"""Cells with an image: what programs see of it, what an evaluation sees of a run, and what a hostile image or agent can't reach."""

from __future__ import annotations

import asyncio
import hashlib
import stat
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from consumers.runtimes import preparation_names
from consumers.runtimes.base import Exec, Labels, Runtime, SandboxError
from consumers.runtimes.cell import preparations
from consumers.runtimes.cell.backend import CellBackend
from consumers.runtimes.cell.runtime import CellRuntime
from consumers.runtimes.cell.view import Folders
from consumers.runtimes.images.store import ImageStore
from consumers.runtimes.prepare import prepare, steps
from tests.consumers.runtimes.cell.test_runtime import output
from tests.consumers.runtimes.images import making
from tests.consumers.runtimes.images.making import Entry, Folder, Link
from tests.uploading import actions_of
from tests.waiting import eventually
from topics.environment.blobs import FolderBlobs
from topics.types.errors import InputError
from topics.types.runtime import Network, RuntimeSpec, Seen

pytestmark = pytest.mark.contract

NAME = "river:1"
APP: dict[str, Entry] = {
    "app": Folder(),
    "app/a.txt": b"from the image\n",
    "app/old": Folder(),
    "app/old/b.txt": b"old\n",
    "etc/conf": b"from the image\n",
}
CONFIG = {"WorkingDir": "/app", "Env": ["PATH=/usr/bin:/bin", "RIVER=Rhine"]}
SPEC = RuntimeSpec(image=NAME)
Images = Callable[..., ImageStore]


@pytest.fixture(scope="module")
def programs() -> dict[str, Entry]:
    """This host's programs as a layer."""
    return making.host_layer()


@pytest.fixture
def images(tmp_path: Path, programs: dict[str, Entry]) -> Images:
    """Makes a store in which NAME is this host's programs under other layers."""

    def made(
        *layers: making.Layer, config: dict[str, object] | None = None, base: making.Layer = programs
    ) -> ImageStore:
        layout = tmp_path / f"layout-{uuid.uuid4().hex}"
        making.oci_layout(layout, [base, *layers], CONFIG if config is None else config)
        return ImageStore(tmp_path / "images", {NAME: f"oci:{layout}:latest"}, trusts_tasks=False)

    return made


@pytest.fixture
async def backend(tmp_path: Path, images: Images) -> AsyncIterator[CellBackend]:
    made = CellBackend(tmp_path / "runtimes", images(APP))
    yield made
    await remove_all(made)


async def remove_all(backend: CellBackend) -> None:
    for left in await backend.labelled():
        await backend.remove(left.handle)


def labels() -> Labels:
    return Labels("polar", "task.0", 1, f"claim-{uuid.uuid4().hex}")


async def run_of(backend: CellBackend, made: Runtime, spec: RuntimeSpec = SPEC) -> CellRuntime:
    return await backend.attach(made.handle, labels().claim_id, spec)


async def evaluation_of(backend: CellBackend, made: Runtime, spec: RuntimeSpec = SPEC) -> CellRuntime:
    return await backend.attach(made.handle, labels().claim_id, spec, fresh=True)


async def test_programs_see_the_image_and_nothing_of_the_host(backend: CellBackend, tmp_path: Path) -> None:
    runtime = await backend.create(labels(), SPEC)
    assert runtime.workspace.as_posix() == "/app"
    assert await output(runtime, "pwd; cat a.txt; echo $RIVER $HOME; id -u") == (
        "/app\nfrom the image\nRhine /home/agent\n0\n"
    )
    seen = set((await output(runtime, "ls /")).split())
    tools = {path.parts[1] for path in backend.host.tools}
    assert (
        seen - tools
        == {"app", "bin", "dev", "etc", "home", "lib", "lib64", "proc", "root", "run", "tmp", "usr"} - tools
    )
    host = {path.name for path in Path("/etc").iterdir()} - {"passwd", "group", "hosts", "conf"}
    assert not host & set((await output(runtime, "ls /etc")).split())
    assert (await runtime.exec(Exec(f"ls {tmp_path}"))).exit_code != 0


async def test_all_files_of_the_image_belong_to_the_agent(backend: CellBackend) -> None:
    runtime = await backend.create(labels(), SPEC)
    await output(runtime, "echo more >> /etc/conf; rm /usr/bin/wc; echo mine > a.txt; rm -r old; mkdir old; mkdir /srv")
    assert await output(runtime, "cat /etc/conf a.txt; ls old; ls -d /srv; ls /usr/bin/wc || true") == (
        "from the image\nmore\nmine\n/srv\nls: cannot access '/usr/bin/wc': No such file or directory\n"
    )


async def test_a_change_of_owners_does_nothing_and_succeeds(backend: CellBackend) -> None:
    runtime = await backend.create(labels(), SPEC)
    assert await output(runtime, "chown 5:43 a.txt; chown -hR 7 old; stat -c '%u %g' a.txt old/b.txt") == "0 0\n0 0\n"


async def test_no_session_changes_the_image(backend: CellBackend, tmp_path: Path) -> None:
    made = await backend.create(labels(), SPEC)
    before = digest(tmp_path / "images" / "layers")
    await made.exec(Exec("rm -rf /app/* /etc /home /usr/bin/wc; echo x > /bin/cat; chmod 0 /usr"))
    assert digest(tmp_path / "images" / "layers") == before
    other = await backend.create(labels(), SPEC)
    assert await output(other, "cat a.txt /etc/conf") == "from the image\nfrom the image\n"


def digest(top: Path) -> str:
    """Of names, types, permissions, owners and contents."""
    found = hashlib.sha256()
    for path in sorted(top.rglob("*")):
        status = path.lstat()
        found.update(f"{path} {status.st_mode} {status.st_uid} {status.st_rdev} ".encode())
        if stat.S_ISREG(status.st_mode):
            found.update(path.read_bytes())
    return found.hexdigest()


async def test_an_evaluation_sees_the_workspace_that_the_run_left_and_no_other_change(backend: CellBackend) -> None:
    made = await backend.create(labels(), SPEC)
    await output(made, "echo prepared > /etc/prepared; echo prepared > b.txt")
    run = await run_of(backend, made)
    await output(
        run,
        "rm -r old; echo run > a.txt; mkdir new; echo run > new/c; mkdir -p /usr/local/bin; echo 'echo fake' > /usr/local/bin/cat;"
        "chmod +x /usr/local/bin/cat; echo run > /etc/conf; rm /etc/prepared; mv /usr/bin/head /usr/bin/tail; touch /ran",
    )
    evaluation = await evaluation_of(backend, made)
    assert await output(
        evaluation, "ls; cat a.txt b.txt new/c; cat /etc/conf /etc/prepared; ls /usr/local /ran 2>&1 || true"
    ) == (
        "a.txt\nb.txt\nnew\nrun\nprepared\nrun\nfrom the image\nprepared\n"
        "ls: cannot access '/usr/local': No such file or directory\nls: cannot access '/ran': No such file or directory\n"
    )
    await output(evaluation, "rm a.txt; touch mine; rm /etc/conf")
    assert (
        await output(await evaluation_of(backend, made), "ls; cat /etc/conf") == "a.txt\nb.txt\nnew\nfrom the image\n"
    )
    assert await output(await evaluation_of(backend, run), "cat a.txt") == "run\n"


async def test_an_evaluation_sees_everything_if_the_task_says_so(backend: CellBackend) -> None:
    spec = RuntimeSpec(image=NAME, verifier_sees=Seen.EVERYTHING)
    made = await backend.create(labels(), spec)
    await output(made, "echo prepared > /etc/prepared; touch /etc/gone")
    run = await run_of(backend, made, spec)
    await output(run, "echo run > /etc/conf; rm /etc/gone; echo run > a.txt")
    evaluation = await evaluation_of(backend, made, spec)
    assert await output(evaluation, "cat /etc/conf /etc/prepared a.txt; ls /etc/gone || true") == (
        "run\nprepared\nrun\nls: cannot access '/etc/gone': No such file or directory\n"
    )
    await output(evaluation, "echo evaluation > /etc/conf")
    assert await output(await evaluation_of(backend, made, spec), "cat /etc/conf") == "run\n"
    assert [folder.as_posix() for folder in evaluation.written] == ["/"]


async def test_an_evaluation_of_a_run_that_started_no_program_sees_what_prepare_left(backend: CellBackend) -> None:
    spec = RuntimeSpec(image=NAME, verifier_sees=Seen.EVERYTHING)
    made = await backend.create(labels(), spec)
    assert await output(await evaluation_of(backend, made, spec), "cat /etc/conf") == "from the image\n"
    await run_of(backend, made, spec)
    assert await output(await evaluation_of(backend, made, spec), "cat /etc/conf") == "from the image\n"


async def test_files_are_written_and_read_wherever_the_image_has_them(backend: CellBackend, tmp_path: Path) -> None:
    runtime = await backend.create(labels(), SPEC)
    await runtime.write_file("old/new.txt", b"written", mode=0o640)
    await runtime.write_file("/etc/deep/er", b"deep")
    assert await runtime.read_file("old/new.txt", 100) == b"written"
    assert await runtime.read_file("a.txt", 4) == b"from"
    assert await runtime.read_file("/etc/deep/er", 100) == b"deep"
    assert await output(runtime, "stat -c %a old/new.txt; ls old") == "640\nb.txt\nnew.txt\n"
    with pytest.raises(FileNotFoundError):
        await runtime.read_file("/etc/none", 1)
    for path in ("/proc/1/mem", "/dev/x", "/run/x", "/sys/x"):
        with pytest.raises(InputError, match="leads out of the sandbox"):
            await runtime.write_file(path, b"x")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test.sh").write_text("echo tested")
    blobs = FolderBlobs(tmp_path / "blobs")
    actions = actions_of([{"type": "upload_dir", "source": str(tmp_path / "tests"), "target": "/tests"}], blobs)
    await prepare(runtime, actions, blobs)
    assert await output(runtime, "bash /tests/test.sh") == "tested\n"


async def test_another_worker_attaches_to_the_image_of_the_session(backend: CellBackend, tmp_path: Path) -> None:
    made = await backend.create(labels(), SPEC)
    await output(made, "touch mine")
    # Its names lead elsewhere now, or nowhere.
    other = CellBackend(tmp_path / "runtimes", ImageStore(tmp_path / "images", {}, trusts_tasks=False))
    assert await output(await run_of(other, made), "ls") == "a.txt\nmine\nold\n"
    gone = CellBackend(tmp_path / "runtimes", ImageStore(tmp_path / "nothing", {}, trusts_tasks=False))
    with pytest.raises(SandboxError, match="isn't in"):
        await run_of(gone, made)


async def test_removal_leaves_nothing(backend: CellBackend, tmp_path: Path) -> None:
    made = await backend.create(labels(), SPEC)
    await output(await run_of(backend, made), "mkdir -p /x/y /z; chmod 0 /x/y; rm -r old /usr/bin/wc")
    await output(await evaluation_of(backend, made), "rm a.txt; mkdir old")
    await backend.remove(made.handle)
    assert list((tmp_path / "runtimes").iterdir()) == []


async def test_an_absolute_workdir_is_the_workspace(backend: CellBackend) -> None:
    spec = RuntimeSpec(image=NAME, workdir="/srv/repo")
    made = await backend.create(labels(), spec)
    assert await output(made, "pwd; echo x > file") == "/srv/repo\n"
    assert await output(await evaluation_of(backend, made, spec), "cat /srv/repo/file; ls /app") == "x\na.txt\nold\n"
    within = RuntimeSpec(image=NAME, workdir="old")
    assert await output(await backend.create(labels(), within), "pwd; ls") == "/app/old\nb.txt\n"


@pytest.mark.parametrize("workdir", ["/", "/tmp/x", "/proc", "/home", "/home/agent/x", "/run/app", "/srv/../dev/x"])
async def test_a_workspace_lies_where_nothing_else_is_mounted(backend: CellBackend, workdir: str) -> None:
    with pytest.raises(InputError, match=r"runtime\.workdir: can't be the workspace"):
        await backend.create(labels(), RuntimeSpec(image=NAME, workdir=workdir))
    assert await backend.labelled() == []


async def test_the_image_s_own_workdir_may_be_no_workspace(tmp_path: Path, images: Images) -> None:
    with pytest.raises(InputError, match=r"runtime\.image: its working directory /tmp can't be the workspace"):
        await CellBackend(tmp_path / "runtimes", images(config={"WorkingDir": "/tmp"})).create(labels(), SPEC)
    backend = CellBackend(tmp_path / "runtimes", images(config={}))
    assert (await backend.create(labels(), RuntimeSpec(image=NAME, workdir="x"))).workspace.as_posix() == "/workspace"
    await remove_all(backend)


async def test_an_image_without_a_shell_says_so(tmp_path: Path, images: Images) -> None:
    backend = CellBackend(tmp_path / "runtimes", images(base={"usr/bin/env": b""}))
    with pytest.raises(InputError, match=r"runtime\.image: has no program bash or sh"):
        await backend.create(labels(), SPEC)
    assert await backend.labelled() == []


async def test_an_image_without_bash_runs_commands_with_sh(
    tmp_path: Path, images: Images, programs: dict[str, Entry]
) -> None:
    base = {("usr/bin/sh" if path == "usr/bin/bash" else path): entry for path, entry in programs.items()}
    base["usr/bin/sh"] = programs["usr/bin/bash"]
    backend = CellBackend(tmp_path / "runtimes", images(APP, base=base))
    runtime = await backend.create(labels(), SPEC)
    assert (await runtime.exec(Exec("cat a.txt | cat; false | true"))).exit_code == 1
    await runtime.write_file("x", b"x")
    assert await runtime.read_file("x", 1) == b"x"
    await remove_all(backend)


def hostile(outside: Path) -> dict[str, Entry]:
    """Links in the places where something is mounted, to a folder of the host, at whatever root they are looked up."""
    there = Link(f"../../../../../../../..{outside}")
    return {"home": there, "etc/hosts": there, "srv": there, "opt": Link(str(outside))}


async def test_without_an_image_the_user_is_the_cell_s(tmp_path: Path) -> None:
    backend = CellBackend(tmp_path / "runtimes")
    for user in ("agent", "1000"):
        await backend.create(labels(), RuntimeSpec(user=user))
    with pytest.raises(InputError, match="here agent"):
        await backend.create(labels(), RuntimeSpec(user="root"))
    await remove_all(backend)


async def test_links_of_an_image_lead_nowhere(tmp_path: Path, images: Images) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o777)
    outside.chmod(0o777)
    backend = CellBackend(tmp_path / "runtimes", images(hostile(outside), config={"WorkingDir": "/srv/app"}))
    for workdir in (None, "/opt/app"):
        with pytest.raises(InputError, match="lies behind a link"):
            await backend.create(labels(), RuntimeSpec(image=NAME, workdir=workdir))
    with pytest.raises(SandboxError, match="can't be started"):
        await (await backend.create(labels(), RuntimeSpec(image=NAME, workdir="/new"))).exec(Exec("touch here"))
    assert list(outside.iterdir()) == []
    await remove_all(backend)


@pytest.mark.parametrize("name", ["proc", "dev", "run", "tmp"])
async def test_links_where_the_kernel_s_file_systems_go_lead_nowhere(tmp_path: Path, images: Images, name: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o777)
    outside.chmod(0o777)
    for target in (str(outside), f"../oldroot{outside}", f"/oldroot{outside}", "/proc/self/cwd", "/newroot/etc"):
        store = images({name: Link(target)}, config={})
        backend = CellBackend(tmp_path / "runtimes", store)
        runtime = await backend.create(labels(), SPEC)
        with suppress(SandboxError):  # many such images can't be started
            await runtime.exec(Exec("echo x > /proc/x; echo x > /dev/x; echo x > /run/x; echo x > /tmp/x"))
        await remove_all(backend)
    assert list(outside.iterdir()) == []


async def test_links_that_the_agent_left_lead_nowhere(backend: CellBackend, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o777)
    outside.chmod(0o777)
    spec = RuntimeSpec(image=NAME, verifier_sees=Seen.EVERYTHING)
    made = await backend.create(labels(), spec)
    run = await run_of(backend, made, spec)
    await output(run, f"mv /home /h; ln -s {outside} /home; mv /etc /e; ln -s {outside} /etc")
    for runtime in (run, await evaluation_of(backend, made, spec)):
        with pytest.raises(SandboxError, match="can't be started"):
            await runtime.exec(Exec("touch ~/x"))
    # An evaluation of the workspace alone doesn't meet them.
    await output(await evaluation_of(backend, made), "touch ~/x")
    assert list(outside.iterdir()) == []


PREPARED = [
    {"type": "exec", "command": "echo $RANDOM-$RANDOM-$RANDOM | tee /etc/made made ~/made > /dev/null; rm -r old"}
]


async def prepared(backend: CellBackend, tmp_path: Path, spec: RuntimeSpec) -> CellRuntime:
    blobs = FolderBlobs(tmp_path / "blobs")
    return await backend.create(labels(), spec, steps(spec.prepare, blobs))


READ = "cat /etc/made made ~/made; ls"


async def test_equal_preparations_are_made_once(backend: CellBackend, tmp_path: Path) -> None:
    spec = RuntimeSpec.model_validate({"image": NAME, "prepare": PREPARED})
    made = await asyncio.gather(*(prepared(backend, tmp_path, spec) for _ in range(5)))
    seen = {await output(await run_of(backend, one, spec), READ) for one in made}
    (one,) = seen
    assert one.endswith("a.txt\nmade\n")
    # What a session does to it is its own.
    run = await run_of(backend, made[0], spec)
    await output(run, "rm /etc/made made ~/made; touch mine; mkdir old")
    left = await output(await evaluation_of(backend, made[0], spec), "cat /etc/made ~/made; ls")
    assert left == 2 * one.splitlines(keepends=True)[0] + "a.txt\nmine\nold\n"
    assert await output(await run_of(backend, made[1], spec), READ) == one
    other = RuntimeSpec.model_validate({"image": NAME, "prepare": PREPARED, "env": {"A": "b"}})
    assert await output(await prepared(backend, tmp_path, other), READ) != one


async def test_a_preparation_that_fails_is_made_again(backend: CellBackend, tmp_path: Path) -> None:
    failing = [{"type": "exec", "command": "touch /etc/half; false"}]
    spec = RuntimeSpec.model_validate({"image": NAME, "prepare": failing})
    for _ in range(2):
        with pytest.raises(SandboxError, match="exit code 1"):
            await prepared(backend, tmp_path, spec)
    assert kept(tmp_path) == []


async def test_preparations_in_use_stay_and_old_ones_go(
    backend: CellBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparations, "KEPT", 2)
    specs = [
        RuntimeSpec.model_validate({"image": NAME, "prepare": [{"type": "exec", "command": f"echo {n} > made"}]})
        for n in range(5)
    ]
    used = await prepared(backend, tmp_path, specs[0])
    for spec in specs[1:]:
        await backend.remove((await prepared(backend, tmp_path, spec)).handle)
    assert len(kept(tmp_path)) == 3
    assert await output(await run_of(backend, used, specs[0]), "cat made") == "0\n"


async def test_a_preparation_that_is_cancelled_is_not_kept(backend: CellBackend, tmp_path: Path) -> None:
    spec = RuntimeSpec.model_validate(
        {"image": NAME, "prepare": [{"type": "exec", "command": "touch /etc/half; sleep 60"}]}
    )
    making = asyncio.create_task(prepared(backend, tmp_path, spec))
    await eventually(lambda: list((tmp_path / "runtimes").glob("*/root/etc/half")), 30)
    making.cancel()
    with pytest.raises(asyncio.CancelledError):
        await making
    assert kept(tmp_path) == []


def kept(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "runtimes" / preparation_names.FOLDER).iterdir() if path.is_dir()]


async def test_a_preparation_that_is_half_deleted_is_made_again(backend: CellBackend, tmp_path: Path) -> None:
    spec = RuntimeSpec.model_validate({"image": NAME, "prepare": PREPARED})
    first = await prepared(backend, tmp_path, spec)
    one = await output(first, READ)
    await backend.remove(first.handle)
    (folder,) = kept(tmp_path)
    # As a process leaves it that dies after the first step of a deletion.
    folder.rename(folder.with_name(".gone-0"))
    assert await output(await prepared(backend, tmp_path, spec), READ) != one
    assert [path.name for path in kept(tmp_path)] == [folder.name]


async def test_a_session_that_is_being_deleted_becomes_no_preparation(backend: CellBackend, tmp_path: Path) -> None:
    made = await backend.create(labels(), SPEC)
    folder = tmp_path / "runtimes" / made.handle["id"]
    preparations.withhold(folder)
    keeping = preparations.Preparations(tmp_path / "runtimes")
    async with preparation_names.locked(tmp_path / "runtimes", "0" * 64):
        with pytest.raises(SandboxError, match="can't be kept"):
            await keeping.keep("0" * 64, Folders(folder, has_image=True))
    assert kept(tmp_path) == []


async def test_a_preparation_depends_on_its_limits(backend: CellBackend, tmp_path: Path) -> None:
    small, large = (
        RuntimeSpec.model_validate({"image": NAME, "prepare": PREPARED, "memory_mb": memory}) for memory in (512, 2048)
    )
    assert await output(await prepared(backend, tmp_path, small), READ) != await output(
        await prepared(backend, tmp_path, large), READ
    )


async def test_a_tool_is_mounted_over_another_session_s_preparation(backend: CellBackend, tmp_path: Path) -> None:
    spec = RuntimeSpec.model_validate({"image": NAME, "prepare": PREPARED})
    await prepared(backend, tmp_path, spec)
    run = await run_of(backend, await prepared(backend, tmp_path, spec), spec)
    tool = Path(__file__).parent
    assert (await run.exec(Exec(("ls", str(tool)), tools=(tool,)))).exit_code == 0


async def test_programs_of_ours_are_never_the_agent_s(tmp_path: Path, images: Images) -> None:
    """The image's variables lead to programs and scripts in the workspace, which the agent writes."""
    environment = ["PATH=/app/bin:/usr/bin:/bin", "BASH_ENV=/app/env.sh", "ENV=/app/env.sh", "LD_PRELOAD=/app/x.so"]
    backend = CellBackend(tmp_path / "runtimes", images(APP, config={"WorkingDir": "/app", "Env": environment}))
    made = await backend.create(labels(), SPEC)
    fake = "printf '#!/bin/sh\\necho fake\\n'"
    names = "bash sh head cat cp rm dirname mkdir"
    await output(
        await run_of(backend, made),
        f"mkdir bin; for name in {names}; do {fake} > bin/$name; chmod +x bin/$name; done; echo 'echo fake; exit' > env.sh",
    )
    evaluation = await evaluation_of(backend, made)
    await evaluation.write_file("/logs/reward.txt", b"0")
    assert await evaluation.read_file("/logs/reward.txt", 100) == b"0"
    assert await evaluation.read_file("a.txt", 100) == b"from the image\n"
    assert (await evaluation.exec(Exec("type -P bash", is_ours=True))).tail == "/usr/bin/bash\n"
    await remove_all(backend)


async def test_a_workspace_behind_a_link_of_the_image_is_refused(tmp_path: Path, images: Images) -> None:
    store = images({"usr/local": Folder(), "wsp": Link("usr/local")}, config={"WorkingDir": "/wsp/x"})
    with pytest.raises(InputError, match="its /wsp/x lies behind a link"):
        await CellBackend(tmp_path / "runtimes", store).create(labels(), SPEC)


async def test_it_is_known_that_the_run_keeps_programs_from_starting(backend: CellBackend) -> None:
    spec = RuntimeSpec(image=NAME, verifier_sees=Seen.EVERYTHING)
    made = await backend.create(labels(), spec)
    await output(await run_of(backend, made, spec), "mv /home /h; ln -s /nowhere /home")
    evaluation = await evaluation_of(backend, made, spec)
    with pytest.raises(SandboxError, match="can't be started"):
        await evaluation.exec(Exec("true"))
    assert await evaluation.can_start()


async def test_the_host_s_settings_are_not_the_session_s(backend: CellBackend) -> None:
    for spec in (SPEC, RuntimeSpec()):
        runtime = await backend.create(labels(), spec)
        ended = await runtime.exec(Exec("[ ! -w /proc/sys/kernel/core_pattern ] && [ ! -w /proc/sys/vm/swappiness ]"))
        assert ended.exit_code == 0


async def test_equal_beginnings_are_made_once(backend: CellBackend, tmp_path: Path) -> None:
    """As two Dockerfiles with the same first lines: only the last action of the second one is carried out."""
    begin = [
        {"type": "exec", "command": "echo $RANDOM$RANDOM$RANDOM | tee /etc/made /tmp/made > ~/made"},
        {"type": "exec", "command": "cat /tmp/made > made; rm -r old"},
    ]
    one, other = (
        RuntimeSpec.model_validate(
            {"image": NAME, "prepare": [*begin, {"type": "exec", "command": f"cat /tmp/made; echo {word} > last"}]}
        )
        for word in ("one", "other")
    )
    seen = [
        await output(await run_of(backend, await prepared(backend, tmp_path, spec), spec), f"{READ}; cat last")
        for spec in (one, other)
    ]
    assert seen[0].replace("one", "other") == seen[1] != seen[0]
    assert len(kept(tmp_path)) == 4


async def test_of_very_many_actions_the_last_are_one(
    backend: CellBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation_names, "APART", 3)
    actions = [{"type": "exec", "command": f"echo {n} >> made"} for n in range(5)]
    spec = RuntimeSpec.model_validate({"image": NAME, "prepare": actions})
    assert await output(await prepared(backend, tmp_path, spec), "cat made") == "0\n1\n2\n3\n4\n"
    assert await output(await prepared(backend, tmp_path, spec), "cat made") == "0\n1\n2\n3\n4\n"
    assert len(kept(tmp_path)) == 3


async def test_sockets_and_pipes_that_a_preparation_leaves_are_left_out(backend: CellBackend, tmp_path: Path) -> None:
    spec = RuntimeSpec.model_validate(
        {"image": NAME, "prepare": [{"type": "exec", "command": "mkfifo ~/pipe /tmp/pipe; echo x > ~/file"}]}
    )
    for _ in range(2):
        run = await run_of(backend, await prepared(backend, tmp_path, spec), spec)
        assert await output(run, "ls ~") == "file\n"


async def test_names_are_resolved_in_an_image_whose_resolver_is_a_link(tmp_path: Path, images: Images) -> None:
    store = images(APP | {"etc/resolv.conf": Link("../run/systemd/resolve/stub-resolv.conf")})
    backend = CellBackend(tmp_path / "runtimes", store)
    runtime = await backend.create(labels(), RuntimeSpec(image=NAME, setup_network=Network.HOST))
    assert await output(runtime, "cat /etc/resolv.conf") == Path("/etc/resolv.conf").read_text()
    await remove_all(backend)
