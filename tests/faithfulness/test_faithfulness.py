"""Random sessions against an independent statement of guarantee 2: through builders, filters, the codec, the SDK and every exporter.

Each run draws other sessions. A failure names its seed: `ORACLE_SEED=<seed> ORACLE_SESSIONS=1` runs that group alone, and
`ORACLE_SESSIONS=20000` searches for longer.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from random import Random
from typing import Any

from consumers.builders.base import BuiltFrom
from consumers.builders.per_request import PerRequest
from consumers.builders.prefix_merging import PrefixMerging
from polar.trainer.groups import Group
from polar.trainer.staleness import REASONS, Staleness
from tests.faithfulness.agents import KINDS, served, session
from tests.faithfulness.exports import FORMATS, trl_rollouts
from tests.faithfulness.lived import Published, Session
from tests.faithfulness.oracle import check_trajectory
from tests.faithfulness.rows import Row, Truth, UnfaithfulError, plain_rows, trained_logprobs
from topics import completions, trajectories
from topics.contract.codec import encode
from topics.fleet import FleetView
from topics.types.building import Filters
from topics.types.completion import Completion
from topics.types.errors import InputError
from topics.types.token_tree import FILTERS, Branch, Drift, Masked
from topics.types.trajectory import Trajectory

SESSIONS = int(os.environ.get("ORACLE_SESSIONS", "500"))
SEED = int(os.environ.get("ORACLE_SEED") or int.from_bytes(os.urandom(4)))


def settings(random: Random) -> dict[str, Any]:
    """Settings that both builders have."""
    filters: dict[str, Any] = {
        "kinds": random.choice([["main"], [*KINDS]]),
        "engines": ["large"],
        "statuses": ["COMPLETED", "TIMED_OUT"],
        "drop_truncated": True,
        "grammar": "mask",
        "truncated": "mask",
        "penalised": "mask",
        "plain_only": True,
        "drop_media": True,
        "rejected": "train",
        "max_tokens": random.choice([30, 300]),
        "min_trainable_tokens": random.choice([2, 8]),
    }
    used = [name for name in filters if random.random() < (0.5 if name == "rejected" else 0.15)]
    rewards = random.choice(["all", "all", "main_chain", "leaf"])
    return {"rewards": rewards, "filters": {name: filters[name] for name in used}}


def built(lived: Session, builder: PrefixMerging | PerRequest) -> Trajectory:
    """The trajectory as a trainer reads it, of records as a builder reads them."""
    decoded_calls = [completions.CODEC.decode(encode(record)) for record in lived.records]
    calls = [call for call in decoded_calls if isinstance(call, Completion)]
    made = builder.build(BuiltFrom(lived.build, calls, lived.disowned))
    decoded = trajectories.CODEC.decode(encode(made))
    assert isinstance(decoded, Trajectory)
    return decoded


def exported(rows_of: Callable[[Group], Iterator[Row]], group: Group) -> list[Row] | None:
    """The group in a format; None if the format may have no place for it."""
    try:
        return list(rows_of(group))
    except InputError:
        if is_simple(group):
            raise
        return None


def is_simple(group: Group) -> bool:
    """Whether every format has a place for a group: one trace per session, one reward, one way of sampling, and no images."""
    calls = [call for one in group.trajectories for call in one.calls]
    ways = {(call.logprobs_mode, call.sampling.temperature) for call in calls}
    has_extras = any(call.reward is not None or call.media for call in calls)
    return all(len(one.traces) <= 1 for one in group.trajectories) and len(ways) <= 1 and not has_extras


def check_staleness(random: Random, group: Group, truth: Truth, published: Sequence[Published]) -> Counter[str]:
    """Of the tokens that the group trains, `Staleness` leaves those that are fresh. Returns what it counts."""
    # A trainer whose update broke off has the weights before.
    published = published[: max(at for at, (version, _) in enumerate(published) if version is not None) + 1]
    view = FleetView()
    for offset, one in enumerate(published):
        view.take(view.publishing(*one), offset=offset)
    current = view.policies[published[-1][1]]
    limit, by_reward = random.randrange(4), any(reward is not None for reward in group.rewards)
    counts: Counter[str] = Counter()
    kept = Staleness(lambda: current, limit, drop="token")(group, counts)
    before, after = (
        [row for one in ([] if each is None else each.trajectories) for row in plain_rows(one, rewarded=by_reward)]
        for each in (group, kept)
    )
    truth.check(after, truth.fresh(trained_logprobs(before), published, limit))
    return counts


def check_group(seed: int) -> int:
    """Raises UnfaithfulError if any of the group's tokens isn't what it should be; returns the number of sessions."""
    random = Random(seed)
    numbers, size = count(1), random.choice([1, 1, 2, 3])
    how = served(random)
    lived = [session(random, numbers, how, index, size) for index in range(size)]
    truth = Truth(lived)
    for builder in (PrefixMerging, PerRequest):
        chosen = settings(random)
        made = [built(one, builder(**chosen)) for one in lived]
        for one, trajectory in zip(lived, made, strict=True):
            check_trajectory(one, trajectory, Filters(**chosen["filters"]), chosen["rewards"])
        truth.trained(row for trajectory in made for row in plain_rows(trajectory, rewarded=False))
        rewarded = trained_logprobs(row for trajectory in made for row in plain_rows(trajectory, rewarded=True))
        group = Group("t", made)
        truth.trained(exported(trl_rollouts, group) or [])
        check_staleness(random, group, truth, how.published)
        for name, rows_of in FORMATS.items():
            if (rows := exported(rows_of, group)) is not None:
                try:
                    truth.check(rows, rewarded)
                except UnfaithfulError as found:
                    raise UnfaithfulError(f"{name}: {found}") from None
    return size


def test_every_trained_token_is_as_it_was_sampled_and_every_other_has_a_reason() -> None:
    seed, sessions = SEED, 0
    while sessions < SESSIONS:
        try:
            sessions += check_group(seed)
        except Exception as found:
            raise AssertionError(f"seed {seed}, after {sessions} sessions: {found}") from found
        seed += 1


def test_the_sessions_have_every_case() -> None:
    """Of branches, drift, ages and reasons, but for those of filters, which only some settings use."""
    found: Counter[str] = Counter()
    for seed in range(300):
        random = Random(seed)
        how = served(random)
        lived = session(random, count(1), how)
        made = built(lived, PrefixMerging())
        stats = made.stats
        found.update([*stats.branches, *stats.drift, *stats.masked_tokens])
        found.update(check_staleness(random, Group("t", [made]), Truth([lived]), how.published))
    ages = {f"{reason}_token" for reason in REASONS}
    assert ({*Branch, *Drift, *Masked} - FILTERS - {Masked.NO_TRACE} | ages) - found.keys() == set()
