"""slime's configuration, its engines' version, and groups as batches of dictionaries for `Sample.from_dict`. Imports nothing of slime.

Invariant: a batch has exactly as many rollouts as slime asked for. slime stops if there are fewer than `global_batch_size`, and drops what
is left over (`slime/utils/dp_schedule.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from polar.trainer.advantages import advantages
from polar.trainer.exporters import slime as exporter
from polar.trainer.groups import Group
from topics.environment import http_json
from topics.types.errors import InputError, NotReadyError
from topics.types.trajectory import Trajectory

ANSWER_S = 30.0
"""Limit of an answer of slime's router, or of one of its engines."""
ESTIMATORS = ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline")
"""Those that take a sample's reward as the advantage of its tokens."""
WANTED = {
    "rewards_normalization": (False, "rewards are advantages already; pass --disable-rewards-normalization"),
    "rollout_global_dataset": (True, "prompts name tasks, and slime saves the position with its dataset"),
    "apply_chat_template": (False, "the harness writes the prompts"),
    "rollout_top_p": (1.0, "sessions sample without truncation"),
    "rollout_top_k": (-1, "sessions sample without truncation"),
    "partial_rollout": (False, "a session isn't interrupted"),
    "dynamic_sampling_filter_path": (None, "it isn't applied"),
    "use_rollout_routing_replay": (False, "routed experts aren't passed; use polar.trainer.exporters.slime"),
    "log_passrate": (False, "it counts samples, and a session may have several"),
}
"""Values of slime's arguments, with the reason."""


class Place(NamedTuple):
    """slime's numbers of a prompt, which its data source counts over the whole training."""

    group_index: int
    first_index: int
    """`index` of its first sample; the others follow."""


def check(args: Any) -> None:
    """Raise InputError for arguments with which slime would train other tokens or advantages than sessions have, or ignore a setting."""
    for name, (value, reason) in WANTED.items():
        if getattr(args, name) != value:
            raise InputError(name, getattr(args, name), f"must be {value}: {reason}")
    if args.advantage_estimator not in ESTIMATORS:
        raise InputError("advantage_estimator", args.advantage_estimator, f"must be one of {', '.join(ESTIMATORS)}")


def weight_version(args: Any) -> int:
    """The version that slime gave the weights of all its engines: each update counts one, from 1 at the start of slime.

    Asks the router for its engines (`/workers`), and each engine (`/get_weight_version`). Raises NotReadyError.
    """
    router = f"http://{args.sglang_router_ip}:{args.sglang_router_port}"
    engines = [worker["url"] for worker in _answer(f"{router}/workers")["workers"]]
    versions = {str(_answer(f"{url}/get_weight_version")["weight_version"]) for url in engines}
    if len(versions) != 1 or not min(versions).isdecimal():
        raise NotReadyError(f"the engines behind {router} must have one version, and have {sorted(versions)}")
    return int(min(versions))


def train_batch(places: Sequence[Place], groups: Sequence[Group], args: Any) -> list[list[list[dict[str, Any]]]]:
    """By prompt: `n_samples_per_prompt` rollouts, each a list of samples. A sample's reward is its rollout's advantage.

    A session without a reward or without tokens to train has a masked sample of one token. Raises NotReadyError if no session has both,
    and InputError as `exporters.slime.samples` does.
    """
    by_deviation = args.grpo_std_normalization and args.advantage_estimator != "reinforce_plus_plus_baseline"
    found = [
        exporter.samples(
            group,
            group_index=place.group_index,
            first_index=place.first_index,
            advantages=advantages(group.rewards, by_deviation=by_deviation),
        )
        for place, group in zip(places, groups, strict=True)
    ]
    rows = [row for rollouts in found for rollout in rollouts for row in rollout]
    if not rows:
        raise NotReadyError(f"none of the sessions of {groups[0].task_id} and others has a reward and tokens to train")
    donor = min(rows, key=lambda row: len(row["tokens"]))
    # slime logs the mean over all samples; this one leaves it as it is.
    mean = float(np.mean([row["metadata"]["raw_reward"] for row in rows]))
    filled = []
    for place, rollouts in zip(places, found, strict=True):
        by_index = {rollout[0]["index"]: rollout for rollout in rollouts}
        indexes = range(place.first_index, place.first_index + args.n_samples_per_prompt)
        filled.append([by_index.get(at) or [_masked(donor, place, at, mean)] for at in indexes])
    return filled


def eval_samples(place: Place, group: Group) -> list[dict[str, Any]]:
    """The sample of each session that has a reward: its longest trace, or no tokens."""
    return [
        _longest(trajectory, place.group_index, index)
        for index, trajectory in enumerate(group.trajectories, place.first_index)
        if trajectory.reward is not None
    ]


def _longest(trajectory: Trajectory, group_index: int, index: int) -> dict[str, Any]:
    rollouts = exporter.samples(Group(trajectory.task_id, [trajectory]), group_index=group_index, first_index=index)
    if rollouts:
        return rollouts[0][-1] | {"reward": trajectory.reward}
    return {
        "group_index": group_index,
        "index": index,
        "reward": trajectory.reward,
        "status": exporter.STATUS[trajectory.status],
        "session_id": trajectory.session_id,
    }


def _masked(donor: dict[str, Any], place: Place, index: int, raw_reward: float) -> dict[str, Any]:
    """A sample of one token that isn't trained, with the prompt and the first token of another sample."""
    return {
        "group_index": place.group_index,
        "index": index,
        "rollout_id": index,
        "tokens": donor["tokens"][: len(donor["tokens"]) - donor["response_length"] + 1],
        "response_length": 1,
        "reward": 0.0,
        "loss_mask": [0],
        "rollout_log_probs": [0.0],
        "status": "failed",
        "metadata": {"raw_reward": raw_reward},
    }


def _answer(url: str) -> Any:
    """Raises NotReadyError."""
    try:
        answer = http_json.send(url, timeout_s=ANSWER_S)
        if answer.status == 200:
            return answer.json()
        error_text = f"status {answer.status}"
    except (http_json.NoAnswerError, ValueError) as error:
        error_text = str(error)
    raise NotReadyError(f"{url} doesn't answer: {error_text}")
