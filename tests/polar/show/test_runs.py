"""A trace's runs are its tokens, marked as the trainer gets them."""

from __future__ import annotations

import numpy as np

from polar.show.runs import ELSEWHERE, runs
from tests.consumers.token_tree.transcripts import Log
from topics.types.trajectory import expand


def test_runs_are_the_expanded_trace() -> None:
    log = Log()
    log.call("a", "be brief", "look")
    log.call("b", "be brief look files", "so mended")
    log.call("c", "be brief look files so tested", "yes")
    log.call("side", "be brief look files so", "title", kind="title")
    trajectory = log.build()
    assert len(trajectory.traces) == 2
    for trace in trajectory.traces:
        expanded, found = expand(trajectory, trace), runs(trajectory, trace)
        assert np.array_equal(np.concatenate([run.ids for run in found]), expanded.token_ids)
        mask = np.concatenate([np.full(len(run.ids), run.is_trained) for run in found])
        assert np.array_equal(mask, expanded.loss_mask)
        for run in found:
            assert run.start == 0 or np.array_equal(run.ids, expanded.token_ids[run.start :][: len(run.ids)])
            if run.is_trained:
                assert run.logprobs is not None
                assert np.array_equal(run.logprobs, expanded.logprobs[run.start :][: len(run.ids)])
                assert run.why_not is None


def test_what_another_trace_trains_is_said_and_told_as_repeated() -> None:
    log = Log()
    log.call("a", "p", "one")
    log.call("b", "p one q", "two two")
    log.call("c", "p one r", "three")
    trajectory = log.build()
    first, second = (runs(trajectory, trace) for trace in trajectory.traces)
    assert [(run.call_id, run.is_trained, run.is_repeated) for run in first] == [
        (None, False, False),
        ("a", True, False),
        (None, False, False),
        ("b", True, False),
    ]
    assert [(run.call_id, run.why_not, run.is_repeated) for run in second] == [
        (None, None, True),
        ("a", ELSEWHERE, True),
        (None, None, False),
        ("c", None, False),
    ]


def test_masked_tokens_carry_their_reason() -> None:
    log = Log()
    log.call("a", "p", "one")
    log.call("b", "p one q", "two")
    trajectory = log.build(disowned=frozenset({"a"}))
    (trace,) = trajectory.traces
    found = [(run.call_id, run.is_trained, run.why_not) for run in runs(trajectory, trace) if run.call_id]
    assert found == [("a", False, "disowned"), ("b", True, None)]
