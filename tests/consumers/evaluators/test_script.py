"""The reward is what the command wrote, and nothing else: a failure is 0 or no reward, by whose fault it can be."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.evaluators.base import Case, EvaluationError, Protecting
from consumers.evaluators.command import OUTPUT
from consumers.evaluators.reward_files import SCORES, SIZE_LIMIT, BadRewardError, Reward, from_json, from_text
from consumers.evaluators.script import Script
from consumers.runtimes.base import Exec, SandboxError
from topics.types.errors import InputError

contract = pytest.mark.contract
WRITE = 'cat >"$POLAR_REWARD_DIR/{name}" <<"END"\n{text}\nEND\n'


def written(**files: str) -> str:
    """A command that writes `reward.<suffix>` files."""
    return "".join(WRITE.format(name=f"reward.{suffix}", text=text) for suffix, text in files.items())


@pytest.mark.parametrize(
    ("data", "reward"),
    [
        ("1", Reward(1.0)),
        (" -2.5e-3\n", Reward(-0.0025)),
        ("1000000", Reward(1e6)),
        ('{"reward": 0}', Reward(0.0)),
        ('{"reward": 0.5, "style": 1, "tests": 0.25}', Reward(0.5, {"style": 1.0, "tests": 0.25})),
    ],
)
def test_a_number_or_an_object_with_it_is_a_reward(data: str, reward: Reward) -> None:
    assert from_json(data.encode()) == reward


BAD_JSON = [
    *(
        "NaN",
        "Infinity",
        "-Infinity",
        "1e999",
        "true",
        "null",
        '"1"',
        "[1]",
        "1 2",
        "one",
        "{",
        "[" * 100_000,
        "1" * 5000,
    ),
    *("{}", '{"score": 1}', '{"reward": true}', '{"reward": NaN}', '{"reward": "1"}', '{"reward": null}'),
    *('{"reward": 1, "style": NaN}', '{"reward": 1, "style": "good"}', '{"reward": 1, "scores": {"a": 1}}', "1" * 400),
]


@pytest.mark.parametrize("data", BAD_JSON, ids=lambda data: data[:30])
def test_what_is_no_finite_number_is_no_reward(data: str) -> None:
    with pytest.raises(BadRewardError) as raised:
        from_json(data.encode())
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize(
    "data", ["nan", "inf", "-inf", "True", "one", "1_000", "1 2", "0x1", "1e999", "१", "1,5", "e5", "."]
)
def test_text_that_is_no_finite_number_is_no_reward(data: str) -> None:
    with pytest.raises(BadRewardError, match="must hold a finite number"):
        from_text(data.encode())


@given(
    st.binary(max_size=50)
    | st.text(max_size=50).map(str.encode)
    | st.sampled_from([b"1", b"0.5", b"[1]", b"\xff\xfe1\0"])
)
def test_any_bytes_are_a_finite_reward_or_none(data: bytes) -> None:
    for read in (from_json, from_text):
        try:
            reward = read(data)
        except BadRewardError:
            continue
        assert math.isfinite(reward.value)
        assert all(map(math.isfinite, reward.scores.values()))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_reward_is_read_back_as_it_was_written(reward: float) -> None:
    assert from_text(repr(reward).encode()).value == from_json(json.dumps(reward).encode()).value == reward


@contract
async def test_the_reward_is_that_of_the_command_with_its_scores(case: Case) -> None:
    verdict = await Script({"command": 'echo "$GREETING"\n' + written(json='{"reward": 3.5, "style": 0.5}')}).evaluate(
        case
    )
    assert (verdict.reward, verdict.reason, verdict.artifacts[OUTPUT]) == (3.5, "scores: style 0.5", b"hi\n")
    assert json.loads(verdict.artifacts[SCORES]) == {"style": 0.5}


@contract
@pytest.mark.parametrize(
    ("command", "reward"),
    [
        (written(txt="-0.25"), -0.25),
        (written(json="1", txt="0"), 1.0),
        (written(txt="0", json=""), 0.0),
    ],
)
async def test_reward_json_counts_before_reward_txt(case: Case, command: str, reward: float) -> None:
    assert (await Script({"command": command}).evaluate(case)).reward == reward


@contract
async def test_the_folder_is_new_each_time_and_empty(case: Case) -> None:
    """What an earlier command wrote, or the run into folders of its own, is no reward."""
    await case.runtime.exec(Exec("for at in . .. ~; do echo 1 >$at/reward.txt; echo 1 >$at/reward.json; done"))
    outputs = set()
    for _ in range(2):
        verdict = await Script({"command": 'echo "$POLAR_REWARD_DIR"; cat "$POLAR_REWARD_DIR"/*'}).evaluate(case)
        assert (verdict.reward, "wrote neither" in (verdict.reason or "")) == (0.0, True)
        folder = PurePosixPath(verdict.artifacts[OUTPUT].decode().strip())
        assert folder.is_relative_to(case.runtime.home)
        outputs.add(folder)
        await Script({"command": written(txt="1")}).evaluate(case)
    assert len(outputs) == 2


@contract
@pytest.mark.parametrize(
    "command",
    [
        written(json="NaN"),
        written(json="true", txt="1"),
        written(txt="good"),
        'mkdir "$POLAR_REWARD_DIR/reward.json"',
        'ln -s /etc/passwd "$POLAR_REWARD_DIR/reward.json"',
        f'head -c {SIZE_LIMIT + 1} /dev/zero >"$POLAR_REWARD_DIR/reward.json"',
    ],
)
async def test_what_is_no_reward_is_worth_0_or_none_if_the_agent_cannot_cause_it(case: Case, command: str) -> None:
    verdict = await Script({"command": command}).evaluate(case)
    assert verdict.reward == 0.0
    assert "reward" in (verdict.reason or "")
    with pytest.raises(EvaluationError, match="reward") as raised:
        await Script({"command": command, "reads_files_of_the_run": False}).evaluate(case)
    assert raised.value.code == "bad_reward"


@contract
async def test_files_that_a_grader_cannot_read_turn_no_bad_reward_into_none(case: Case) -> None:
    """A pipe that nobody writes, a folder, a link to nothing: the agent's work, whatever the command makes of them."""
    grader = 'cat answer >/dev/null && echo 1 >"$POLAR_REWARD_DIR/reward.txt"'
    for left in ("mkfifo answer", "mkdir answer", "ln -s nowhere answer"):
        await case.runtime.exec(Exec(f"rm -rf answer; {left}"))
        verdict = await Script({"command": grader, "timeout_s": 0.5}).evaluate(case)
        assert verdict.reward == 0.0, left


