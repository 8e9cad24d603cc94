"""What the tiny model is shown: its tasks, and sessions whose tools answer as the agent's own do."""

from __future__ import annotations

import random
import re
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from examples.grpo_tiny import agent
from examples.grpo_tiny.requests import Work
from examples.tiny_model.demonstrations import KINDS, MIX, TURNS, demonstration, snippet
from examples.tiny_model.tasks import FILES, HELD_OUT, KEYS, TRAINED, VALUES, draw
from topics.types.task import parse

pytestmark = pytest.mark.contract

TASK = Path(__file__).parents[2] / "examples" / "tiny_model"


def test_a_fifth_of_the_pairs_is_held_out() -> None:
    assert sorted(TRAINED + HELD_OUT) == sorted((key, value) for key in KEYS for value in VALUES)
    assert len(HELD_OUT) == len(KEYS) * len(VALUES) // 5


def test_no_key_is_part_of_another() -> None:
    assert not [(one, other) for one in KEYS for other in KEYS if one != other and one in other]


def test_nothing_that_is_trained_asks_for_a_held_out_pair() -> None:
    rng = random.Random(5)
    asked = {message["content"] for _ in range(2000) for message in (demonstration(rng)[0], snippet(rng)[0])}
    held_out = {f"The test fails: {key} must be {value}. Fix it." for key, value in HELD_OUT}
    assert not asked & held_out
    assert {request.instruction for request in Work(1).held_out("before", 256)} <= held_out


def test_a_task_differs_from_its_goal_in_one_line() -> None:
    for seed in range(200):
        task = draw(random.Random(seed))
        changed = [name for name, text in task.files.items() if task.goal[name] != text]
        assert changed == [task.path]
        assert set(task.files) <= set(FILES)
        before, after = task.files[task.path].splitlines(), task.goal[task.path].splitlines()
        assert sum(one != other for one, other in zip(before, after, strict=True)) == 1


@pytest.mark.parametrize("kind", MIX)
def test_the_tools_of_demonstrations_answer_as_the_agents_do(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same calls in a real folder, with the agent's own tools."""
    seed = 0
    while not any("tool_calls" in message for message in demonstration(random.Random(seed), kind)):
        seed += 1
    task, messages = draw(random.Random(seed)), demonstration(random.Random(seed), kind)
    for name, text in {**task.files, "Makefile": _makefile(task.key, task.value, task.path)}.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    for asked, answered in pairwise(messages):
        for call in asked.get("tool_calls", []):
            function = call["function"]
            assert agent.TOOLS[function["name"]](**function["arguments"]) == answered["content"]


def test_demonstrations_are_of_every_kind_and_within_the_turns() -> None:
    assert set(KINDS) == set(MIX)
    rng = random.Random(9)
    for _ in range(500):
        messages = demonstration(rng)
        assert sum(message["role"] == "assistant" for message in messages) <= TURNS


def _makefile(key: str, value: int, path: str) -> str:
    return f"test:\n\t@grep -qx '{key} = {value}' {path}\n"


def test_the_task_to_submit_is_of_the_kind_that_it_knows_and_can_be_done(tmp_path: Path) -> None:
    request = parse(yaml.safe_load((TASK / "task.yaml").read_text()))
    uploaded, written = request.runtime.prepare
    assert uploaded.source is not None
    assert (TASK / uploaded.source).resolve() == Path(agent.__file__).resolve()
    assert written.command is not None
    subprocess.run(["sh", "-c", written.command], cwd=tmp_path, check=True)
    files = {path.name: path.read_text() for path in sorted(tmp_path.glob("*.py"))}
    wanted = re.fullmatch(r"The test fails: (\w+) must be (\d+)\. Fix it\.", request.instruction)
    assert wanted is not None
    assert (wanted[1], int(wanted[2])) in TRAINED
    [path] = [name for name, text in files.items() if wanted[1] in text]
    assert set(files) <= set(FILES)
    assert not passes(request.evaluator.config["test_command"], tmp_path)
    (tmp_path / path).write_text(re.sub(rf"{wanted[1]} = \d+", f"{wanted[1]} = {wanted[2]}", files[path]))
    assert passes(request.evaluator.config["test_command"], tmp_path)


def passes(command: object, folder: Path) -> bool:
    return subprocess.run(["sh", "-c", str(command)], cwd=folder, capture_output=True, check=False).returncode == 0
