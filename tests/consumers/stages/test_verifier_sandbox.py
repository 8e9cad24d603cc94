"""A verifier with a sandbox of its own gets the run's artifacts and nothing else, whatever the run left; and the sandbox is gone
afterwards."""

from __future__ import annotations

import asyncio
import shlex
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from consumers.runtimes import artifact_copy
from consumers.runtimes.base import Exec, Labels
from consumers.runtimes.cell import limits
from consumers.runtimes.cell.ways_out import ALLOWLIST_PORT
from consumers.stages.claim_runner import Claim, outcome
from consumers.stages.evaluate import Evaluate
from consumers.stages.init import Init
from consumers.stages.worker_context import WorkerContext
from tests.consumers.runtimes.images import making
from tests.waiting import eventually
from topics.environment.settings import Settings
from topics.events import Evaluated, InitFinished
from topics.stages import Ticket
from topics.types.errors import Kind
from topics.types.session import Stage, Status
from topics.types.task import parse

pytestmark = pytest.mark.contract

PROGRAMS = (*making.PROGRAMS, "tar", "truncate")
RUNS: dict[str, making.Entry] = {"app": making.Folder(), "app/start": b"the run's\n"}
VERIFIERS: dict[str, making.Entry] = {
    "judge": making.Folder(),
    "out": making.Folder(),
    "out/own": b"the verifier's\n",
    "out/.own": b"the verifier's\n",
    "kept": b"the verifier's\n",
    "only": b"the verifier's\n",
}
SCORES = 'check() { if "$@"; then echo 1; else echo 0; fi >/logs/verifier/reward.txt; }\n'


class Host:
    """A worker's host without Kafka: sessions that have run, and claims that evaluate them."""

    def __init__(self, context: WorkerContext) -> None:
        self.context = context
        self.cells = context.backend("cell")

    async def ran(self, command: str, evaluator: dict[str, Any], **runtime: Any) -> Claim:
        """The claim of an evaluation, after a run."""
        task = parse(
            {
                "task_id": "t",
                "instruction": "",
                "agent": {"harness": "shell", "custom_shell": {"command": "true"}},
                "evaluator": evaluator,
                "runtime": runtime,
            }
        )
        made = await self.cells.create(Labels("polar", "t.0", 1, f"init-{uuid.uuid4().hex}"), task.runtime)
        run = await self.cells.attach(made.handle, f"run-{uuid.uuid4().hex}", task.runtime)
        assert (await run.exec(Exec(command))).exit_code == 0
        claim = Claim(
            Ticket(
                "t.0",
                sample_index=0,
                attempt=1,
                stage=Stage.EVALUATE,
                budget_s=60.0,
                body=task.canonical(),
                runtime=dict(made.handle),
                status=Status.COMPLETED,
            )
        )
        claim.work = Evaluate(self.context, claim)
        return claim

    async def ran_in_an_image(
        self,
        command: str,
        test: str,
        collect: Sequence[dict[str, Any]] = (),
        *,
        verifier_network: str = "none",
        **verifier: Any,
    ) -> Claim:
        """As `ran`. `test`: has the function `check`, whose arguments are a command that succeeds for the reward 1."""
        own = {"verifier": {"image": "verifier:1"} | verifier} if verifier else {"verifier_sees": "everything"}
        runtime = {"image": "run:1", "eval_prepare": [_tests(test)], "collect": list(collect)} | own
        network = {"verifier_network": verifier_network}
        return await self.ran(command, {"strategy": "harbor"}, **runtime, **network)

    async def ran_and_shared(self, command: str, test: str, seen: str) -> Claim:
        """As `ran`, with tests in the run's own sandbox, and a second evaluator after them."""
        second = {"strategy": "test_on_output", "config": {"test_command": "true", "protected": False}}
        evaluator = {"strategy": "composite", "config": {"parts": [{"strategy": "harbor"}, second]}}
        return await self.ran(command, evaluator, image="run:1", eval_prepare=[_tests(test)], verifier_sees=seen)

    async def evaluated(self, claim: Claim) -> Evaluated:
        """The fact of an evaluation, after which its sandbox is gone."""
        fact = await outcome(claim)
        await claim.work.tidy(fact)
        assert await self.made_by(claim) == []
        assert isinstance(fact, Evaluated)
        return fact

    async def made_by(self, claim: Claim) -> list[str]:
        return [found.handle["id"] for found in await self.cells.labelled() if found.labels.claim_id == claim.id]


