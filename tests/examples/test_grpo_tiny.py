"""The parts of the GRPO example that need no engine: its agent and evaluator in real sandboxes, its tasks, its checkpoints."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from consumers.evaluators.base import Case
from consumers.runtimes.base import Exec, Labels
from consumers.runtimes.prepare import prepare
from consumers.runtimes.process import ProcessBackend
from examples.grpo_tiny import agent, checkpoint, picture, report
from examples.grpo_tiny.checkpoint import State
from examples.grpo_tiny.evaluator import Repaired
from examples.grpo_tiny.report import HeldOut, Result, unjudged
from examples.grpo_tiny.requests import Work
from examples.grpo_tiny.rollouts import Waiting, malformed
from examples.tiny_model.demonstrations import KINDS, Message, Session
from examples.tiny_model.tasks import HELD_OUT, draw
from examples.trl_grpo.curve import curve
from polar.trainer import Group
from tests.serving import serving
from tests.uploading import submitted
from topics.environment.blobs import FolderBlobs
from topics.types.errors import InputError, NotReadyError
from topics.types.session import Status
from topics.types.trajectory import Trajectory

pytestmark = pytest.mark.contract


def saying(messages: Sequence[Message]) -> AbstractContextManager[tuple[str, object]]:
    """A stand-in for the model's endpoint: one prepared message an answer."""
    remaining = iter([message for message in messages if message["role"] == "assistant"])

    def answer(_: object) -> tuple[int, object]:
        message = next(remaining)
        calls = [
            {"id": "call-1", "type": "function",
             "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
            for call in message.get("tool_calls", [])
        ]  # fmt: skip
        choice = {"message": {"content": message["content"], "tool_calls": calls}, "finish_reason": "stop"}
        return 200, {"choices": [choice]}

    return serving(answer)


REWARDS = {"good": 1.0, "unverified": 0.5, "wrong_value": 0.0, "lazy": 0.0, "browsing": 0.0, "malformed": 0.0}


@pytest.mark.parametrize(("kind", "reward"), REWARDS.items())
async def test_a_session_earns_what_it_did(kind: str, reward: float, tmp_path: Path) -> None:
    """The agent as a process in a sandbox that the task has made, told by a stand-in what a demonstration says; then the evaluator."""
    [request] = Work(3).step(1, 1)
    session = Session(draw(random.Random("3 step 1")))
    assert session.task.request == request.instruction
    KINDS[kind](session, random.Random(1))
    runtime = await ProcessBackend(tmp_path).create(Labels("polar", "s", 1, "claim"), request.runtime)
    blobs = FolderBlobs(tmp_path / "blobs")
    await prepare(runtime, submitted(request, blobs).runtime.prepare, blobs)
    await runtime.write_file("../home/request", request.instruction.encode())
    assert request.agent.custom_shell is not None
    with saying(session.messages) as (url, _):
        env = {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "key"}
        command = request.agent.custom_shell.command
        done = await runtime.exec(Exec(command, env=env, stdin="../home/request", timeout_s=60))
    assert done.exit_code == (agent.MALFORMED if kind == "malformed" else 0), done.output_end
    case = Case(runtime, "s", Status.COMPLETED, done.exit_code, None, {})
    assert (await Repaired(request.evaluator.config).evaluate(case)).reward == reward
    await runtime.remove()


@pytest.mark.parametrize(
    ("status", "exit_code"), [(Status.FAILED, 1), (Status.FAILED, -9), (Status.TIMED_OUT, None), (Status.FAILED, None)]
)
async def test_what_the_machinery_did_to_a_session_is_no_reward(
    status: Status, exit_code: int | None, tmp_path: Path
) -> None:
    runtime = await ProcessBackend(tmp_path).create(Labels("polar", "s", 1, "claim"), Work(3).step(1, 1)[0].runtime)
    verdict = await Repaired({"goal": {"app.py": "x"}}).evaluate(Case(runtime, "s", status, exit_code, None, {}))
    assert verdict.reward is None
    await runtime.remove()


def test_malformed_are_sessions_that_failed_and_were_judged() -> None:
    """The evaluator judges no other that failed."""
    rewards = [1.0, 0.0, 0.0, None, None]
    statuses = [Status.COMPLETED, Status.COMPLETED, Status.FAILED, Status.FAILED, Status.TIMED_OUT]
    trajectories = [
        Trajectory(f"s{at}", "t", at, 5, 1, status, "prefix_merging", "shell", reward)
        for at, (status, reward) in enumerate(zip(statuses, rewards, strict=True))
    ]
    assert malformed(trajectories) == 1
    assert unjudged(rewards) == 2
    told = HeldOut([1.0, 0.0, None], 1, 30.0)
    assert str(told) == "mean reward 0.500 of 3 sessions, 1 malformed, 1 not judged"


def test_a_goal_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match=r"evaluator\.config\.goal"):
        Repaired({"goal": {"app.py": 3}})


def test_a_step_is_the_same_tasks_again_and_another_step_others() -> None:
    bodies = [[request.canonical() for request in Work(1).step(number, 12)] for number in (1, 1, 2)]
    assert bodies[0] == bodies[1]
    assert not set(bodies[0]) & set(bodies[2])
    assert [request.canonical() for request in Work(2).step(1, 12)] != bodies[0]


@pytest.mark.parametrize("sessions", [0, -4, 2, 6])
def test_an_evaluation_of_no_whole_groups_is_refused(sessions: int) -> None:
    with pytest.raises(InputError, match=rf"held_out: .*multiple of 4 .*got {sessions}"):
        Work(1).held_out("before", sessions)


