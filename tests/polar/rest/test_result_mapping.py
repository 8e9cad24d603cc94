"""Trajectories as NVIDIA's results: every trained token, once, with its logprob and its reward. Pure."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.rest.result_mapping import PHASES, STATUSES, session_result, session_status, task_document
from tests.polar.trainer.trees import trees
from topics.types.errors import Kind, SessionError
from topics.types.session import Phase, SessionState, Status
from topics.types.tokens import pack_logprobs
from topics.types.trajectory import Trajectory, expand


def row_of(trajectory: Trajectory, **more: Any) -> SessionState:
    return SessionState(trajectory.session_id, trajectory.task_id, 0, Phase.ENDED, 1, status=trajectory.status, **more)


@given(trees(updated=True, rewards=st.sampled_from([0.0, 1.0])))
def test_each_trained_token_is_there_once_with_its_logprob(trajectory: Trajectory) -> None:
    found = msgspec.json.decode(msgspec.json.encode(session_result(trajectory, row_of(trajectory))))
    expected = {}
    for trace in trajectory.traces:
        expanded = expand(trajectory, trace)
        for token, mask, logprob in zip(expanded.token_ids, expanded.loss_mask, expanded.logprobs, strict=True):
            if mask:
                expected[int(token)] = float(logprob)
    trained = {}
    for trace in found["trajectory"]["traces"]:
        response = (trace["response_ids"], trace["loss_mask"], trace["response_logprobs"])
        assert len({len(one) for one in response}) == 1
        assert trace["prompt_ids"]
        assert trace["loss_mask"][0] == 1
        assert trace["reward"] == trajectory.reward
        for token, mask, logprob in zip(*response, strict=True):
            if mask:
                assert token not in trained
                trained[token] = logprob
            else:
                assert logprob == 0.0
    assert trained == expected
    assert (found["status"], found["trajectory"]["status"], found["error"]) == ("COMPLETED", "COMPLETED", None)


def simple(**more: Any) -> Trajectory:
    return Trajectory("t.0", "t", 0, 1, 1, Status.COMPLETED, "prefix_merging", "shell", **more)


@pytest.mark.parametrize(
    ("status", "expected", "text"),
    [
        (Status.COMPLETED, "COMPLETED", None),
        (Status.FAILED, "ERROR", "run: it broke"),
        (Status.TIMED_OUT, "TIMEOUT", "session execution timeout"),
        (Status.CANCELLED, "ERROR", "session cancelled"),
    ],
)
def test_an_end_has_their_status_and_a_text(status: Status, expected: str, text: str | None) -> None:
    error = SessionError("run", Kind.AGENT, "x", "it broke") if status is Status.FAILED else None
    trajectory = msgspec.structs.replace(simple(), status=status, error=error, metadata=b'{"group_id": 7}')
    found = session_result(trajectory, row_of(trajectory))
    assert (found["status"], found["trajectory"]["status"]) == (expected, expected)
    assert found["error"] == text
    assert found["metadata"] == {"group_id": 7}


def test_a_failed_evaluation_is_an_error_and_no_reward_of_zero() -> None:
    trajectory = simple()
    row = row_of(trajectory, evaluation_error=SessionError("evaluate", Kind.AGENT, "x", "no tests"))
    found = session_result(trajectory, row)
    assert (found["status"], found["error"]) == ("ERROR", "evaluator failed: no tests")


@given(trees(rewards=st.none()))
def test_a_session_that_nobody_rewarded_is_an_error_and_no_reward_of_zero(trajectory: Trajectory) -> None:
    found = session_result(trajectory, row_of(trajectory))
    trains = any(trace.trains for trace in trajectory.traces)
    assert (found["status"], found["error"]) == (
        ("ERROR", "the evaluator gave no reward") if trains else ("COMPLETED", None)
    )


@given(trees(rewards=st.just(1.0)))
def test_what_their_form_cannot_express_is_an_error(trajectory: Trajectory) -> None:
    traces = [trace for trace in trajectory.traces if trace.trains]
    if not traces:
        return
    at = traces[0].trains[0]
    node = trajectory.nodes[at]
    assert node.logprobs is not None
    broken = pack_logprobs([float("nan")] * (len(node.logprobs) // 4))
    nodes = [
        msgspec.structs.replace(one, logprobs=broken) if i == at else one for i, one in enumerate(trajectory.nodes)
    ]
    found = session_result(msgspec.structs.replace(trajectory, nodes=nodes), row_of(trajectory))
    assert found["status"] == "ERROR"
    assert "aren't finite" in found["error"]
    json.dumps(found, allow_nan=False)


def test_every_status_and_phase_has_their_word() -> None:
    assert STATUSES.keys() == set(Status)
    assert PHASES.keys() == set(Phase) - {Phase.ENDED}
    for phase in PHASES:
        assert session_status(SessionState("t.0", "t", 0, phase, 1)) == PHASES[phase]


def test_documents_have_their_fields() -> None:
    raw = [msgspec.Raw(b'{"session_id":"t.0"}')]
    status = task_document("t", "running", 2, raw, is_status=True)
    assert msgspec.json.decode(msgspec.json.encode(status)) == {
        "task_id": "t",
        "status": "running",
        "total_sessions": 2,
        "completed_sessions": 1,
        "results": [{"session_id": "t.0"}],
        "result_paths": [],
    }
    result = task_document("t", "completed", 1, raw, is_status=False)
    assert result.keys() == {"task_id", "status", "results", "result_paths"}
