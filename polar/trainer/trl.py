"""TRL's GRPOTrainer trains on Polar's sessions: a `rollout_func` whose rollouts are tasks, and TRL's weight sync through the fleet.

    rollouts = rollout_func(task, served_folder(folder, [url]), run="r1")
    trainer = GRPOTrainer(model, rollouts.reward, args=config, train_dataset=prompts, rollout_func=rollouts)
    with rollouts.of(trainer):
        trainer.train(resume_from_checkpoint=last_checkpoint(config.output_dir))

Made for trl 1.16.0 (`trl/trainer/grpo_trainer.py`). Before a step's rollouts TRL calls its weight sync: the fleet pauses, vLLM gets the
weights, and their version, which is TRL's global step, is published. Then the function submits one task per prompt with `num_generations`
samples and returns the sessions of its group.

Invariant: TRL's checkpoint holds the position in the log beside the weights, and a task's id follows from the step and the prompt. A
process that resumes from a checkpoint trains on each session once, wherever the process before it was killed.

Of several processes the main one speaks to Polar, and the others wait for it in a collective operation. What it raises is raised in all.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from polar.trainer.exporters import trl as exporter
from polar.trainer.exporters.segments import Branches
from polar.trainer.prompt_tasks import Mode, PromptTasks, StepPlaces
from polar.trainer.training_run import TrainingRun
from polar.trainer.trl_settings import check, check_saves, last_checkpoint
from topics.environment.settings import Settings, load
from topics.types.errors import InputError

try:
    from accelerate.utils import broadcast_object_list, gather_object
    from transformers import TrainerCallback
    from transformers.trainer_callback import ExportableState
    from trl.distributed import DistributedBackend
    from trl.generation.vllm_generation import VLLMGeneration
except ImportError as error:
    raise ImportError(f"polar.trainer.trl needs trl 1.16.0: pip install trl==1.16.0 ({error})") from None

__all__ = ["last_checkpoint", "rollout_func"]

T = TypeVar("T")

SCALARS = ("polar/null_rewards", "polar/tokens_left_out", "polar/rollout_seconds", "polar/groups_left_out")
"""What `reward` adds to TRL's log, a step: samples without a reward, sampled tokens of traces that aren't trained, the time from the
submission to the last group, and groups that were dropped or that nobody requested."""


class PolarRollouts(TrainerCallback, ExportableState):  # type: ignore[misc]
    """A `rollout_func`, and the callback that keeps its position in TRL's checkpoints. Used inside `of`."""

    def __init__(
        self,
        task: Callable[[str], Mapping[str, Any]],
        push: Callable[[Mapping[str, Any], int], None],
        *,
        run: str,
        data: str | Path | None = None,
        settings: Settings | None = None,
        branches: Branches = "refuse",
    ) -> None:
        """`task`: the body of the task for a prompt of the dataset (docs/task.md), without the fields `prompt_tasks.OURS`; equal for an
        equal prompt.

        `push` gives the engine CPU tensors by name, and their version, while the fleet is paused (`vllm_weights.served_folder`). `run`: a
        name for this training, which its tasks and trajectories carry; another training needs another name. `data`, `settings`: as for
        `TrajectoryConsumer`. `branches`: what to do with a session of several traces, of which TRL trains one. Raises InputError.
        """
        self._tasks, self._places = PromptTasks(task, run=run), StepPlaces()
        self._push, self._branches = push, branches
        self._settings = settings or load(None if data is None else Path(data))
        self._connection: TrainingRun | None = None
        """None in all processes but the main one."""
        self._accelerator: Any = None
        """The trainer's; None outside of `of`."""
        self._scalars: dict[str, float] = {}

    @contextmanager
    def of(self, trainer: Any) -> Iterator[None]:
        """Attach this to the GRPOTrainer that has it as its `rollout_func`, and connect to Polar until the block's end.

        Raises InputError for a configuration that would train on other tokens than were sampled, or couldn't resume. Raises NotReadyError.
        All processes enter it.
        """
        check(trainer)
        # What GRPOTrainer's constructor does for use_vllm=True, with our weight sync instead of one that needs CUDA and NCCL.
        trainer.use_vllm, trainer.vllm_generation, trainer._last_loaded_step = True, _Sync(trainer, self._sync), -1
        trainer.add_callback(self)
        self._accelerator = trainer.accelerator
        with ExitStack() as stack:

            def connect() -> None:
                self._connection = stack.enter_context(TrainingRun(self._settings, self._tasks.run))

            _on_main(self._accelerator, connect)
            try:
                yield
            finally:
                self._connection = self._accelerator = None

    def reward(
        self,
        reward: list[float | None],
        session_id: list[str],
        log_metric: Callable[[str, float], None],
        log_extra: Callable[[str, list[Any]], None],
        **_: Any,
    ) -> list[float | None]:
        """The reward function: the sessions' rewards. TRL leaves a None out of its baseline. TRL's logs get `SCALARS` and the sessions."""
        for name, value in self._scalars.items():
            log_metric(name, value)
        log_extra("session_id", session_id)
        return reward

    def state(self) -> dict[str, Any]:
        """What TRL's checkpoint keeps: the positions after the groups that were returned."""
        kept = {"run": self._tasks.run} if self._connection is None else self._connection.state_dict()
        return {"args": {}, "attributes": kept}

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Resume from the checkpoint that was loaded. Raises InputError for a checkpoint of another run."""
        del control
        check_saves(args, state.save_steps)
        if state.global_step == 0 or self._accelerator is None:
            return
        kept = state.stateful_callbacks.get(type(self).__name__) or {}
        _on_main(self._accelerator, lambda: self._connected().load_state_dict(kept.get("attributes", {})))

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """The rows of these prompts, this process's slice; the main process collects all. Raises as `RequestedGroups.groups` does."""
        mode: Mode = "train" if trainer.model.training else "eval"
        samples = trainer.num_generations if mode == "train" else trainer.num_generations_eval
        every: list[Any] = gather_object(prompts)
        rows, self._scalars = _on_main(
            trainer.accelerator, lambda: self._rows(every[::samples], samples, mode, trainer)
        )
        begin = trainer.accelerator.process_index * len(prompts)
        return {name: column[begin : begin + len(prompts)] for name, column in rows.items()}

    def _rows(
        self, prompts: Sequence[Any], samples: int, mode: Mode, trainer: Any
    ) -> tuple[dict[str, list[Any]], dict[str, float]]:
        connection = self._connected()
        step = trainer.state.global_step
        temperature = trainer.args.temperature
        requests = [
            self._tasks.request(_text(prompt), place, samples=samples, mode=mode, temperature=temperature)
            for prompt, place in zip(prompts, self._places(step, mode, len(prompts)), strict=True)
        ]
        began, left_out = time.monotonic(), connection.left_out
        groups = connection.groups(requests, mode, temperature=temperature)
        rows = exporter.rollouts(groups, num_generations=samples, branches=self._branches, fill=True)
        # Its advantage is 0, but TRL divides the loss by the number of unmasked tokens.
        rows["env_mask"] = [
            mask if reward is not None else [0] * len(mask)
            for mask, reward in zip(rows["env_mask"], rows["reward"], strict=True)
        ]
        sampled = sum(
            one.stats.trainable_tokens for group in groups for one in group.trajectories if one.reward is not None
        )
        values = (
            rows["reward"].count(None),
            sampled - sum(map(sum, rows["env_mask"])),
            time.monotonic() - began,
            connection.left_out - left_out,
        )
        return rows, dict(zip(SCALARS, map(float, values), strict=True))

    def _sync(self, tensors: Mapping[str, Any], version: int) -> None:
        self._connected().publish(version, lambda: self._push(tensors, version))

    def _connected(self) -> TrainingRun:
        if self._connection is None:
            raise RuntimeError("rollouts are made inside `with rollouts.of(trainer):`")
        return self._connection


