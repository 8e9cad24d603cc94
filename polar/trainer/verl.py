"""verl trains on Polar's sessions: `actor_rollout_ref.rollout.agent.agent_loop_manager_class=polar.trainer.verl.PolarAgentLoopManager`.

Made for verl 0.9.1 (`verl/trainer/main_ppo.py`, `verl/trainer/ppo/v1/`) in the mode `sync`. verl keeps its engines, its weight updates and
its checkpoints. Its trainer updates weights between two calls only, so a call publishes their version, submits a task per prompt, and puts
the rows of its sessions into verl's TransferQueue, where the trainer finds them. The version is the number that verl gives the weights: the
steps that trained them. A step's samples therefore have the version of the step before.

Invariant: a task's id follows from the step and the place of the prompt, and a file for each step has the position in the log after it. A
process that resumes from verl's checkpoint of a step begins at that step's position.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import structlog

from polar.trainer.groups import Group
from polar.trainer.prompt_tasks import Mode, PromptTasks, StepPlaces, body_function
from polar.trainer.step_positions import StepPositions
from polar.trainer.training_run import TrainingRun
from polar.trainer.verl_batch import Row, check, rows, samples_of, setting
from topics.environment.settings import load
from topics.types.errors import InputError

try:
    import torch
    import transfer_queue
    from tensordict import NonTensorData, TensorDict
    from verl.experimental.agent_loop import AgentLoopOutput
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict
except ImportError as error:
    raise ImportError(f"polar.trainer.verl runs inside verl 0.9.1: pip install verl==0.9.1 ({error})") from None

__all__ = ["PolarAgentLoopManager"]

OF_BATCH = ("uid", "global_steps", "validate", "dummy_tensor", "agent_name")
"""Columns that verl adds to the dataset's; a uid is random."""

log = structlog.get_logger()


class PolarAgentLoopManager:
    """verl's agent loop manager. It connects to Polar at the first batch, and until the process ends.

    It reads three settings: `polar.task`, the import path of a function that gets a row of verl's dataset and returns the body of its task
    (docs/task.md) without the fields `prompt_tasks.OURS`, equal for an equal row; `polar.run`, a name for this training; `polar.data`, as
    for `TrajectoryConsumer`, and optional.
    """

    def __init__(self, config: Any) -> None:
        """`config`: verl's whole configuration. Raises InputError."""
        check(config)
        for name in ("polar.task", "polar.run", "trainer.default_local_dir"):
            if not setting(config, name):
                raise InputError(name, None, f"set it on verl's command line: +{name}=…")
        self._rollout = config["actor_rollout_ref"]["rollout"]
        function = body_function("polar.task", setting(config, "polar.task"))
        self._tasks: PromptTasks[Mapping[str, Any]] = PromptTasks(function, run=setting(config, "polar.run"))
        self._places = StepPlaces()
        self._positions = StepPositions(Path(setting(config, "trainer.default_local_dir")) / "polar")
        data = setting(config, "polar.data")
        self._settings = load(None if data is None else Path(data))
        self._run: TrainingRun | None = None

    @classmethod
    def create(cls, config: Any, **_: object) -> Self:
        """The method that verl calls. Its clients of engines, teachers and reward models aren't used."""
        return cls(config)

    def generate_sequences(self, prompts: TensorDict) -> None:
        """Put the rows of a batch into the TransferQueue, then mark its prompts as finished.

        Returns when all sessions have ended, and verl's own manager before that: so an error here ends the training, which otherwise would
        wait for the batch without end. Raises as `TrainingRun.groups` and `verl_batch.rows` do.
        """
        found = _rows_of(prompts)
        step, mode = int(prompts["global_steps"]), _mode(prompts)
        run = self._connected(step if mode == "eval" else step - 1)
        run.publish(step if mode == "eval" else step - 1)
        groups = self._groups(run, found, step, mode)
        uids = [str(prompt["uid"]) for prompt in found]
        made = rows(uids, groups, mode)
        partition = "val" if mode == "eval" else "train"
        transfer_queue.kv_batch_put(
            keys=[row.key for row in made],
            partition_id=partition,
            fields=list_of_dict_to_tensordict([_fields(row, found[row.prompt]) for row in made]),
            tags=[_tag(row, step) for row in made],
        )
        transfer_queue.kv_batch_put(keys=uids, partition_id=partition, tags=[{"status": "finished"}] * len(uids))
        if mode == "train":  # a process that resumes at this step evaluates again, and finds its sessions
            self._positions.keep(run, step)

    def _groups(self, run: TrainingRun, found: Sequence[Mapping[str, Any]], step: int, mode: Mode) -> list[Group]:
        began, left_out = time.monotonic(), run.left_out
        sampling = self._rollout if mode == "train" else self._rollout["val_kwargs"]
        temperature = float(sampling["temperature"])
        requests = [
            self._tasks.request(
                {name: value for name, value in prompt.items() if name not in OF_BATCH},
                place,
                samples=samples_of(prompt, sampling["n"]),
                mode=mode,
                temperature=temperature,
            )
            for prompt, place in zip(found, self._places(step, mode, len(found)), strict=True)
        ]
        groups = run.groups(requests, mode, temperature=temperature)
        log.info(
            "sessions of a batch have ended",
            action="trainer.batch",
            step=step,
            mode=mode,
            groups=len(groups),
            null_rewards=sum(group.rewards.count(None) for group in groups),
            groups_left_out=run.left_out - left_out,
            seconds=time.monotonic() - began,
        )
        return groups

    def _connected(self, last_step: int) -> TrainingRun:
        """The connection, which begins at the position after this step if it is new. Raises InputError, NotReadyError."""
        if self._run is None:
            self._run = self._positions.connected(self._settings, self._tasks.run, last_step)
        return self._run


def _mode(prompts: TensorDict) -> Mode:
    # `get` returns a wrapper, which has no truth value.
    return "eval" if "validate" in prompts.keys() and prompts["validate"] else "train"  # noqa: SIM118 - a TensorDict has no `in`


def _rows_of(prompts: TensorDict) -> list[dict[str, Any]]:
    """The batch's columns by row: tensors, and plain values."""
    columns = dict(prompts.items())
    return [{name: _value(column, at) for name, column in columns.items()} for at in range(len(prompts))]


def _value(column: Any, at: int) -> Any:
    if isinstance(column, torch.Tensor):
        return column[at]
    one = column if isinstance(column, NonTensorData) else column[at]
    return getattr(one, "data", one)


def _fields(row: Row, prompt: Mapping[str, Any]) -> dict[str, Any]:
    """A row as `AgentLoopWorkerTQ._agent_loop_postprocess` stores it: the output's tensors and the prompt's columns."""
    fields = AgentLoopOutput(**row.output).as_dict()
    input_ids = torch.cat([fields["prompts"], fields["responses"]])
    return {
        **fields,
        **{name: value for name, value in prompt.items() if name not in ("validate", "agent_name")},
        "session_id": row.sample,
        "loss_mask": fields["response_mask"],
        "input_ids": input_ids,
        "position_ids": torch.arange(len(input_ids)),
        "multi_modal_inputs": {},
    }


def _tag(row: Row, step: int) -> dict[str, Any]:
    prompt_len, response_len = len(row.output["prompt_ids"]), len(row.output["response_ids"])
    return {
        "status": "success",
        "prompt_len": prompt_len,
        "response_len": response_len,
        "seq_len": prompt_len + response_len,
        "global_steps": step,
        "min_global_steps": row.output["extra_fields"]["min_global_steps"],
        "max_global_steps": row.output["extra_fields"]["max_global_steps"],
    }
