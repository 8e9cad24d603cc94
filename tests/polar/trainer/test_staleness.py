"""No token that is too old is trained, none that is fresh is lost, and the difference is counted, in whatever part it goes."""

from __future__ import annotations

from collections import Counter
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from polar.trainer.groups import Group
from polar.trainer.staleness import Staleness
from tests.polar.trainer.trees import built, groups, tallied, trained_tokens, versions_of
from tests.polar.trainer.writing import trajectory
from topics.types.errors import InputError
from topics.types.tokens import count, pack_ids, pack_logprobs, unpack_ids
from topics.types.trajectory import ROOT, Call, Node, Trajectory

Unknown = Literal["stale", "fresh"]
Drop = Literal["group", "sample", "token"]
CURRENT = 5
DROPS = st.sampled_from(["group", "sample", "token"])
UNKNOWNS: st.SearchStrategy[Unknown] = st.sampled_from(["stale", "fresh"])


def applied(group: Group, limit: int, unknown: Unknown, drop: Drop = "group") -> tuple[Group | None, Counter[str]]:
    """The group that the rule keeps, or None, and the rule's counts."""
    counts: Counter[str] = Counter()
    return Staleness(lambda: CURRENT, limit, drop=drop, unknown=unknown)(group, counts), counts


def is_fresh(version: int | None, limit: int, unknown: str) -> bool:
    return unknown == "fresh" if version is None else version >= CURRENT - limit


def trained(trajectory: Trajectory, group: Group) -> list[tuple[int, int | None]]:
    """Nodes that are trained, by index, with their version: without a reward none, in a group that has one."""
    found = []
    is_left_out = trajectory.reward is None and set(group.rewards) != {None}
    for index in sorted({at for trace in trajectory.traces for at in trace.trains if not is_left_out}):
        call = trajectory.nodes[index].call
        assert call is not None
        found.append((index, trajectory.calls[call].policy_version))
    return found


@given(groups(), st.integers(0, 6), UNKNOWNS)
def test_by_token_exactly_the_fresh_ones_are_trained(group: Group, limit: int, unknown: Unknown) -> None:
    kept, counts = applied(group, limit, unknown, drop="token")
    fresh = {
        one.session_id: [at for at, version in trained(one, group) if is_fresh(version, limit, unknown)]
        for one in group.trajectories
    }
    lost = sum(
        count(one.nodes[at].tokens)
        for one in group.trajectories
        for at, version in trained(one, group)
        if not is_fresh(version, limit, unknown)
    )
    assert counts["stale_token"] + counts["unknown_version_token"] == lost
    if kept is None:
        assert lost
        assert not any(fresh.values())
        return
    assert kept.rewards == group.rewards, "the baseline keeps its samples"
    for one in kept.trajectories:
        assert [at for at, _ in trained(one, group)] == fresh[one.session_id]
        assert one.stats == tallied(one, one.traces)
        assert len(trained_tokens(one)) == one.stats.trainable_tokens


@given(groups(updated=True), st.integers(0, 6), UNKNOWNS)
def test_where_weights_changed_within_an_answer_its_fresh_tokens_are_trained_as_they_were(
    group: Group, limit: int, unknown: Unknown
) -> None:
    kept, _ = applied(group, limit, unknown, drop="token")
    for before, after in zip(group.trajectories, kept.trajectories if kept else group.trajectories, strict=True):
        is_trained = {
            token for at, _ in trained(before, group) for token in unpack_ids(before.nodes[at].tokens).tolist()
        }
        fresh = {
            token: version
            for token, version in versions_of(before).items()
            if token not in is_trained or is_fresh(version, limit, unknown)
        }
        if kept is None:
            assert not is_trained & fresh.keys()
            continue
        assert versions_of(after) == fresh
        assert after.stats == tallied(after, after.traces)
        for one, other in zip(before.expanded(), after.expanded(), strict=True):
            assert one.token_ids.tolist() == other.token_ids.tolist()
            is_kept = other.loss_mask == 1
            assert other.logprobs[is_kept].tolist() == one.logprobs[is_kept].tolist()
            assert set(other.token_ids[is_kept].tolist()) == set(one.token_ids[one.loss_mask == 1].tolist()) & set(
                fresh
            )


@given(groups(), st.integers(0, 6), UNKNOWNS)
def test_by_sample_those_without_a_stale_token_are_left(group: Group, limit: int, unknown: Unknown) -> None:
    kept, counts = applied(group, limit, unknown, drop="sample")
    wanted = [
        one
        for one in group.trajectories
        if all(is_fresh(version, limit, unknown) for _, version in trained(one, group))
    ]
    assert counts["stale_sample"] + counts["unknown_version_sample"] == len(group.trajectories) - len(wanted)
    assert (kept.trajectories if kept else []) == wanted or (
        kept is None and not any(trained(one, group) for one in wanted)
    )


@given(groups(), st.integers(0, 6), UNKNOWNS)
def test_by_group_it_is_kept_as_it_is_or_dropped_whole(group: Group, limit: int, unknown: Unknown) -> None:
    kept, counts = applied(group, limit, unknown)
    all_fresh = all(
        is_fresh(version, limit, unknown) for one in group.trajectories for _, version in trained(one, group)
    )
    assert kept is (group if all_fresh else None)
    assert counts.total() == (0 if all_fresh else 1)


@given(groups(updated=True), DROPS)
def test_what_was_kept_once_is_kept_again(group: Group, drop: Drop) -> None:
    rule = Staleness(lambda: CURRENT, 2, drop=drop)
    once = rule(group, Counter())
    again: Counter[str] = Counter()
    assert once is None or rule(once, again) is once
    assert not again


def test_the_version_is_asked_for_each_group() -> None:
    version = 7
    rule = Staleness(lambda: version, 0)
    group = Group("t", [trajectory("t")])
    counts: Counter[str] = Counter()
    assert rule(group, counts) is group
    version = 8
    assert rule(group, counts) is None
    assert counts == {"stale_group": 1}


@pytest.mark.parametrize("drop", ["group", "sample", "token"])
def test_how_old_a_trace_is_that_takes_no_reward_is_all_the_same(drop: Drop) -> None:
    """A task may credit its main agent alone: `rewards: leaf`."""
    side, main = (call(index, version) for index, version in enumerate((1, CURRENT)))
    nodes = [Node(ROOT, pack_ids([1])), *(Node(0, pack_ids([2 + at]), pack_logprobs([-1.0]), call=at) for at in (0, 1))]
    found = built("t.0", nodes, [side, main], reward=1.0)
    found = replace(found, traces=[replace(one, reward=1.0 if one.leaf == 2 else None) for one in found.traces])
    rule, group = Staleness(lambda: CURRENT, 0, drop=drop), Group("t", [found])
    assert rule(group, Counter()) is group
    counts: Counter[str] = Counter()
    assert Staleness(lambda: CURRENT + 1, 0, drop=drop)(group, counts) is None
    assert counts["stale_group"] == 1


def call(index: int, version: int) -> Call:
    return Call(f"c{index}", "main", "answered", "openai_chat", index, index + 1, policy_version=version)


def test_a_limit_below_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="limit: must be 0 or more versions"):
        Staleness(lambda: 0, -1)
