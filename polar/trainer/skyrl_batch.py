"""SkyRL's batches as prompts, and groups as its `GeneratorOutput`. Imports nothing of SkyRL.

Invariant: each prompt of a batch has a row, and the rows are in the order of the prompts. SkyRL cuts a batch into mini-batches by its
prompts (`skyrl/train/dataset/preprocess.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from polar.trainer.exporters.skyrl import generator_output
from polar.trainer.groups import Group
from polar.trainer.prompt_tasks import Mode
from topics.types.errors import InputError, NotReadyError

PLAIN: dict[str, tuple[float, ...]] = {"top_p": (1.0,), "top_k": (-1, 0), "min_p": (0.0,), "repetition_penalty": (1.0,)}
"""Values of sampling parameters with which SkyRL computes the log-probabilities that the engine has."""


class TrajectoryName(NamedTuple):
    """The fields of SkyRL's `TrajectoryID`."""

    instance_id: str
    """The prompt's `uid`."""
    repetition_id: int
    """The sample index."""


def check_sampling(sampling: Mapping[str, Any], mode: Mode) -> float:
    """The temperature. Raises InputError for parameters with which SkyRL couldn't train what was sampled."""
    for name, allowed in PLAIN.items():
        value = sampling.get(name)
        if mode == "train" and value is not None and value not in allowed:
            reason = f"must be {allowed[0]:g}: SkyRL's log-probabilities don't consider it"
            raise InputError(f"sampling_params.{name}", value, reason)
    return float(sampling.get("temperature", 1.0))


def prompts_of(input_batch: Mapping[str, Any]) -> tuple[list[dict[str, Any]], int]:
    """The prompts of a `GeneratorInput`, each once, and the number of samples of each. Raises InputError if the numbers differ."""
    by_uid: dict[str, dict[str, Any]] = {}
    counts: dict[str, int] = defaultdict(int)
    extras = input_batch["env_extras"] or [{}] * len(input_batch["prompts"])
    columns = (input_batch["trajectory_ids"], input_batch["prompts"], input_batch["env_classes"], extras)
    for name, prompt, env_class, more in zip(*columns, strict=True):
        uid = name.instance_id
        by_uid.setdefault(uid, {"prompt": prompt, "env_class": env_class, "env_extras": more, "uid": uid})
        counts[uid] += 1
    if len(set(counts.values())) != 1:
        raise InputError("trajectory_ids", dict(counts), "every prompt of a batch must have the same number of samples")
    return list(by_uid.values()), next(iter(counts.values()))


def batch(uids: Sequence[str], groups: Sequence[Group]) -> dict[str, Any]:
    """A `GeneratorOutput` whose `trajectory_ids` are `TrajectoryName`s. `groups`: of the prompts `uids`, in their order.

    A prompt without a row has a masked one of one token and the reward 0. Raises NotReadyError if none has a row, and InputError as
    `generator_output` does.
    """
    output = generator_output(groups)
    columns = {name: column for name, column in output.items() if isinstance(column, list)}
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for values in zip(*columns.values(), strict=True):
        row = dict(zip(columns, values, strict=True))
        rows[row["trajectory_ids"].instance_id].append(row)
    if not rows:
        raise NotReadyError(f"none of the sessions of {groups[0].task_id} and others has a reward and tokens to train")
    donor = min((row for each in rows.values() for row in each), key=lambda row: len(row["prompt_token_ids"]))
    made = [
        row | {"trajectory_ids": TrajectoryName(uid, row["trajectory_ids"].repetition_id)}
        for uid, group in zip(uids, groups, strict=True)
        for row in rows.get(group.task_id) or [_masked(donor)]
    ]
    return output | {name: [row[name] for row in made] for name in columns}


def _masked(donor: dict[str, Any]) -> dict[str, Any]:
    """A row of one token that isn't trained, after another row's prompt."""
    return donor | {
        "trajectory_ids": TrajectoryName("", 0),
        "response_ids": donor["response_ids"][:1],
        "rewards": 0.0,
        "loss_masks": [0],
        "rollout_logprobs": [0.0],
        "is_last_step": True,
    }
