"""A builder's metrics of the trajectories that it wrote: null rewards by cause, and how stale trained tokens were."""

from __future__ import annotations

from consumers.building.counters import NOT_GIVEN, BuilderCounters
from topics.types.completion import CallOutcome, Completion, MessageDelta, PolicySpan, TokenDelta
from topics.types.errors import Kind, SessionError
from topics.types.session import Status
from topics.types.tokens import pack_ids
from topics.types.trajectory import ROOT, Call, Node, Trajectory


def sampled(version: int | None, publication: int | None = None, spans: list[PolicySpan] | None = None) -> Completion:
    return Completion(
        "c", "t.0", 1, "claim", CallOutcome.ANSWERED, "openai_chat", "qwen", 0, 0, TokenDelta(b""), MessageDelta(b"[]"),
        policy_version=version, publication=publication, policy_spans=spans or [],
    )  # fmt: skip


def call(version: int | None, spans: list[PolicySpan] | None = None) -> Call:
    return Call("c", "main", "answered", "d", 0, 0, policy_version=version, policy_spans=spans or [], engine="qwen")


def tokens(count: int) -> bytes:
    return pack_ids(list(range(count)))


def ended(
    *nodes: Node, calls: tuple[Call, ...] = (), reward: float | None = 1.0, error: SessionError | None = None
) -> Trajectory:
    status = Status.COMPLETED if error is None else Status.FAILED
    made = Trajectory("t.0", "t", 0, 1, 1, status, "prefix_merging", "pi", reward, error)
    made.nodes.extend(nodes)
    made.calls.extend(calls)
    return made


def test_each_trained_token_counts_by_how_many_versions_it_was_behind() -> None:
    counters = BuilderCounters()
    counters.sampled(sampled(7, publication=40))
    # One answer of two nodes, [0, 4) and [4, 10): version 4 sampled six tokens, version 6 the last four.
    spans = [PolicySpan(4, 0, 6), PolicySpan(6, 6, 10)]
    nodes = (
        Node(ROOT, tokens(5)),
        Node(0, tokens(4), call=0),
        Node(1, tokens(6), call=0),
        Node(0, tokens(9), call=1, masked="side_call"),
        Node(0, tokens(3), call=2),
    )
    counters.committed([ended(*nodes, calls=(call(4, spans), call(1), call(None)))], 0)
    assert counters.trained == {"qwen": 10}
    assert counters.behind == {"qwen": 6 * (7 - 4) + 4 * (7 - 6)}


def test_the_newest_weights_are_those_published_last_also_after_a_rollback() -> None:
    counters = BuilderCounters()
    counters.sampled(sampled(9, publication=50))
    counters.sampled(sampled(8, publication=60))
    counters.sampled(sampled(9, publication=50))
    counters.sampled(sampled(None))
    undone, newer = (
        ended(Node(ROOT, tokens(2), call=0), calls=(call(9),)),
        ended(Node(ROOT, tokens(2), call=0), calls=(call(8),)),
    )
    counters.committed([undone, newer], 0)
    assert (counters.trained, counters.behind) == ({"qwen": 4}, {"qwen": 0})
    counters.sampled(sampled(8, publication=60, spans=[PolicySpan(8, 0, 1, 60), PolicySpan(10, 1, 2, 70)]))
    counters.committed([newer], 0)
    assert counters.behind == {"qwen": 2 * (10 - 8)}


def test_null_rewards_count_by_the_kind_of_the_error() -> None:
    counters = BuilderCounters()
    infra = SessionError("evaluate", Kind.EVALUATION, "crashed", "the script ended")
    counters.committed([ended(), ended(reward=0.0), ended(reward=None), ended(reward=None, error=infra)], 0)
    assert counters.null_rewards == {NOT_GIVEN: 1, "evaluation": 1}
    assert counters.emitted == {"COMPLETED": 3, "FAILED": 1}


def test_a_trajectory_that_names_a_call_which_is_not_there_ends_nothing() -> None:
    counters = BuilderCounters()
    counters.committed([ended(Node(ROOT, tokens(2), call=3)), ended()], 0)
    assert (counters.emitted, counters.trained) == ({"COMPLETED": 2}, {})