rollout_func = PolarRollouts


class _Sync(VLLMGeneration):  # type: ignore[misc]
    """What TRL calls for its weight sync. Its `_iter_named_params` gathers sharded parameters and merges adapters."""

    def __init__(self, trainer: Any, push: Callable[[Mapping[str, Any], int], None]) -> None:
        # Without the base's __init__, which connects to a vLLM server by NCCL.
        self.accelerator, self._dist = trainer.accelerator, DistributedBackend(trainer.accelerator)
        self._trainer, self._push = trainer, push

    @property
    def model(self) -> Any:
        """The trainer's model, which FSDP replaces after this was made."""
        return self._trainer.model

    def sync_weights(self) -> None:
        """Push the model's weights as the version `global_step`."""
        tensors = {}
        for name, tensor in self._iter_named_params():  # every process must iterate
            if self.accelerator.is_main_process:
                tensors[name] = tensor.detach().to("cpu", copy=True).contiguous()
        _on_main(self.accelerator, lambda: self._push(tensors, self._trainer.state.global_step))


def _on_main(accelerator: Any, work: Callable[[], T]) -> T:
    """Run `work` in the main process, and return its result in every process. All processes must call this together.

    An error of `work` is raised in every process: the others would wait for the main one until the collective's timeout. One that can't be
    pickled is a RuntimeError with its text there.
    """
    outcome: list[Any] = [None, None]
    raised: Exception | None = None
    if accelerator.is_main_process:
        try:
            outcome[0] = work()
        except Exception as error:
            raised = error
            outcome[1] = _pickled(error)
    result, pickled = broadcast_object_list(outcome, from_process=0)
    if pickled is not None:
        raise raised or pickle.loads(pickled)  # noqa: S301 - from this training's main process
    return result  # type: ignore[no-any-return]


def _pickled(error: Exception) -> bytes:
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)  # noqa: S301 - made above
    except Exception:
        return pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
    return pickled


def _text(prompt: Any) -> str:
    """Raises InputError for a prompt of messages."""
    if not isinstance(prompt, str):
        raise InputError(
            "prompt", prompt, "must be text: the dataset's column `prompt` names the task, messages are Polar's"
        )
    return prompt
