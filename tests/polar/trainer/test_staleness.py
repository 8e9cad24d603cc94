"""No token that is too old, newer than the trainer or of an abandoned line is trained, none that is fresh is lost, and the difference is
counted, in whatever part it goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from polar.trainer.groups import Group
from polar.trainer.staleness import REASONS, Staleness
from tests.polar.trainer.trees import built, groups, tallied, trained_tokens, versions_of
from tests.polar.trainer.writing import trajectory
from topics.fleet import FleetView, PolicyVersion, Publication
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
    return unknown == "fresh" if version is None else CURRENT - limit <= version <= CURRENT


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
    assert sum(counts[f"{reason}_token"] for reason in REASONS) == lost
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
    dropped = sum(counts[f"{reason}_sample"] for reason in REASONS)
    assert dropped == len(group.trajectories) - len(wanted)
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
    version = 6
    assert rule(group, counts) is None
    assert counts == {"stale_group": 1, "newer_group": 1}


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


def call(index: int, version: int | None, publication: int | None = None, engine: str = "default") -> Call:
    made = Call(f"c{index}", "main", "answered", "openai_chat", index, index + 1)
    return replace(made, policy_version=version, publication=publication, engine=engine)


Published = tuple[int | None, int | None]
"""Version and publication of a token."""


def published(versions: Sequence[int]) -> list[Publication]:
    """The publications of a trainer for all engines, at offsets from 0 on."""
    return publications([(version, None) for version in versions])


def publications(published: Sequence[tuple[int, str | None]]) -> list[Publication]:
    """Those of versions for an engine, or for all, at offsets from 0 on."""
    view, found = FleetView(), []
    for offset, (version, engine) in enumerate(published):
        view.take(view.publishing(version, engine), offset=offset)
        found.append(view.policies[engine])
    return found


def sampled_by(weights: Sequence[Published], engine: str = "default") -> Group:
    """A session with a token for each of these weights of an engine."""
    calls = [call(at, *each, engine) for at, each in enumerate(weights)]
    nodes = [Node(ROOT, pack_ids([1]))]
    nodes += [Node(at, pack_ids([2 + at]), pack_logprobs([-1.0]), call=at) for at in range(len(weights))]
    return Group("t", [built("t.0", nodes, calls, reward=1.0)])


def trained_of(group: Group | None, weights: Sequence[Published]) -> list[Published]:
    if group is None:
        return []
    return [weights[token - 2] for token in sorted(trained_tokens(group.trajectories[0]))]


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[int], int, list[Published]]:
    """Published versions, the trainer's publication among them, and the weights of tokens, most of them published."""
    versions = draw(st.lists(st.integers(0, 5), min_size=1, max_size=10))
    now = draw(st.integers(0, len(versions) - 1))
    known = st.sampled_from([*zip(versions, range(len(versions)), strict=True)])
    unknown = st.tuples(st.none() | st.integers(0, 6), st.none())
    return versions, now, draw(st.lists(known | known | unknown, min_size=1, max_size=6))


@given(histories(), st.integers(0, 3), UNKNOWNS)
def test_of_publications_exactly_those_on_the_trainers_own_line_are_trained(
    history: tuple[list[int], int, list[Published]], limit: int, unknown: Unknown
) -> None:
    versions, now, weights = history
    current = published(versions)[now]
    mine = versions[now]

    def is_fresh(one: Published) -> bool:
        version, at = one
        if version is None:
            return unknown == "fresh"
        if not mine - limit <= version <= mine:
            return False
        if at is None:
            # Weights of this number may have been lost to a rollback: then the number names two.
            is_one = not any(lower < version <= higher for higher, lower in combinations(versions[: now + 1], 2))
            return is_one or unknown == "fresh"
        if at > now:
            return version == mine  # published again, as after a server's restart
        return all(later >= version for later in versions[at : now + 1])

    counts: Counter[str] = Counter()
    kept = Staleness(lambda: current, limit, drop="token", unknown=unknown)(sampled_by(weights), counts)
    fresh = [one for one in weights if is_fresh(one)]
    assert trained_of(kept, weights) == fresh
    assert sum(counts[f"{reason}_token"] for reason in REASONS) == len(weights) - len(fresh)


