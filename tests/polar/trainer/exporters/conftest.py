"""Groups for all exporters: three sessions, of which one branched and one has no reward; sessions whose calls have rewards of their own."""

from __future__ import annotations

import msgspec
import pytest

from polar.trainer.groups import Group
from tests.polar.trainer.trees import built
from tests.polar.trainer.writing import trajectory
from topics.types.completion import Sampling
from topics.types.tokens import pack_ids, pack_logprobs
from topics.types.trajectory import ROOT, Call, Node, Trajectory


@pytest.fixture
def group() -> Group:
    """`t.0`: [1 2] (3 4) [5] (6), and from its (3 4) on [7] (8), reward 1; `t.1`: reward 0; `t.2`: none."""
    calls = [Call(f"c{n}", "main", "answered", "openai_chat", n, n + 2000, policy_version=4 + n) for n in range(3)]
    nodes = [
        Node(ROOT, pack_ids([1, 2])),
        Node(0, pack_ids([3, 4]), pack_logprobs([-0.5, -0.25]), call=0),
        Node(1, pack_ids([5, 5])),
        Node(2, pack_ids([6]), pack_logprobs([-1.0]), call=1),
        Node(1, pack_ids([7])),
        Node(4, pack_ids([8]), pack_logprobs([-2.0]), call=2),
    ]
    branched = built("t.0", nodes, calls, reward=1.0, samples=3)
    branched = msgspec.structs.replace(branched, metadata=b'{"set": "train"}')
    return Group("t", [branched, trajectory("t", 1, 3, 0.0), trajectory("t", 2, 3, None)])


@pytest.fixture
def linear() -> Group:
    """`t.0`: [1 2] (3 4) [5] (6), reward 1; `t.1`: reward 0. All calls had the temperature 0.5."""
    sampling = Sampling(temperature=0.5)
    calls = [Call(f"t.0.c{n}", "main", "answered", "openai_chat", 5000, 7000, sampling=sampling) for n in range(2)]
    nodes = [
        Node(ROOT, pack_ids([1, 2])),
        Node(0, pack_ids([3, 4]), pack_logprobs([-0.5, -0.25]), call=0),
        Node(1, pack_ids([5])),
        Node(2, pack_ids([6]), pack_logprobs([-1.0]), call=1),
    ]
    other = trajectory("t", 1, 2, 0.0)
    other = msgspec.structs.replace(
        other, calls=[msgspec.structs.replace(call, sampling=sampling) for call in other.calls]
    )
    return Group("t", [built("t.0", nodes, calls, reward=1.0, samples=2), other])


@pytest.fixture
def unknown(group: Group) -> Trajectory:
    """`t.0`, of whose calls one is of a version that nobody knows."""
    branched = group.trajectories[0]
    first, *others = branched.calls
    return msgspec.structs.replace(branched, calls=[msgspec.structs.replace(first, policy_version=None), *others])


def with_rewards(group: Group, *rewards: float | None) -> Group:
    """The group, in which the evaluator gave these rewards to the calls of the first session."""
    first, *others = group.trajectories
    calls = [msgspec.structs.replace(call, reward=reward) for call, reward in zip(first.calls, rewards, strict=True)]
    return Group(group.task_id, [msgspec.structs.replace(first, calls=calls), *others])
