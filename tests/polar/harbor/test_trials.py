"""What a trial of Harbor's is called in Polar, and which reward it has."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.harbor import trials
from topics.types import ids


@given(st.text(), st.text())
def test_every_name_of_harbor_s_gives_a_valid_task_and_run(job: str, task: str) -> None:
    assert re.fullmatch(ids.TASK_ID, trials.task_id(job, task) + "-0123456789ab"), "also with the addition of a retry"
    assert re.fullmatch(ids.RUN, trials.run(task))


def test_a_group_is_one_task_of_one_job_and_agent() -> None:
    group = trials.task_id("job", "org/fix it", "path", "agent")
    assert group.startswith("org-fix-it-")
    assert group == trials.task_id("job", "org/fix it", "path", "agent")
    others = [
        ("other", "org/fix it", "path", "agent"),
        ("job", "org/fix it", "path2", "agent"),
        ("job", "org/fix it", "path", "a"),
    ]
    assert len({group, *(trials.task_id(*other) for other in others)}) == 4


@pytest.mark.parametrize(
    ("rewards", "reward"),
    [
        (None, None),
        ({}, None),
        ({"reward": 1}, 1.0),
        ({"tests": 0.5}, 0.5),
        ({"tests": 0.5, "reward": 0.25}, 0.25),
        ({"tests": 0.5, "style": 1.0}, None),
        ({"reward": float("nan")}, None),
        ({"tests": float("inf")}, None),
        ({"reward": 10**400}, None),
    ],
)
def test_the_reward_is_the_named_one_or_the_only_one(rewards: dict[str, float] | None, reward: float | None) -> None:
    assert trials.reward(rewards) == reward
    assert trials.reward({"tests": 0.5, "style": 1.0}, "style") == 1.0
