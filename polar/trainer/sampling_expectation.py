"""A rule that leaves out samples which were sampled otherwise than the trainer's importance ratio assumes.

    for group in consumer.groups(expect(temperature=0.7, logprobs="processed", otherwise_plain=True)):

Invariant: every trained token of a group that passes is known to be sampled as stated. What combinations mean for a ratio is in
docs/ratios.md.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal

import msgspec

from polar.trainer.groups import Group, Rule, sampling_calls, trained
from topics.types.completion import UNKNOWN
from topics.types.errors import InputError
from topics.types.trajectory import Call, Trajectory


def expect(
    *,
    temperature: float | None = None,
    logprobs: Literal["raw", "processed"] | None = None,
    otherwise_plain: bool = False,
) -> Rule:
    """A rule that drops samples, also from the baseline, for one call that was sampled otherwise; None: anything is accepted.

    `otherwise_plain`: calls that were truncated, penalised or constrained by a grammar are dropped, and calls of which that is unknown.
    Then the stated temperature alone leads from the model's distribution to the one that was sampled from.

    Reasons: `other_temperature_sample`, `unknown_temperature_sample`, `other_logprobs_sample`, `unknown_logprobs_sample`,
    `not_otherwise_plain_sample`; `…_group` if no sample with a token to train is left. The logprobs of plain sampling are the same in both
    modes. Tokens of traces without a reward, in a group with rewards, aren't trained, so how they were sampled doesn't matter. Raises
    InputError.
    """
    if temperature is None and logprobs is None and not otherwise_plain:
        raise InputError("expect", None, "name a temperature, a mode of logprobs, or otherwise_plain")
    if temperature is not None and not temperature > 0:
        raise InputError("temperature", temperature, "must be above 0: a greedy choice has no ratio")
    if logprobs not in (None, "raw", "processed"):
        raise InputError("logprobs", logprobs, "must be raw or processed")

    def reason(call: Call) -> str | None:
        found, sampling = call.logprobs_mode, call.sampling
        if temperature is not None and sampling.temperature != temperature:
            return f"{UNKNOWN if sampling.temperature is None else 'other'}_temperature"
        if logprobs is not None and found != logprobs and not sampling.plain:
            return f"{UNKNOWN if found == UNKNOWN else 'other'}_logprobs"
        return "not_otherwise_plain" if otherwise_plain and not sampling.otherwise_plain else None

    def rule(group: Group, counts: Counter[str]) -> Group | None:
        by_reward = any(reward is not None for reward in group.rewards)

        def refused(trajectory: Trajectory) -> str | None:
            return next(filter(None, map(reason, sampling_calls(trajectory, by_reward=by_reward))), None)

        reasons = [refused(trajectory) for trajectory in group.trajectories]
        if not any(reasons):
            return group
        kept = [one for one, why in zip(group.trajectories, reasons, strict=True) if why is None]
        if not any(trained(trajectory, by_reward=by_reward) for trajectory in kept):
            counts[f"{next(filter(None, reasons))}_group"] += 1
            return None
        counts.update(f"{why}_sample" for why in reasons if why is not None)
        return msgspec.structs.replace(group, trajectories=kept)

    return rule