def _tests(text: str) -> dict[str, Any]:
    """The action that writes a Harbor task's tests."""
    return {
        "type": "exec",
        "command": 'mkdir /tests && printf %s "$TEST" >/tests/test.sh',
        "env": {"TEST": f"#!/bin/bash\n{SCORES}{text}"},
    }


Judged = Callable[..., Awaitable[Evaluated]]


@pytest.fixture(scope="module")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two images with this host's programs."""
    top = tmp_path_factory.mktemp("layouts")
    programs = making.host_layer(PROGRAMS)
    making.oci_layout(top / "run", [programs, RUNS], {"WorkingDir": "/app"})
    making.oci_layout(top / "verifier", [programs, VERIFIERS], {"WorkingDir": "/judge", "Env": ["OF=verifier"]})
    return top


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The images, unpacked once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
async def host(tmp_path: Path, layouts: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Host]:
    monkeypatch.setenv("POLAR_CACHE", str(cache))
    images = {f"{name}:1": f"oci:{layouts / name}:latest" for name in ("run", "verifier")}
    images["gone:1"] = f"oci:{tmp_path / 'gone'}:latest"
    context = WorkerContext(Settings(data=tmp_path / "data", images=images), lambda: True, lambda: None)
    made = Host(context)
    yield made
    for left in await made.cells.labelled():
        await made.cells.remove(left.handle)


@pytest.fixture
def judged(host: Host) -> Judged:
    """The fact of an evaluation with `artifacts`."""

    async def judge(command: str, test: str, *artifacts: str | dict[str, Any], **verifier: Any) -> Evaluated:
        return await host.evaluated(await host.ran_in_an_image(command, test, artifacts=artifacts, **verifier))

    return judge


LEFT = f"""
echo mine >/app/answer; echo mine >/only; echo mine >/app/other; echo mine >/tmp/other; echo mine >~/other
mkdir -p /out/deep; echo mine >/out/deep/x; chmod +x /out/deep/x; echo mine >/out/{"n" * 200}
"""
ARRIVED = f"""
cat /app/answer /out/deep/x /out/{"n" * 200} /kept /only >/tmp/all; ls -A /app /out /tmp ~ >>/tmp/all
echo "$PWD $OF $SET" >>/tmp/all; [ -x /out/deep/x -a ! -x /app/answer ] && echo modes >>/tmp/all
check [ "$(cat /tmp/all)" = "mine
mine
mine
the verifier's
the verifier's
/app:
answer

/home/agent:

/out:
deep
{"n" * 200}

/tmp:
all
/judge verifier given
modes" ]
cat /tmp/all
"""


FAKE_TAR = """rm /usr/bin/tar; cat >/usr/bin/tar <<'END'
#!/bin/bash
{}
END
chmod +x /usr/bin/tar
"""


async def test_artifacts_arrive_and_nothing_else_of_the_run(judged: Judged) -> None:
    """A folder takes the place of the verifier's; what the run didn't leave stays as the verifier has it."""
    fact = await judged(LEFT, ARRIVED, "/app/answer", "/out", "/kept", "/missing", env={"SET": "given"})
    assert (fact.reward, fact.error) == (1.0, None), fact


async def test_what_is_excluded_stays_behind_whatever_tar_the_run_left(judged: Judged) -> None:
    """And what the verifier had there is gone, as everything in the folder."""
    left = f"""
    mkdir -p /out/deep/node_modules; echo x >/out/deep/node_modules/x; echo x >/out/a.pyc; echo x >/out/kept
    mv /usr/bin/tar /usr/bin/whole; {FAKE_TAR.format("exec whole -cf - .")}
    """
    test = 'check [ "$(cd /out; echo .o* *)" = ".o* deep kept" -a -z "$(ls -A /out/deep)" ]'
    fact = await judged(left, test, {"path": "/out", "exclude": ["node_modules", "*.pyc"]})
    assert (fact.reward, fact.error) == (1.0, None), fact


