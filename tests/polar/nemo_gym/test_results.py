"""Trajectories as results of NeMo Gym: a measurement, or masked with its reason."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from polar.nemo_gym.results import overdue, result
from polar.trainer.exporters.nemo import results
from polar.trainer.groups import Group
from tests.polar.trainer.exporters.conftest import group as branched_group
from tests.polar.trainer.exporters.conftest import linear as linear_group
from topics.types.errors import Kind, SessionError
from topics.types.session import Status

group, linear = branched_group, linear_group
"""The exporters' fixtures."""
ROW = {"responses_create_params": {"input": "x"}, "instance_config": {"own": 1}}


def test_a_rewarded_session_has_the_exporter_s_response_and_isn_t_masked(linear: Group) -> None:
    first = linear.trajectories[0]
    made = result(ROW, first, "refuse")
    (exported,) = results(Group(first.task_id, [first]), task_index=0)
    assert (made["response"], made["reward"]) == (exported["response"], 1.0)
    assert made["responses_create_params"] == ROW["responses_create_params"]
    assert (made["polar_session_id"], made["polar_status"]) == (first.session_id, "COMPLETED")
    assert "mask_sample" not in made
    assert "failure_kind" not in made


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (Status.COMPLETED, "verifier_error"),
        (Status.FAILED, "agent_run_error"),
        (Status.TIMED_OUT, "agent_timeout"),
        (Status.CANCELLED, "cancelled"),
    ],
)
def test_a_session_without_a_reward_is_masked_with_its_kind(linear: Group, status: Status, kind: str) -> None:
    made = result(ROW, replace(linear.trajectories[0], reward=None, status=status), "refuse")
    assert (made["reward"], made["mask_sample"], made["failure_kind"]) == (0.0, True, kind)
    assert made["instance_config"] == {"own": 1, "mask_sample": True}
    assert made["response"]["output"] == []


def test_a_failed_evaluation_is_no_failure_of_the_agent(linear: Group) -> None:
    error = SessionError("evaluate", Kind.EVALUATION, "command_failed", "the command ended with exit code 1")
    failed = replace(linear.trajectories[0], reward=None, status=Status.FAILED, error=error)
    assert result(ROW, failed, "refuse")["failure_kind"] == "verifier_error"


def test_a_session_that_timed_out_with_a_reward_counts_and_says_so(linear: Group) -> None:
    error = SessionError("run", Kind.BUDGET, "timeout", "the agent ran for 5 s")
    made = result(ROW, replace(linear.trajectories[0], status=Status.TIMED_OUT, error=error), "refuse")
    assert (made["reward"], made["failure_kind"]) == (1.0, "agent_timeout")
    assert "the agent ran for 5 s" in made["failure_reason"]
    assert "mask_sample" not in made


def test_a_session_that_branched_is_masked_or_its_longest_trace(group: Group) -> None:
    (first, *_) = [one for one in group.trajectories if len(one.traces) > 1]
    made = result(ROW, first, "refuse")
    assert (made["mask_sample"], made["failure_kind"]) == (True, "polar:untrainable")
    assert "mask_sample" not in result(ROW, first, "longest")


def test_a_result_that_is_verified_again_keeps_nothing_of_its_earlier_outcome(linear: Group) -> None:
    masked = overdue(ROW, "t.0", "late")
    made = result(masked, linear.trajectories[0], "refuse")
    assert made["reward"] == 1.0
    assert made["instance_config"] == {"own": 1}
    assert not {"mask_sample", "failure_kind", "failure_reason"} & made.keys()


def test_a_late_session_is_masked() -> None:
    made = overdue(ROW, "t.0", "t didn't end")
    assert (made["mask_sample"], made["failure_kind"], made["failure_reason"]) == (
        True,
        "agent_timeout",
        "t didn't end",
    )
