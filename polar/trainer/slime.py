"""slime trains on Polar's sessions: `--rollout-function-path polar.trainer.slime.generate_rollout`.

Made for THUDM/slime 0.3.1 at 624b824a8 (August 2026), which no package index has. slime keeps its engines, its weight updates and its
checkpoints. A call asks slime's engines for the version of their weights and publishes it, submits a task per prompt and returns the
sessions of its group. slime updates weights between two calls only, also in `train_async.py`, so a call has one version.

Invariant: a task's id follows from the number that slime's data source gives the prompt, and the position in the log lies in the data
source's `metadata`. slime saves both beside its checkpoint. A process that resumes trains on each session once.
"""

from __future__ import annotations

import atexit
import time
from pathlib import Path
from typing import Any

from polar.trainer.prompt_tasks import PromptTasks, body_function
from polar.trainer.slime_batch import Place, check, eval_samples, train_batch, weight_version
from polar.trainer.training_run import TrainingRun
from topics.environment.settings import load
from topics.types.errors import InputError

try:
    from slime.rollout.base_types import RolloutFnEvalOutput, RolloutFnTrainOutput
    from slime.utils.data import Dataset
    from slime.utils.types import Sample
except ImportError as error:
    raise ImportError(
        f"polar.trainer.slime runs inside slime: install slime from its repository, THUDM/slime ({error})"
    ) from None

__all__ = ["generate_rollout"]

METADATA = "polar"
"""Key of the position in the data source's metadata."""


def generate_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """slime's rollout function. It reads three keys of the file of `--custom-config-path`.

    `polar_task`: import path of a function, which gets a prompt's `Sample` and returns the body of its task (docs/task.md) without the
    fields `prompt_tasks.OURS`; equal for an equal prompt. `polar_run`: a name for this training. `polar_data`: as for
    `TrajectoryConsumer`, and optional. Raises InputError, and NotReadyError as `RequestedGroups.groups` does.
    """
    rollouts = _rollouts(args, data_source)
    return rollouts.evaluate(args, rollout_id) if evaluation else rollouts.train(args, data_source)


class Rollouts:
    """The rollouts of one training."""

    def __init__(self, tasks: PromptTasks[Any], run: TrainingRun) -> None:
        """`run`: entered."""
        self._tasks, self._run = tasks, run

    def train(self, args: Any, data_source: Any) -> Any:
        """A batch of `rollout_batch_size` prompts."""
        self._run.publish(weight_version(args))
        prompts = data_source.get_samples(args.rollout_batch_size)
        began, left_out, temperature = time.monotonic(), self._run.left_out, args.rollout_temperature
        places = [Place(samples[0].group_index, samples[0].index) for samples in prompts]
        requests = [
            self._tasks.request(
                samples[0],
                str(place.group_index),
                samples=args.n_samples_per_prompt,
                mode="train",
                temperature=temperature,
            )
            for samples, place in zip(prompts, places, strict=True)
        ]
        groups = self._run.groups(requests, "train", temperature=temperature)
        batch = train_batch(places, groups, args)
        data_source.metadata[METADATA] = self._run.state_dict()
        metrics = {
            "polar/null_rewards": sum(group.rewards.count(None) for group in groups),
            "polar/rollout_seconds": time.monotonic() - began,
            "polar/groups_left_out": self._run.left_out - left_out,
        }
        samples = [[[*map(Sample.from_dict, rollout)] for rollout in rollouts] for rollouts in batch]
        return RolloutFnTrainOutput(samples=samples, metrics=metrics)

    def evaluate(self, args: Any, rollout_id: int) -> Any:
        """All prompts of all evaluation datasets. Sessions without a reward are left out."""
        version = weight_version(args)
        self._run.publish(version)
        data = {}
        for number, config in enumerate(args.eval_datasets):
            prompts = _prompts(config)
            requests = [
                self._tasks.request(
                    prompt,
                    # slime evaluates twice under the number 0, with other weights.
                    f"{rollout_id}-{version}-{number}-{at}",
                    samples=config.n_samples_per_eval_prompt,
                    mode="eval",
                    temperature=config.temperature,
                )
                for at, prompt in enumerate(prompts)
            ]
            groups = self._run.groups(requests, "eval", temperature=config.temperature)
            samples = [
                Sample.from_dict(one)
                for at, group in enumerate(groups)
                for one in eval_samples(Place(at, at * config.n_samples_per_eval_prompt), group)
            ]
            data[config.name] = {
                "rewards": [sample.reward for sample in samples],
                "truncated": [sample.status == Sample.Status.TRUNCATED for sample in samples],
                "samples": samples,
            }
        return RolloutFnEvalOutput(data=data)


_of_process: Rollouts | None = None


def _rollouts(args: Any, data_source: Any) -> Rollouts:
    """The rollouts of this process, which is slime's rollout manager. Raises InputError for its arguments."""
    global _of_process
    if _of_process is None:
        check(args)
        for name in ("polar_task", "polar_run"):
            if not getattr(args, name, None):
                raise InputError(name, None, "set it in the file of --custom-config-path")
        tasks: PromptTasks[Any] = PromptTasks(body_function("polar_task", args.polar_task), run=args.polar_run)
        data = getattr(args, "polar_data", None)
        run = TrainingRun(load(None if data is None else Path(data)), args.polar_run).__enter__()
        atexit.register(run.__exit__)  # slime has no call for the end of its rollouts
        if (state := data_source.metadata.get(METADATA)) is not None:
            run.load_state_dict(state)
        _of_process = Rollouts(tasks, run)
    return _of_process


def _prompts(config: Any) -> list[Any]:
    """The prompts of an evaluation dataset as they stand in its file."""
    dataset = Dataset(
        config.path,
        tokenizer=None,
        processor=None,
        max_length=None,
        prompt_key=config.input_key,
        label_key=config.label_key,
        metadata_key=config.metadata_key,
    )
    return list(dataset.samples)
