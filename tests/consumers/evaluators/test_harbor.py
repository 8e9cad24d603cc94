"""The reward of a Harbor task is what its tests/test.sh wrote, by Harbor's rules; tests that wrote none give no reward, with a kind."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from consumers.evaluators.base import Case, EvaluationError, Verdict
from consumers.evaluators.harbor import Harbor
from consumers.runtimes.base import Exec, Labels
from consumers.runtimes.cell.backend import CellBackend
from consumers.runtimes.images.store import ImageStore
from tests.consumers.runtimes.images import making
from topics.types.errors import InputError
from topics.types.runtime import RuntimeSpec, Seen
from topics.types.session import Status

pytestmark = pytest.mark.contract

Judge = Callable[..., Awaitable[Verdict]]
REWARD = "/logs/verifier/reward"


@pytest.fixture
async def judge(tmp_path: Path) -> AsyncIterator[Judge]:
    """The verdict on what a run left, by a test.sh."""
    making.oci_layout(tmp_path / "layout", [making.host_layer()], {"WorkingDir": "/app"})
    images = ImageStore(tmp_path / "images", {"river": f"oci:{tmp_path}/layout:latest"}, trusts_tasks=False)
    backend = CellBackend(tmp_path / "runtimes", images)

    async def verdict(test: str | None, *, run: str = "true", seen: Seen = Seen.EVERYTHING, **config: Any) -> Verdict:
        spec = RuntimeSpec(image="river", verifier_sees=seen)
        made = await backend.create(Labels("polar", "task.0", 1, claim()), spec)
        await (await backend.attach(made.handle, claim(), spec)).exec(Exec(run))
        evaluation = await backend.attach(made.handle, claim(), spec, fresh=True)
        if test is not None:
            await evaluation.write_file("/tests/test.sh", f"#!/bin/bash\n{test}".encode())
        case = Case(evaluation, "task.0", Status.COMPLETED, 0, None, {"GREETING": "hi"}, budget_s=60)
        return await Harbor(config).evaluate(case)

    yield verdict
    for left in await backend.labelled():
        await backend.remove(left.handle)


def claim() -> str:
    return f"claim-{uuid.uuid4().hex}"


@pytest.mark.parametrize(
    ("test", "reward"),
    [
        (f"echo 0.5 > {REWARD}.txt; exit 1", 0.5),
        (f'echo \'{{"reward": 1, "style": 0.25}}\' > {REWARD}.json; echo 0 > {REWARD}.txt', 1.0),
        (f"pwd > /dev/null; [ $PWD = /app ] && [ $GREETING = hi ] && echo 1 > {REWARD}.txt", 1.0),
    ],
)
async def test_the_reward_is_what_the_tests_wrote_whatever_their_exit_code(
    judge: Judge, test: str, reward: float
) -> None:
    assert (await judge(test)).reward == reward


async def test_the_reward_has_the_name_that_the_task_says(judge: Judge) -> None:
    found = await judge(f'echo \'{{"score": 0.75, "style": 0.5}}\' > {REWARD}.json', reward="score")
    assert (found.reward, found.reason) == (0.75, "scores: style 0.5")


@pytest.mark.parametrize("seen", list(Seen))
async def test_a_reward_that_the_run_left_does_not_count(judge: Judge, seen: Seen) -> None:
    left = f"mkdir -p /logs/verifier; echo 1 > {REWARD}.txt; echo 1 > {REWARD}.json"
    with pytest.raises(EvaluationError, match="wrote neither") as raised:
        await judge("true", run=left, seen=seen)
    assert raised.value.code == "no_reward_file"


@pytest.mark.parametrize(
    ("test", "code"),
    [
        (None, "no_test_script"),
        ("true", "no_reward_file"),
        ("kill -9 $$", "no_reward_file"),
        (f"> {REWARD}.txt", "no_reward_file"),
        (f"echo nan > {REWARD}.txt", "bad_reward"),
        (f"echo '{{\"reward\": NaN}}' > {REWARD}.json; echo 1 > {REWARD}.txt", "bad_reward"),
        (f"echo '{{\"score\": 1}}' > {REWARD}.json", "bad_reward"),
        ("sleep 60", "tests_timeout"),
    ],
)
async def test_tests_without_a_reward_give_none_or_zero_as_the_task_says(
    judge: Judge, test: str | None, code: str
) -> None:
    with pytest.raises(EvaluationError) as raised:
        await judge(test, timeout_s=2)
    assert raised.value.code == code
    if test is not None:
        assert (await judge(test, timeout_s=2, without_reward="zero")).reward == 0.0


@pytest.mark.parametrize(
    "test", [f"mkdir {REWARD}.txt", f"mkfifo {REWARD}.json", f"ln -s /dev/null {REWARD}.json; mkdir {REWARD}.txt"]
)
async def test_a_reward_that_cannot_be_read_is_zero(judge: Judge, test: str) -> None:
    assert (await judge(test)).reward == 0.0


@pytest.mark.parametrize("program", ["head", "bash"])
async def test_no_program_of_the_sandbox_reads_the_reward(judge: Judge, program: str) -> None:
    """The tests run the agent's work, with the right to replace programs."""
    work = (
        f"printf '#!/bin/sh\\necho 1\\n' >/tmp/x; chmod +x /tmp/x; rm -f /bin/{program}; cp /tmp/x /usr/bin/{program}"
    )
    assert (await judge(f"{work}; echo 0 > {REWARD}.txt", seen=Seen.WORKSPACE)).reward == 0.0


async def test_a_program_that_the_agent_replaced_decides_nothing_if_the_workspace_alone_is_seen(judge: Judge) -> None:
    test = f'if [ "$(cat answer.txt)" = Rhine ]; then echo 1; else echo 0; fi > {REWARD}.txt'
    fake = "echo wrong > answer.txt; printf '#!/bin/sh\\necho Rhine\\n' > /usr/bin/cat"
    assert (await judge(test, run=fake, seen=Seen.WORKSPACE)).reward == 0.0
    assert (await judge(test, run="echo Rhine > answer.txt", seen=Seen.WORKSPACE)).reward == 1.0


@pytest.mark.parametrize(
    "config", [{"reward": 1}, {"reward": ""}, {"without_reward": None}, {"timeout_s": 0}, {"command": "x"}]
)
def test_bad_settings_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"evaluator\.config"):
        Harbor(config)