def test_long_after_a_rollback_new_numbers_need_no_publication() -> None:
    """As of engines that name weights which were loaded and weren't published yet."""
    group, current = sampled_by([(20, None)]), published([5, 6, 5, *range(6, 21)])[-1]
    assert Staleness(lambda: current, 0)(group, Counter()) is group


@pytest.mark.parametrize(
    ("engine", "reason"),
    [("a", "abandoned_token"), ("b", None)],
)
def test_a_rollback_of_one_engine_abandons_no_tokens_of_another(engine: str, reason: str | None) -> None:
    """Also once a version was published for all engines."""
    later = publications([(6, "a"), (6, "b"), (5, "a"), (7, None)])[-1]
    group = sampled_by([(6, 0 if engine == "a" else 1), (7, 3)], engine)
    counts: Counter[str] = Counter()
    Staleness(lambda: later, 1, drop="token")(group, counts)
    assert counts == ({} if reason is None else {reason: 1})


def test_a_publication_of_one_engine_tells_of_others_by_number_alone() -> None:
    current = publications([(5, "b"), (6, "b"), (4, "a"), (6, "a"), (5, "a"), (7, "b")])[4]
    counts: Counter[str] = Counter()
    weights: list[Published] = [(5, 0), (6, 1), (7, 5)]
    kept = Staleness(lambda: current, 0, drop="token")(sampled_by(weights, "b"), counts)
    assert (trained_of(kept, weights), counts) == ([(5, 0)], {"newer_token": 2})
    counts.clear()
    Staleness(lambda: current, 0, drop="token")(sampled_by([(5, 4), (6, 3)], "a"), counts)
    assert counts == {"abandoned_token": 1}


def test_what_was_sampled_before_a_rollback_is_not_trained_when_its_number_comes_again() -> None:
    """Version 6, back to 5, another 6: the trainer has the second one."""
    weights: list[Published] = [(5, 0), (6, 1), (5, 2), (6, 3), (6, None), (7, 4)]
    group, current = sampled_by(weights), published([5, 6, 5, 6])[-1]
    counts: Counter[str] = Counter()
    kept = Staleness(lambda: current, 1, drop="token")(group, counts)
    assert trained_of(kept, weights) == [(5, 0), (5, 2), (6, 3)]
    assert counts == {"abandoned_token": 1, "unknown_version_token": 1, "newer_token": 1}
    by_number: Counter[str] = Counter()
    kept = Staleness(lambda: 6, 1, drop="token")(group, by_number)
    assert trained_of(kept, weights) == weights[:5], "a number alone can't tell the two apart"
    assert by_number == {"newer_token": 1}


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        ([(6, 3), (1, 0)], "stale"),
        ([(6, 1), (7, 4), (None, None)], "abandoned"),
        ([(7, 4), (None, None)], "newer"),
        ([(None, None)], "unknown_version"),
    ],
)
def test_a_sample_is_counted_once_by_its_worst_reason(weights: list[Published], reason: str) -> None:
    current = published([5, 6, 5, 6])[-1]
    for drop, unit in (("group", "group"), ("sample", "sample")):
        counts: Counter[str] = Counter()
        assert Staleness(lambda: current, 2, drop=drop)(sampled_by(weights), counts) is None  # type: ignore[arg-type]
        assert counts[f"{reason}_{unit}"] == 1


def test_a_publication_of_unknown_weights_is_no_trainers_version() -> None:
    view = FleetView()
    view.take(PolicyVersion(None))
    with pytest.raises(InputError, match=r"current: .* unknown weights"):
        Staleness(lambda: view.policies[None], 1)(sampled_by([(5, 0)]), Counter())


def test_a_limit_below_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="limit: must be 0 or more versions"):
        Staleness(lambda: 0, -1)
