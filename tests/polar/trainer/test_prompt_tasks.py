"""Ids and bodies of the tasks that a trainer requests."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.trainer.prompt_tasks import OURS, Mode, PromptTasks, StepPlaces
from topics.types.errors import InputError
from topics.types.task import TaskRequest


def body(prompt: str, **more: Any) -> dict[str, Any]:
    return {"instruction": prompt, "agent": {"harness": "pi"}, **more}


def request(
    prompt: str = "p", place: str = "3-0-1", *, run: str = "r1", mode: Mode = "train", **more: Any
) -> TaskRequest:
    tasks: PromptTasks[str] = PromptTasks(lambda text: body(text, **more), run=run)
    return tasks.request(prompt, place, samples=4, mode=mode, temperature=0.7)


def test_a_task_has_the_trainer_s_numbers() -> None:
    made = request()
    assert (made.num_samples, made.mode, made.run, made.sampling.temperature) == (4, "train", "r1", 0.7)
    assert made.task_id.startswith("r1-3-0-1-")
    assert request(mode="eval").task_id.startswith("r1-eval-3-0-1-")


@given(st.text(min_size=1).filter(str.strip), st.text(min_size=1).filter(str.strip))
def test_equal_prompts_at_one_place_are_one_task_and_others_are_not(one: str, other: str) -> None:
    assert (request(one).task_id == request(other).task_id) == (one == other)
    assert request(one).task_id != request(one, "3-0-2").task_id


@pytest.mark.parametrize("name", OURS)
def test_a_field_of_the_trainer_is_refused(name: str) -> None:
    tasks: PromptTasks[str] = PromptTasks(lambda text: body(text) | {name: "x"}, run="r1")
    with pytest.raises(InputError, match=f"{name}: follows from the trainer's configuration"):
        tasks.request("p", "0", samples=1, mode="train", temperature=1.0)


def test_another_temperature_is_for_evaluations_alone() -> None:
    assert request(mode="eval", sampling={"temperature": 0.0}).sampling.temperature == 0.0
    with pytest.raises(InputError, match=r"sampling\.temperature: must be the trainer's temperature, which is 0\.7"):
        request(sampling={"temperature": 0.0})


@pytest.mark.parametrize("run", ["", "-r", "a b", "x" * 65])
def test_a_run_s_name_begins_a_task_s_id(run: str) -> None:
    with pytest.raises(InputError, match="run: must match"):
        request(run=run)


def test_places_count_the_calls_of_a_step() -> None:
    places = StepPlaces()
    calls: list[tuple[int, Mode, int]] = [
        (1, "train", 2),
        (1, "train", 1),
        (1, "eval", 1),
        (1, "train", 1),
        (2, "train", 1),
    ]
    assert [places(*call) for call in calls] == [["1-0-0", "1-0-1"], ["1-1-0"], ["1-0-0"], ["1-2-0"], ["2-0-0"]]