@contract
async def test_a_pipe_in_the_rewards_place_holds_none_and_blocks_nothing(case: Case) -> None:
    verdict = await Script({"command": 'mkfifo "$POLAR_REWARD_DIR/reward.json"'}).evaluate(case)
    assert (verdict.reward, "wrote neither" in (verdict.reason or "")) == (0.0, True)


FAILURES = {
    "command_timeout": ("echo begun; " + written(txt="1") + "sleep 60", "was stopped. It didn't end within"),
    "command_failed": ("echo begun; " + written(txt="1") + "exit 3", "ended with exit code 3"),
    "no_reward_file": ("echo begun", "wrote neither reward.json nor reward.txt"),
}


@contract
@pytest.mark.parametrize(("code", "command", "why"), [(code, *how) for code, how in FAILURES.items()])
async def test_a_failure_that_the_agent_can_cause_is_worth_0(case: Case, code: str, command: str, why: str) -> None:
    timeout_s = 0.5 if code == "command_timeout" else 30
    verdict = await Script({"command": command, "timeout_s": timeout_s}).evaluate(case)
    assert verdict.reward == 0.0
    assert why in (verdict.reason or "")


@contract
@pytest.mark.parametrize(("code", "command", "why"), [(code, *how) for code, how in FAILURES.items()])
async def test_a_failure_of_the_command_alone_is_no_reward(case: Case, code: str, command: str, why: str) -> None:
    config = {"command": command, "reads_files_of_the_run": False}
    with pytest.raises(EvaluationError, match=why) as raised:
        await Script(config).evaluate(replace(case, budget_s=1.0 if code == "command_timeout" else 60.0))
    assert raised.value.code == code
    assert raised.value.artifacts.keys() == {OUTPUT}


@contract
@pytest.mark.parametrize("reads_files_of_the_run", [True, False])
async def test_a_program_that_the_worker_lacks_is_no_reward(
    case: Case, reads_files_of_the_run: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with pytest.raises(EvaluationError, match="no folder of PATH has the program 'no-such-grader'") as raised:
        await Script({"command": "no-such-grader", "reads_files_of_the_run": reads_files_of_the_run}).evaluate(case)
    assert raised.value.code == "command"


@contract
@pytest.mark.parametrize("backend", ["process"], indirect=True)
async def test_a_workspace_that_is_gone_is_worth_0_whoever_runs(case: Case) -> None:
    await case.runtime.exec(Exec("rm -rf ../workspace"))
    verdict = await Script({"command": written(txt="1"), "reads_files_of_the_run": False}).evaluate(case)
    assert verdict.reward == 0.0
    assert "couldn't be started in the workspace that the run left" in (verdict.reason or "")


@contract
async def test_a_failure_of_the_machine_is_no_verdict(case: Case) -> None:
    with pytest.raises(SandboxError, match="bash"):
        await Script({"command": "true"}).evaluate(replace(case, env={"PATH": "/no"}))


@contract
async def test_its_protected_files_are_put_back(case: Case) -> None:
    script: Protecting = Script({"command": '. ./grade.sh >"$POLAR_REWARD_DIR/reward.txt"', "protected": ["grade.sh"]})
    await case.runtime.write_file("grade.sh", b"echo 0.5\n")
    await script.keep(case.runtime)
    await case.runtime.write_file("grade.sh", b"echo 1\n")
    assert await script.restore(case.runtime) is None
    assert (await script.evaluate(case)).reward == 0.5


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({}, "command"),
        ({"command": " "}, "command"),
        ({"command": ["a"]}, "command"),
        ({"command": "a", "timeout_s": True}, "timeout_s"),
        ({"command": "a", "timeout_s": 10**400}, "timeout_s"),
        ({"command": "a", "reads_files_of_the_run": "no"}, "reads_files_of_the_run"),
        ({"command": "a", "protected": "tests"}, "protected"),
        ({"command": "a", "reward": 1}, "reward"),
    ],
)
def test_a_bad_config_is_refused_by_field(config: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError, match=rf"evaluator\.config\.{field}:"):
        Script(config)
