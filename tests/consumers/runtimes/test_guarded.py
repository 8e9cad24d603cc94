"""What a program under Landlock can and can't do. Attacks on the rest of the system: cell/test_attacks.py."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from consumers.runtimes import guarded, landlock
from consumers.runtimes.base import Exec, Labels, ModelAccess, Runtime
from consumers.runtimes.guarded import GuardedBackend
from consumers.stages.worker_context import WorkerContext
from topics.environment.settings import Settings
from topics.types.errors import InputError, NotReadyError
from topics.types.runtime import Network, RuntimeSpec

pytestmark = pytest.mark.contract
LABELS = Labels("polar", "task.0", 1, "claim")


@pytest.fixture
def backend(tmp_path: Path) -> GuardedBackend:
    return GuardedBackend(tmp_path / "runtimes")


async def output(runtime: Runtime, command: str, **more: object) -> str:
    ended = await runtime.exec(Exec(command, timeout_s=30, **more))  # type: ignore[arg-type]
    return ended.tail


async def test_it_works_in_its_own_folder_with_the_systems_programs_and_its_tools(
    runtime: Runtime, tmp_path: Path
) -> None:
    tool = tmp_path / "tool"
    tool.mkdir()
    (tool / "run").write_text("#!/bin/sh\necho from the tool\n")
    (tool / "run").chmod(0o755)
    work = f"""
        echo text >a.txt; mkdir -p ~/x; mv a.txt ~/x/; cp ~/x/a.txt $TMPDIR/; cat $TMPDIR/a.txt
        {sys.executable} -c 'import json, ssl; print(json.dumps(1))'; git init -q . && git status --short
        sort <<<"here" >/dev/null; head -c4 /dev/urandom >/dev/null; {tool}/run
    """
    assert await output(runtime, work, tools=(tool,)) == "text\n1\nfrom the tool\n"
    assert "Permission denied" in await output(runtime, f"{tool}/run")


@pytest.mark.parametrize(
    "attack",
    [
        pytest.param("cat {secret}", id="read a file of the host"),
        pytest.param("echo x >>{secret}", id="write it"),
        pytest.param("ln {secret} mine && cat mine", id="link it"),
        pytest.param("mv {secret} mine", id="move it"),
        pytest.param("ls {folder}", id="list a folder"),
        pytest.param("echo x >/tmp/polar-left-behind", id="write where all sessions would read"),
        pytest.param("echo x >{logs}/agent.log", id="write its own log"),
        pytest.param("kill -0 {worker}", id="signal the worker"),
        pytest.param("cat /proc/{worker}/environ", id="read the worker's environment"),
        pytest.param("cat /proc/{worker}/maps", id="read the map of its memory"),
        pytest.param("readlink /proc/{worker}/fd/0", id="read its descriptors"),
        pytest.param("chown 1234 .", id="use the rights of root"),
        pytest.param("unshare --user true", id="make a namespace"),
        pytest.param("mount -t tmpfs none .", id="mount"),
    ],
)
async def test_it_has_nothing_else_of_the_host(runtime: Runtime, tmp_path: Path, attack: str) -> None:
    secret = tmp_path / "keys.json"
    secret.write_text("secret")
    places = {"secret": secret, "folder": tmp_path, "logs": runtime.logs, "worker": os.getpid()}
    command = attack.format(**places)
    if "{worker}" in attack:
        ran = await asyncio.to_thread(subprocess.run, ["bash", "-c", command], capture_output=True, check=False)
        assert ran.returncode == 0, "outside it works"
    ended = await runtime.exec(Exec(command))
    assert ended.exit_code not in (0, None), ended.tail
    assert secret.read_text() == "secret"


@pytest.mark.parametrize("network", [Network.PROXY_ONLY, Network.NONE, Network.HOST])
async def test_the_policy_decides_which_ports_it_may_connect_to(backend: GuardedBackend, network: Network) -> None:
    made = await backend.create(LABELS, RuntimeSpec(network=network))
    model = ModelAccess("http://127.0.0.1:9/prefix", "sk", "m")
    connect = "for port in 9 10; do (: </dev/tcp/127.0.0.1/$port) 2>&1 | grep -o 'Permission denied\\|refused' | head -n1; done"
    denied, reached = "Permission denied", "refused"
    expected = {
        Network.PROXY_ONLY: [reached, denied],
        Network.NONE: [denied, denied],
        Network.HOST: [reached, reached],
    }
    assert (await output(made, connect, model=model)).splitlines() == expected[network]
    assert (await output(made, connect)).splitlines() == [denied, denied]


async def test_it_declares_that_it_leaves_named_unix_sockets_open(backend: GuardedBackend, tmp_path: Path) -> None:
    """Such as Docker's. Fails when this becomes enforced, and then the word must go."""
    made = await backend.create(LABELS, RuntimeSpec())
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        listening.listen()
        connect = f"import socket; socket.socket(socket.AF_UNIX).connect({str(tmp_path / 's')!r}); print('reached')"
        reached = "reached" in await output(made, f'{sys.executable} -c "{connect}"')
    assert reached == ("unix_sockets" in backend.unenforced(RuntimeSpec()))


def test_limits_and_hosts_that_it_can_not_keep_are_refused() -> None:
    for changes in ({"memory_mb": 100}, {"network": "allowlist", "allowed_hosts": ["a.example"]}):
        with pytest.raises(ValueError, match=r"can't be kept by runtime\.backend 'landlock'"):
            RuntimeSpec.model_validate({"backend": "landlock", **changes})


async def test_it_takes_the_place_of_a_cell_where_a_worker_trusts_its_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumers.runtimes.cell.backend.CHECK_S", 0.0)  # no cell is that quick
    for trusts, abi, expected in ((True, 7, "landlock"), (True, guarded.LEAST_ABI - 1, "process"), (False, 7, None)):
        monkeypatch.setattr(landlock, "abi", lambda abi=abi: abi)
        context = WorkerContext(Settings(data=tmp_path, trust_tasks=trusts), lambda: True, lambda: None)
        await context.check_cells()
        if expected is None:
            with pytest.raises(NotReadyError):
                context.backend_of(RuntimeSpec())
            with pytest.raises(InputError, match=r"runtime\.backend"):
                context.backend_of(RuntimeSpec(backend="landlock"))
        else:
            made = await context.backend_of(RuntimeSpec()).create(Labels("polar", "t.0", 1, f"c-{abi}"), RuntimeSpec())
            assert made.handle["backend"] == expected