@pytest.mark.parametrize("prompts", [0, -1])
def test_a_step_without_tasks_is_refused(prompts: int) -> None:
    with pytest.raises(InputError, match=rf"prompts: .*1 or more .*got {prompts}"):
        Work(1).step(1, prompts)


def test_waiting_for_groups_ends_when_none_comes_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("examples.grpo_tiny.rollouts.time.monotonic", lambda: now)
    waiting = Waiting(10.0, lambda: None)
    now = 9.0
    waiting.check()
    waiting(Group("t", []), Counter())
    now = 18.0
    waiting.check()
    now = 20.0
    with pytest.raises(NotReadyError, match="no group came for 10 s"):
        waiting.check()


def test_waiting_for_groups_ends_when_a_program_has() -> None:
    def check() -> None:
        raise NotReadyError("polar worker ended with -9")

    with pytest.raises(NotReadyError, match="worker ended"):
        Waiting(10.0, check).check()


def test_an_evaluation_is_of_all_held_out_pairs() -> None:
    requests = Work(1).held_out("before", 256)
    assert sum(request.num_samples for request in requests) == 256
    assert len({request.instruction for request in requests}) == len(HELD_OUT)
    assert {request.mode for request in requests} == {"eval"}


def test_a_checkpoint_counts_once_it_is_finished(tmp_path: Path) -> None:
    assert checkpoint.newest(tmp_path) is None
    steps = [step(number) for number in range(1, 5)]
    for version in range(1, 4):
        made = checkpoint.begin(tmp_path, version)
        (made / "weights").write_text(str(version))
        checkpoint.finish(made, State(steps[:version], {"position": version}))
    checkpoint.begin(tmp_path, 4)  # and killed
    newest = checkpoint.newest(tmp_path)
    assert newest is not None
    assert checkpoint.read(newest) == State(steps[:3], {"position": 3})
    assert (newest / "weights").read_text() == "3"
    again = checkpoint.begin(tmp_path, 4)
    assert not list(again.iterdir())
    assert len(list(tmp_path.glob("step-*[0-9]"))) == checkpoint.KEPT


def test_the_picture_holds_every_curve() -> None:
    curves = [picture.Curve(name, [0.1, 0.5], [0.1, 0.9], 0.1, 0.95) for name in ("seed 1", "per <request>")]
    root: Any = ElementTree.fromstring(picture.svg(curves))
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "per <request>: held out 0.10 → 0.95" in texts
    assert len(root.findall("{http://www.w3.org/2000/svg}polyline")) == 2


def test_a_curve_of_trls_log() -> None:
    rewards = [0.1, 0.2, 0.3, 0.4, 0.5, 0.9]
    steps = [
        {"step": at, "reward": reward, "sampling/sampling_logp_difference/max": at * 1e-6}
        for at, reward in enumerate(rewards, 1)
    ]
    log = [
        {"step": 0, "eval_reward": 0.15},
        *steps,
        {"step": 6, "eval_reward": 0.95},
        {"step": 6, "train_runtime": 1.0},
    ]
    drawn, told = curve(log)
    assert (drawn.before, drawn.after, drawn.raw) == (0.15, 0.95, rewards)
    assert drawn.smooth == pytest.approx([0.1, 0.15, 0.2, 0.25, 0.3, 0.46])
    assert told.splitlines() == [
        "0 updates: held out 0.150",
        "6 updates: held out 0.950",
        "largest sampling_logp_difference of 6 batches: 6.0e-06",
    ]
    with pytest.raises(ValueError, match="1 evaluations, and a curve needs two"):
        curve(log[:3])


def test_the_step_that_two_trainers_did_is_in_no_mean_of_seconds() -> None:
    """Its sessions had run before the second one asked for them."""
    steps = [step(1, rollouts=20.0), step(2, rollouts=0.5), step(3, rollouts=22.0)]
    told = report.text([result(steps, killed_at=2)])
    assert "| seed 1, killed at 2 | 21.00 |" in told
    assert "seconds of a step without step 2" in told
    assert "| seed 1 | 14.17 |" in report.text([result(steps)])


def test_an_evaluation_tells_something_while_few_were_not_judged() -> None:
    assert HeldOut([1.0] * 98 + [None] * 2, 0, 30.0).tells
    assert not HeldOut([1.0] * 97 + [None] * 3, 0, 30.0).tells


def test_a_report_hides_neither_who_was_not_judged_nor_what_was_not_compared() -> None:
    told = report.text([result([step(1)], after=HeldOut([1.0, 0.5, None, 1.0], 1, 30.0))])
    assert "| seed 1 | 0.750 → 0.833 | 0.500 → 0.667 | 0.500 → 0.250 | 0, 1 |" in told
    assert "not proven" in told
    assert "| 1.0e-05 |" in report.text([result([step(1)], last=2e-6)])
    assert "| 2.0e-04 |" in report.text([result([step(1)], last=2e-4)])


def result(
    steps: list[checkpoint.Step],
    killed_at: int | None = None,
    after: HeldOut | None = None,
    last: float | None = None,
) -> Result:
    before = HeldOut([0.5, 1.0], 1, 30.0)
    seconds = {"training": 90.0}
    return Result(1, "prefix_merging", killed_at, before, after or before, seconds, {"vLLM": 60.0}, steps, last)


def step(number: int, **seconds: float) -> checkpoint.Step:
    rewards: dict[str, float | None] = {f"step-{number}-0.0": 0.5}
    return checkpoint.Step(number, rewards, 1, 4, 8, 100, 50, 50, 1e-5, 1e-6, 0.1, seconds or {"update": 1.5}, 0.0)