async def test_a_file_takes_the_place_of_a_folder(judged: Judged) -> None:
    assert (await judged("echo mine >/out", 'check [ "$(cat /out)" = mine ]', "/out")).reward == 1.0


async def test_a_relative_artifact_goes_from_workspace_to_workspace(judged: Judged) -> None:
    fact = await judged("mkdir a; echo mine >a/b", 'check [ "$(cat /judge/a/b)" = mine ]', "a/b")
    assert fact.reward == 1.0, fact


async def test_programs_that_the_run_replaced_do_not_count(judged: Judged) -> None:
    replaced = "for one in cat rm mkdir chmod dirname; do printf '#!/bin/bash\\necho 1' >/usr/bin/$one; done; echo x >/app/answer"
    fact = await judged(replaced, 'check [ "$(cat /app/answer)" = x ]', "/app/answer")
    assert fact.reward == 1.0, fact


async def test_programs_of_the_run_that_read_an_artifact_reach_nothing_of_the_verifiers(host: Host) -> None:
    """The verifier's own sandbox reaches the hosts that the task allows, and the run reached none."""
    fake = f"""rm /usr/bin/head; cat >/usr/bin/head <<'END'
#!/bin/bash
(exec 3<>/dev/tcp/127.0.0.1/{ALLOWLIST_PORT}) 2>&- && echo reached || echo nothing
END
chmod +x /usr/bin/head; echo x >/app/answer"""
    test = f'(exec 3<>/dev/tcp/127.0.0.1/{ALLOWLIST_PORT}) && check [ "$(cat /app/answer)" = nothing ]'
    claim = await host.ran(
        fake,
        {"strategy": "harbor"},
        image="run:1",
        eval_prepare=[_tests(test)],
        verifier={"image": "verifier:1", "artifacts": ["/app/answer"]},
        verifier_network="allowlist",
        allowed_hosts=["example.org"],
    )
    fact = await host.evaluated(claim)
    assert (fact.reward, fact.error) == (1.0, None), fact


async def test_links_and_pipes_lead_nowhere(judged: Judged) -> None:
    """A link in the place of an artifact is followed where the run left it; it is none afterwards."""
    left = """
    ln -s /only /linked; ln -s /nowhere /dangling; mkfifo /pipe; ln -s /etc/passwd /passwd; echo mine >/etc/passwd
    mkdir /out; ln -s /only /out/link; ln -s / /out/root; mkfifo /out/pipe; echo x >/out/file; ln /out/file /out/too
    """
    test = """
    [ ! -e /linked -a ! -e /dangling -a ! -e /pipe -a ! -L /passwd -a "$(ls -A /out)" = file ] && [ "$(cat /passwd)" = mine ]
    check [ $? = 0 ]
    ls -lA / /out
    """
    fact = await judged(left, test, "/linked", "/dangling", "/pipe", "/passwd", "/out")
    assert (fact.reward, fact.error) == (1.0, None), fact


@pytest.mark.parametrize(
    ("left", "reason"),
    [
        ("truncate -s 2M /out", "holds more than 1 MiB"),
        ("mkdir /out; truncate -s 2M /out/file", "holds more than 1 MiB"),
        ("mkdir /out; touch /out/x; " + FAKE_TAR.format("echo no tar"), "can't be read as the run left it"),
        ("mkdir /out; touch /out/x; " + FAKE_TAR.format("exit 0"), "can't be read as the run left it"),
        ("mkdir /out; touch /out/x; rm /usr/bin/tar", "no program tar"),
        ("mkdir -p /out/a /x/y; echo 1 >/x/reward; cd /x/y; tar -cPf /forged ../reward; "
         + FAKE_TAR.format("cat /forged"), "names are relative"),
        ("echo x >/out; rm /usr/bin/head", "exit code 127"),
        ("echo x >/out; mv /home /h; ln -s /nowhere /home", "no program starts after the run"),
    ],
)  # fmt: skip
async def test_what_cannot_be_carried_is_zero_and_never_null(
    judged: Judged, monkeypatch: pytest.MonkeyPatch, left: str, reason: str
) -> None:
    monkeypatch.setattr(artifact_copy, "BYTES_LIMIT", 1 << 20)
    fact = await judged(left, "check true", "/out")
    assert (fact.reward, fact.error) == (0.0, None), fact
    assert reason in str(fact.reason), fact.reason


