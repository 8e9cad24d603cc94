"""An evaluation's container: the workspace as the run left it, and all else as `prepare` did."""

from __future__ import annotations

import docker
import pytest

from consumers.runtimes.base import Exec, Labels, Runtime
from consumers.runtimes.container.runtime import ContainerBackend
from tests.consumers.runtimes.container.conftest import things_of
from topics.types.errors import InputError
from topics.types.runtime import RuntimeSpec

pytestmark = pytest.mark.docker

PREPARE = """
set -e
echo prepared >/etc/prepared; echo prepared >~/settings
mkdir -p a b deep/er full/of/things; echo one >a/same; echo two >b/same; touch -d @1000 a/same b/same
echo old >file; echo old >gone; echo old >becomes-folder; mkdir becomes-file; echo x >becomes-file/inner
echo old >linked; ln linked linked-too; ln -s file link; echo kept >deep/er/kept; echo x >full/of/things/x
echo closed >closed; chmod 0 closed; mkdir shut; echo in >shut/in; chmod 0500 shut; echo forged >forged; touch -d @1000 forged
"""
RUN = """
set -e
echo run >/etc/prepared; echo run >~/settings; echo run >/tmp/run; mkdir -p ~/.cache
mv a c; mv b a; mv c b
echo new >file; rm gone; rm becomes-folder; mkdir becomes-folder; echo x >becomes-folder/inner
rm -r becomes-file; echo x >becomes-file; echo more >>linked; ln deep/er/kept kept-too; rm link; ln -s /nowhere link
rm -r full; mkfifo pipe; truncate -s 1T sparse; echo end >>sparse; mkdir -p new/deep; echo x >new/deep/x
chmod 0600 closed; echo closed2 >>closed; chmod 0 closed; chmod 0700 shut; rm shut/in; echo b >shut/b; chmod 0500 shut
printf 'FORGED' >forged; touch -d @1000 forged; printf 'a' >"odd
name"; mkdir hidden; echo x >hidden/x; chmod 0 hidden; touch -d @2000 new/deep/x new/deep new
"""
LIST = """
find . -mindepth 1 \\( -type d -printf '%P %y %m %Ts\\n' -o -printf '%P %y %m %s %n %l %Ts\\n' \\) 2>/dev/null | sort
find . -type f -size -1M -readable 2>/dev/null | sort | xargs -d '\\n' head -c 100 2>/dev/null
"""


async def output(runtime: Runtime, command: str) -> str:
    ended = await runtime.exec(Exec(command))
    return ended.output().decode()


@pytest.fixture
async def run(backend: ContainerBackend, runtime: Runtime, claim: str) -> Runtime:
    return await backend.attach(runtime.handle, f"{claim}-run", RuntimeSpec())


async def evaluation_of(backend: ContainerBackend, run: Runtime, claim: str) -> Runtime:
    made = await backend.attach(run.handle, claim, RuntimeSpec(), fresh=True)
    await made.kill_all()
    return made


async def test_every_kind_of_change_to_the_workspace_arrives_and_nothing_else(
    backend: ContainerBackend, runtime: Runtime, claim: str
) -> None:
    assert (await runtime.exec(Exec(PREPARE))).exit_code == 0
    run = await backend.attach(runtime.handle, f"{claim}-run", RuntimeSpec())
    assert (await run.exec(Exec(RUN))).exit_code == 0
    left = await output(run, LIST)
    evaluation = await evaluation_of(backend, run, f"{claim}-evaluate")

    assert await output(evaluation, LIST) == left
    assert await output(evaluation, "cat a/same b/same forged") == "two\none\nFORGED"
    assert await output(evaluation, "tail -c 4 sparse; du -m sparse | cut -f1") == "end\n1\n"
    assert await output(evaluation, "cat /etc/prepared ~/settings; ls -A ~ /tmp") == (
        "prepared\nprepared\n/home/agent:\nsettings\n\n/tmp:\n"
    )


async def test_evaluations_change_nothing_of_the_run_or_of_one_another(
    backend: ContainerBackend, run: Runtime, claim: str
) -> None:
    await run.exec(Exec("echo run >file; ln -s /nowhere link"))
    first = await evaluation_of(backend, run, f"{claim}-1")
    await first.exec(Exec("echo first >file; echo first >more; rm -f link; touch /root-changed ~/x"))
    await first.write_file("written", b"first")
    second = await evaluation_of(backend, run, f"{claim}-2")
    assert await output(second, "cat file; ls -A . ~ /root-changed 2>&1") == (
        "run\nls: cannot access '/root-changed': No such file or directory\n.:\nfile\nlink\n\n/home/agent:\n"
    )
    assert await output(run, "cat file; ls") == "run\nfile\nlink\n"
    assert await first.read_file("written", 10) == b"first"


async def test_an_evaluation_that_uses_nothing_makes_no_container(
    engine: docker.DockerClient, backend: ContainerBackend, run: Runtime, claim: str
) -> None:
    await evaluation_of(backend, run, f"{claim}-evaluate")
    assert len(things_of(engine, backend)) == 1


async def test_without_preparation_nothing_is_committed(
    engine: docker.DockerClient, backend: ContainerBackend, run: Runtime, claim: str
) -> None:
    await run.exec(Exec("echo run >file"))
    evaluation = await evaluation_of(backend, run, f"{claim}-evaluate")
    assert await output(evaluation, "cat file") == "run\n"
    filters = {"label": f"polar.root={backend.folders.root}"}
    assert engine.images.list(filters=filters) == []


async def test_an_evaluation_without_a_run_sees_what_was_prepared(backend: ContainerBackend, claim: str) -> None:
    made = await backend.create(Labels("polar", "task.0", 1, claim), RuntimeSpec())
    await made.exec(Exec("echo prepared >file; echo prepared >~/x"))
    evaluation = await evaluation_of(backend, made, f"{claim}-evaluate")
    assert await output(evaluation, "cat file ~/x") == "prepared\nprepared\n"


async def test_a_folder_of_programs_that_still_run_is_carried_once_they_are_killed(
    backend: ContainerBackend, run: Runtime, claim: str
) -> None:
    await run.exec(Exec("mkdir -p many; for n in $(seq 300); do echo $n >many/$n; done"))
    evaluation = await evaluation_of(backend, run, f"{claim}-evaluate")
    assert await output(evaluation, "ls many | wc -l; cat many/300") == "300\n300\n"


async def test_an_absolute_workdir_is_the_workspace(backend: ContainerBackend, claim: str) -> None:
    spec = RuntimeSpec(workdir="/srv/app")
    made = await backend.create(Labels("polar", "task.0", 1, claim), spec)
    assert await output(made, "pwd") == "/srv/app\n"
    await output(await backend.attach(made.handle, f"{claim}-run", spec), "echo run >file")
    evaluation = await backend.attach(made.handle, f"{claim}-evaluation", spec, fresh=True)
    assert await output(evaluation, "cat /srv/app/file") == "run\n"
    with pytest.raises(InputError, match=r"runtime\.workdir"):
        await backend.create(Labels("polar", "task.0", 1, f"{claim}-b"), RuntimeSpec(workdir="/proc/x"))
