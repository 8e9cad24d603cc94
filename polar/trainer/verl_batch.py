"""verl's configuration, and groups as the rows of its replay buffer. Imports nothing of verl.

Invariant: a row's key is `UID_SAMPLE_ROW`. verl finds a prompt's rows by the first part, and counts a session's last row alone in the
baseline (`verl/trainer/ppo/v1/utils.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from polar.trainer.exporters.verl import agent_loop_outputs
from polar.trainer.groups import Group
from polar.trainer.prompt_tasks import Mode
from topics.types.errors import InputError, NotReadyError
from topics.types.trajectory import Trajectory

NOT_APPLIED = "rewards come from the task's evaluator"
TRUNCATES = "verl's log-probabilities don't consider it"
WANTED: dict[str, tuple[tuple[object, ...], str]] = {
    "trainer.use_v1": ((True,), "the old trainer is deprecated, and wants another batch"),
    "trainer.v1.trainer_mode": (("sync",), "the others update weights while sessions run"),
    "trainer.v1.sampler.sync_refill_failed_groups": ((False, None), "a call's tasks are requested at once"),
    "algorithm.filter_groups.enable": ((False, None), "a call's tasks are requested at once"),
    "algorithm.adv_estimator": (("grpo", "gae"), "the others count each row of a session in the baseline"),
    "reward.reward_model.enable": ((False, None), NOT_APPLIED),
    "reward.custom_reward_function.path": ((None,), NOT_APPLIED),
    "distillation.enabled": ((False, None), "a teacher's log-probabilities aren't computed"),
    "actor_rollout_ref.rollout.top_p": ((1.0,), TRUNCATES),
    "actor_rollout_ref.rollout.top_k": ((-1, 0), TRUNCATES),
    "actor_rollout_ref.rollout.enable_rollout_routing_replay": (
        (False, None),
        "routed experts aren't passed; use polar.trainer.exporters.verl",
    ),
}
"""Allowed values of verl's settings, the usual one first, with the reason."""


class Row(NamedTuple):
    """One trace as verl's replay buffer has it."""

    prompt: int
    """The place of its prompt in the batch."""
    sample: int
    """The sample index of its session."""
    key: str
    output: dict[str, Any]
    """The arguments of verl's `AgentLoopOutput`."""


def setting(config: Any, path: str) -> Any:
    """A value of verl's configuration, None where it or a part above it is missing. `config`: mappings in mappings."""
    for name in path.split("."):
        config = None if config is None else config.get(name)
    return config


def check(config: Any) -> None:
    """Raise InputError for settings with which verl would train other tokens or advantages than sessions have, or ignore a setting."""
    for path, (allowed, reason) in WANTED.items():
        if (value := setting(config, path)) not in allowed:
            choices = " or ".join(
                str(one).lower() if isinstance(one, bool) else str(one) for one in allowed if one is not None
            )
            raise InputError(path, value, f"must be {choices or 'unset'}: {reason}")


def samples_of(prompt: Mapping[str, Any], default: int) -> int:
    """The number of samples of a row of verl's dataset. Raises InputError for a row that verl would sample greedily."""
    if not prompt.get("__do_sample__", True):
        raise InputError("__do_sample__", False, "a training samples; leave the column out of the dataset")
    return int(prompt.get("__rollout_n__", default))


def rows(uids: Sequence[str], groups: Sequence[Group], mode: Mode) -> list[Row]:
    """All traces of sessions with a reward, a session's longest last. `groups`: of the prompts `uids`, in their order.

    In the mode `eval`, a session that has a reward and no tokens has a masked row of one token, so that its reward counts. Raises
    NotReadyError if no session has tokens, and InputError as `agent_loop_outputs` does.
    """
    found = [
        (at, trajectory, agent_loop_outputs(trajectory))
        for at, group in enumerate(groups)
        for trajectory in group.trajectories
    ]
    outputs = [output for _, _, each in found for output in each]
    if not outputs:
        raise NotReadyError(f"none of the sessions of {groups[0].task_id} and others has a reward and tokens to train")
    donor = min(outputs, key=lambda output: len(output["prompt_ids"]))

    def made() -> Iterator[Row]:
        for at, trajectory, each in found:
            if mode == "eval" and not each and trajectory.reward is not None:
                each = [_masked(donor, trajectory)]
            for index, output in enumerate(each):
                sample = trajectory.sample_index
                yield Row(at, sample, f"{uids[at]}_{sample}_{index}", output)

    return list(made())


def _masked(donor: Mapping[str, Any], trajectory: Trajectory) -> dict[str, Any]:
    """One token that isn't trained, after another row's prompt."""
    return {
        **donor,
        "response_ids": donor["response_ids"][:1],
        "response_mask": [0],
        "response_logprobs": [0.0],
        "reward_score": trajectory.reward,
        "extra_fields": donor["extra_fields"] | {"session_id": trajectory.session_id},
    }