async def test_an_empty_folder_takes_the_place_of_the_verifiers_without_a_tar(judged: Judged) -> None:
    fact = await judged("mkdir /out; rm /usr/bin/tar", 'check [ -d /out -a -z "$(ls -A /out)" ]', "/out")
    assert (fact.reward, fact.error) == (1.0, None), fact


async def test_collect_works_in_the_run_s_sandbox_before_the_artifacts_are_taken(host: Host) -> None:
    """A command that fails leaves a sentence, and the others count."""
    collect: list[dict[str, Any]] = [
        {"command": "cat start answer >/out; echo $PWD >>/out; exit 3"},
        {"command": "sleep 60", "timeout_s": 0.5},
        {"command": "echo late >>/out"},
    ]
    test = """check [ "$(cat /out)" = "the run's\nmine\n/app\nlate" ]"""
    claim = await host.ran_in_an_image("echo mine >answer", test, collect, artifacts=["/out"])
    fact = await host.evaluated(claim)
    assert (fact.reward, fact.error) == (1.0, None), fact
    assert fact.reason is not None
    assert "runtime.collect[0] ended with exit code 3" in fact.reason
    assert "runtime.collect[1] took longer than its timeout_s = 0.5 s" in fact.reason
    assert "[2]" not in fact.reason


async def test_collect_that_fills_the_storage_is_zero(host: Host) -> None:
    """Files that a command of `collect` writes count as the run's."""
    claim = await host.ran(
        "true",
        {"strategy": "harbor"},
        image="run:1",
        storage_mb=16,
        eval_prepare=[_tests("check true")],
        verifier={"image": "verifier:1"},
        collect=[{"command": "head -c 64M /dev/zero >big; sleep 60"}],
    )
    fact = await host.evaluated(claim)
    assert (fact.reward, fact.error) == (0.0, None), fact
    assert "while collect ran" in str(fact.reason)


@pytest.mark.parametrize(
    ("left", "reason"),
    [
        ("rm -r /app/*; rmdir /app/* /app; mv /usr/bin/bash /usr/bin/b", ""),
        ("mv /home /h; ln -s /nowhere /home", "wasn't started"),
    ],
)
async def test_collect_that_the_run_broke_is_no_error(host: Host, left: str, reason: str) -> None:
    claim = await host.ran_in_an_image(left, "check false", [{"command": "true"}], artifacts=[])
    fact = await host.evaluated(claim)
    assert (fact.reward, fact.error) == (0.0, None), fact
    assert reason in str(fact.reason)


@pytest.mark.parametrize("is_separate", [True, False])
async def test_what_collects_reaches_what_the_run_did_and_not_what_the_verifier_does(
    host: Host, *, is_separate: bool
) -> None:
    """Otherwise a program that the agent left could send and fetch as it likes."""
    settings = host.context.settings.model_copy(update={"trust_tasks": True})
    trusting = Host(WorkerContext(settings, lambda: True, lambda: None))
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    connects = f"(exec 3<>/dev/tcp/127.0.0.1/{server.sockets[0].getsockname()[1]})"
    own: dict[str, Any] = {"artifacts": ["/out"]} if is_separate else {}
    claim = await trusting.ran_in_an_image(
        "true",
        f'{connects} && check [ "$(cat /out)" = refused ]',
        [{"command": f"{connects} || echo refused >/out"}],
        verifier_network="host",
        **own,
    )
    async with server:
        fact = await trusting.evaluated(claim)
    assert (fact.reward, fact.error) == (1.0, None), fact


