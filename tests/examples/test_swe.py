"""The twelve tasks of examples/swe, in cells: reference solutions get 1.0; nothing, and what breaks a test, get 0.0."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumers.runtimes.base import RuntimeBackend
from tests.examples.swe import NAMES, RUNS, TASKS, evaluated, imported, language, skip_without_programs, solution

ALWAYS = "durations"
"""The other tasks are of tier hard: Go may have to build its standard library in each new home (examples/swe/README.md)."""


@pytest.mark.parametrize(
    ("name", "file"),
    [
        pytest.param(
            name,
            file,
            marks=pytest.mark.contract if name == ALWAYS else pytest.mark.hard,
            id=f"{name} {file or 'nothing'}",
        )
        for name in NAMES
        for file in RUNS
    ],
)
async def test_a_task_gives_the_reward_of_what_the_run_did(
    backend: RuntimeBackend, tmp_path: Path, name: str, file: str
) -> None:
    skip_without_programs(name)
    verdict = await evaluated(backend, tmp_path, imported(name, "host.yaml"), solution(name, file) if file else "true")
    output = verdict.artifacts.get("evaluation_output", b"").decode()
    assert verdict.reward == RUNS[file], output
    if file == "breaking.sh":
        broken = output.partition("not passed: ")[2]
        assert any(test in broken for test in listed(name, "pass_to_pass")), output


@pytest.mark.contract
@pytest.mark.parametrize("file", RUNS)
async def test_a_task_with_an_image_gives_the_same_reward(
    image_backend: RuntimeBackend, tmp_path: Path, file: str
) -> None:
    command = solution(ALWAYS, file) if file else "true"
    verdict = await evaluated(image_backend, tmp_path, imported(ALWAYS, "image.yaml"), command)
    assert verdict.reward == RUNS[file], verdict.artifacts.get("evaluation_output")


def listed(name: str, which: str) -> list[str]:
    return (TASKS / name / "tests" / f"{which}.txt").read_text().splitlines()


@pytest.mark.parametrize("name", NAMES)
def test_a_task_is_whole_and_can_run_with_and_without_its_image(name: str) -> None:
    with_image, without = imported(name, "image.yaml"), imported(name, "host.yaml")
    assert with_image.evaluator.strategy == without.evaluator.strategy == "script"
    assert with_image.runtime.image
    assert without.runtime.image is None
    assert with_image.instruction == without.instruction
    assert listed(name, "fail_to_pass")
    assert listed(name, "pass_to_pass")


def test_there_are_three_tasks_in_each_of_four_languages() -> None:
    found = sorted(map(language, NAMES))
    assert found == sorted(["c", "go", "javascript", "python"] * 3)
