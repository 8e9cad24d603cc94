"""No token that is too old is trained, none that is fresh is lost, and the difference is counted, in whatever part it goes."""

from __future__ import annotations

from collections import Counter
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.trainer.groups import Group
from polar.trainer.staleness import Staleness
from polar.types.errors import InputError
from polar.types.tokens import count
from polar.types.trajectory import Trajectory
from tests.polar.trainer.trees import groups, tallied, trained_tokens, versions_of

CURRENT = 5
DROPS = st.sampled_from(["group", "sample", "token"])
UNKNOWNS: st.SearchStrategy[Literal["stale", "fresh"]] = st.sampled_from(["stale", "fresh"])


def is_fresh(version: int | None, limit: int, unknown: str) -> bool:
    return unknown == "fresh" if version is None else version >= CURRENT - limit


def trained(trajectory: Trajectory) -> list[tuple[int, int | None]]:
    """Nodes that are trained, by index, with their version."""
    found = []
    for index in sorted({at for trace in trajectory.traces for at in trace.trains}):
        call = trajectory.nodes[index].call
        assert call is not None
        found.append((index, trajectory.calls[call].policy_version))
    return found


@given(groups(), st.integers(0, 6), UNKNOWNS)
def test_by_token_exactly_the_fresh_ones_are_trained(
    group: Group, limit: int, unknown: Literal["stale", "fresh"]
) -> None:
    counts: Counter[str] = Counter()
    kept = Staleness(lambda: CURRENT, limit, drop="token", unknown=unknown)(group, counts)
    fresh = {
        one.session_id: [at for at, version in trained(one) if is_fresh(version, limit, unknown)]
        for one in group.trajectories
    }
    lost = sum(
        count(one.nodes[at].tokens)
        for one in group.trajectories
        for at, version in trained(one)
        if not is_fresh(version, limit, unknown)
    )
    assert counts["stale_token"] + counts["unknown_version_token"] == lost
    if kept is None:
        assert lost
        assert not any(fresh.values())
        return
    assert kept.rewards == group.rewards, "the baseline keeps its samples"
    for one in kept.trajectories:
        assert [at for at, _ in trained(one)] == fresh[one.session_id]
        assert one.stats == tallied(one, one.traces)
        assert len(trained_tokens(one)) == one.stats.trainable_tokens


@given(groups(updated=True), st.integers(0, 6), UNKNOWNS)
def test_where_weights_changed_within_an_answer_its_fresh_tokens_are_trained_as_they_were(
    group: Group, limit: int, unknown: Literal["stale", "fresh"]
) -> None:
    counts: Counter[str] = Counter()
    kept = Staleness(lambda: CURRENT, limit, drop="token", unknown=unknown)(group, counts)
    for before, after in zip(group.trajectories, kept.trajectories if kept else group.trajectories, strict=True):
        fresh = {token: version for token, version in versions_of(before).items() if is_fresh(version, limit, unknown)}
        if kept is None:
            assert not fresh
            continue
        assert versions_of(after) == fresh
        assert after.stats == tallied(after, after.traces)
        for one, other in zip(before.expanded(), after.expanded(), strict=True):
            assert one.token_ids.tolist() == other.token_ids.tolist()
            trained = other.loss_mask == 1
            assert other.logprobs[trained].tolist() == one.logprobs[trained].tolist()
            assert set(other.token_ids[trained].tolist()) == set(one.token_ids[one.loss_mask == 1].tolist()) & set(
                fresh
            )


@given(groups(), st.integers(0, 6), UNKNOWNS)
def test_by_sample_those_without_a_stale_token_are_left(
    group: Group, limit: int, unknown: Literal["stale", "fresh"]
) -> None:
    counts: Counter[str] = Counter()
    kept = Staleness(lambda: CURRENT, limit, drop="sample", unknown=unknown)(group, counts)
    wanted = [
        one for one in group.trajectories if all(is_fresh(version, limit, unknown) for _, version in trained(one))
    ]
    assert counts["stale_sample"] + counts["unknown_version_sample"] == len(group.trajectories) - len(wanted)
    assert (kept.trajectories if kept else []) == wanted or (
        kept is None and not any(one.stats.trainable_tokens for one in wanted)
    )


@given(groups(), st.integers(0, 6), UNKNOWNS)
def test_by_group_it_is_kept_as_it_is_or_dropped_whole(
    group: Group, limit: int, unknown: Literal["stale", "fresh"]
) -> None:
    counts: Counter[str] = Counter()
    kept = Staleness(lambda: CURRENT, limit, unknown=unknown)(group, counts)
    all_fresh = all(is_fresh(version, limit, unknown) for one in group.trajectories for _, version in trained(one))
    assert kept is (group if all_fresh else None)
    assert counts.total() == (0 if all_fresh else 1)


@given(groups(updated=True), DROPS)
def test_what_was_kept_once_is_kept_again(group: Group, drop: Literal["group", "sample", "token"]) -> None:
    rule = Staleness(lambda: CURRENT, 2, drop=drop)
    once = rule(group, Counter())
    again: Counter[str] = Counter()
    assert once is None or rule(once, again) is once
    assert not again


def test_the_version_is_asked_for_each_group() -> None:
    from tests.polar.trainer.writing import trajectory

    version = 7
    rule = Staleness(lambda: version, 0)
    group = Group("t", [trajectory("t")])
    counts: Counter[str] = Counter()
    assert rule(group, counts) is group
    version = 8
    assert rule(group, counts) is None
    assert counts == {"stale_group": 1}


def test_a_limit_below_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="limit: must be 0 or more versions"):
        Staleness(lambda: 0, -1)