async def test_collect_gives_no_reward(host: Host) -> None:
    """Also where the tests see everything: what it writes counts as the run's, and nothing that it started lives on."""
    command = """
    mkdir -p /logs/verifier; echo 1 >/logs/verifier/reward.txt
    (trap '' TERM HUP; while :; do echo 1 >/logs/verifier/reward.txt; done) & disown
    """
    test = "[ -e /collected ] && check false"
    claim = await host.ran_in_an_image("true", test, [{"command": command + "touch /collected"}])
    fact = await host.evaluated(claim)
    assert (fact.reward, fact.error) == (0.0, None), fact


@pytest.mark.parametrize(
    ("left", "seen"),
    [
        pytest.param("rm -f /bin/sh /bin/bash /usr/bin/sh /usr/bin/bash", "workspace", id="by what the tests run"),
        pytest.param("mv /home /h; ln -s /nowhere /home", "everything", id="by the run"),
    ],
)
async def test_a_sandbox_that_the_agent_breaks_is_zero_and_never_null(host: Host, left: str, seen: str) -> None:
    """The second evaluator can't work there any more, since no program starts."""
    test = "bash /app/start; echo 1 >/logs/verifier/reward.txt"
    claim = await host.ran_and_shared(
        f"echo {shlex.quote(left)} >start; {'' if seen == 'workspace' else left}", test, seen
    )
    fact = await host.evaluated(claim)
    assert (fact.reward, fact.error) == (0.0, None), fact
    assert "can't be started" in str(fact.reason)


async def test_actions_that_meet_artifacts_are_zero_and_others_are_infra(judged: Judged) -> None:
    blocked = await judged("mkdir /tests", "check true", "/tests")
    assert (blocked.reward, blocked.error) == (0.0, None)
    failing = [{"type": "exec", "command": "exit 3"}]
    fact = await judged("true", "check true", prepare=failing)
    assert fact.error is not None
    assert (fact.reward, fact.error.kind, fact.error.code, fact.error.retryable) == (
        None,
        Kind.INFRA,
        "prepare_failed",
        True,
    )


async def test_init_reports_what_the_verifier_s_own_sandbox_lacks(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a host without cgroups."""
    (mounts := tmp_path / "mountinfo").write_text("22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n")
    bare = limits.probe(str(mounts))
    monkeypatch.setattr(limits, "host", lambda: bare)
    claim = await host.ran("true", {"strategy": "session_completed"}, verifier={"cpus": 2})
    claim.ticket = replace(claim.ticket, stage=Stage.INIT)
    fact = await Init(host.context, claim).do()
    assert isinstance(fact, InitFinished)
    assert fact.unenforced == ["memory_mb", "verifier.cpus", "verifier.memory_mb"]


async def test_an_image_that_cannot_be_had_is_no_verdict(judged: Judged) -> None:
    fact = await judged("true", "check true", image="gone:1")
    assert fact.reward is None
    assert fact.error is not None


async def test_the_sandbox_of_a_cancelled_evaluation_is_removed(host: Host) -> None:
    claim = await host.ran_in_an_image("true", "sleep 60", artifacts=[])
    doing = asyncio.create_task(claim.work.do())
    folder = host.context.settings.data / "runtimes" / host.context.settings.namespace / "cell" / claim.id
    await eventually(folder.is_dir, 30)
    doing.cancel()
    await asyncio.wait({doing})
    await claim.work.tidy(None)
    assert await host.made_by(claim) == []


async def test_without_images_a_relative_artifact_reaches_a_new_workspace(host: Host) -> None:
    test = {"test_command": '[ "$(cat answer)" = mine ] && [ ! -e other ]'}
    evaluator = {"strategy": "test_on_output", "config": test}
    claim = await host.ran("echo mine >answer; echo mine >other", evaluator, verifier={"artifacts": ["answer"]})
    fact = await host.evaluated(claim)
    assert (fact.reward, fact.error) == (1.0, None), fact
