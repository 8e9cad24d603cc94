"""TRL's AsyncGRPOTrainer trains on Polar's sessions while further ones run: its rollout worker, and its weight transfer through the fleet.

    rollouts = AsyncRollouts(task, served_folder(folder, [url]), run="r1")
    trainer = AsyncGRPOTrainer(model, args=config, train_dataset=prompts, rollout_worker=rollouts, weight_transfer=rollouts)
    rollouts.attach(trainer)
    trainer.train(resume_from_checkpoint=last_checkpoint(config.output_dir))

Made for trl 1.16.0 (`RolloutWorkerProtocol` and `WeightTransferProtocol` in `trl/experimental/async_grpo/async_grpo_trainer.py`). The
policy version is TRL's `model_version`, which counts its weight syncs, across resumes too.

Invariant: TRL's checkpoint holds what was trained of the log beside the weights. A process that resumes from a checkpoint trains no session
twice, wherever the process before it was killed.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from polar.fleet import Fleet
from polar.trainer.loop_thread import LoopThread
from polar.trainer.prompt_tasks import PromptTasks
from polar.trainer.published_weights import PublishedWeights
from polar.trainer.training_run import require_run
from polar.trainer.trl_samples import Plan, SampleQueue
from polar.trainer.trl_settings import check_async, checkpoint_version, last_checkpoint, prompts_of
from topics.environment.settings import Settings, load

try:
    from transformers import TrainerCallback
    from transformers.trainer_callback import ExportableState
except ImportError as error:
    raise ImportError(f"polar.trainer.trl_async needs trl 1.16.0: pip install trl==1.16.0 ({error})") from None

__all__ = ["AsyncRollouts", "last_checkpoint"]


class AsyncRollouts(TrainerCallback, ExportableState):  # type: ignore[misc]
    """A `rollout_worker` and `weight_transfer`, and the callback that keeps the position in TRL's checkpoints. Of one trainer."""

    def __init__(
        self,
        task: Callable[[Any], Mapping[str, Any]],
        push: Callable[[Mapping[str, Any], int], None],
        *,
        run: str,
        data: str | Path | None = None,
        settings: Settings | None = None,
    ) -> None:
        """`task`: the body of the task for a prompt of the dataset (docs/task.md), without the fields `prompt_tasks.OURS`; equal for an
        equal prompt.

        `push` gives the engine CPU tensors by name, and their version, while the fleet is paused (`vllm_weights.served_folder`). `run`: a
        name for this training, which its tasks and trajectories carry; another training needs another name. `data`, `settings`: as for
        `TrajectoryConsumer`. Raises InputError.
        """
        self._tasks, self._push = PromptTasks(task, run=run), push
        self._settings = settings or load(None if data is None else Path(data))
        self._fleet = Fleet(self._settings)
        self._weights = PublishedWeights(self._fleet)
        self._trainer: Any = None
        self._thread: LoopThread | None = None
        self._samples: SampleQueue | None = None
        self.rollout_buffer = _Buffer(self)
        self.metrics_queue: queue.SimpleQueue[dict[str, float]] = queue.SimpleQueue()
        """Figures that TRL adds to its log: numbers of groups and samples that aren't trained, by reason."""

    def attach(self, trainer: Any) -> None:
        """Attach this to the AsyncGRPOTrainer that has it as its worker and weight transfer, before `train`.

        Raises InputError for a configuration that would train on other tokens than were sampled, or couldn't resume, and for a dataset
        whose prompts have no order.
        """
        args = trainer.args
        check_async(args)
        self._trainer = trainer
        if not trainer.accelerator.is_main_process:
            return
        self._samples = SampleQueue(
            self._settings,
            Plan(self._tasks, prompts_of(trainer.train_dataset), args.num_generations, args.temperature),
            self._weights.current,
            max_in_flight=max(args.max_inflight_tasks, args.num_generations),
            max_staleness=args.max_staleness,
            longest=lambda: args.token_budget or 0,
            report=self.metrics_queue.put,
        )
        trainer._trained_groups = _TrainedGroups(self._samples.batched)
        trainer.add_callback(self)

    # The weight transfer. TRL calls it in this order, on the main process.

    def init_weight_transfer(self) -> None:
        """Connect, and resume from the checkpoint that was loaded. Raises NotReadyError, and InputError for a checkpoint of another run."""
        self._resume(self._queue)
        self._thread = LoopThread("trl_async")
        self._thread.call(self._fleet.__aenter__())

    def pause(self) -> None:
        """Nothing: the fleet pauses when all tensors are there."""

    def send_weights(self, iterator: Iterator[tuple[str, Any]]) -> None:
        """Gather the tensors, and push and publish them in a pause of the fleet. Raises FleetError, and what `push` does."""
        assert self._thread is not None, "after init_weight_transfer"
        tensors = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in iterator}
        version = self._trainer.model_version + 1
        self._thread.call(self._weights.publish(version, lambda: self._push(tensors, version)))

    def resume(self) -> None:
        """Nothing: the fleet has resumed with the publication."""

    def destroy(self) -> None:
        """Disconnect from the fleet."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.call(self._fleet.__aexit__(None, None, None))
            thread.stop()

    # The rollout worker.

    def start(self) -> None:
        """Send the first tasks. Raises NotReadyError."""
        self._queue.start()

    def stop(self) -> None:
        """Disconnect from the log. Sessions that run go on."""
        self._queue.stop()

    def update_model_version(self, model_version: int) -> None:
        """Nothing: `send_weights` published the version."""

    def check_health(self, stale_after_s: float) -> None:
        """Nothing: reading the log raises what is wrong, and a session may last longer than `stale_after_s`."""

    # The callback.

    def on_substep_end(self, *_: Any, **__: Any) -> None:
        """A micro-batch was trained."""
        self._queue.trained()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """The last micro-batch of an update was trained."""
        self._queue.trained()

    def state(self) -> dict[str, Any]:
        """The part of TRL's checkpoint that is ours: the rows that were trained, and the version of the weights."""
        version = checkpoint_version(self._trainer)
        return {
            "args": {},
            "attributes": {"run": self._tasks.run, "version": version, "samples": self._queue.state_dict()},
        }

    @property
    def _queue(self) -> SampleQueue:
        if self._samples is None:
            raise RuntimeError("call rollouts.attach(trainer) before trainer.train()")
        return self._samples

    def _resume(self, samples: SampleQueue) -> None:
        trainer = self._trainer
        if trainer.state.global_step == 0:
            return
        kept = (trainer.state.stateful_callbacks.get(type(self).__name__) or {}).get("attributes", {})
        require_run(kept, self._tasks.run)
        samples.load_state_dict(kept["samples"])
        # TRL restores both for its own worker alone. Its first sync adds 1, and the checkpoint's weights have their version again.
        trainer.model_version = kept["version"] - 1
        trainer._groups_before_resume = kept["samples"]["groups"]


class _Buffer:
    """The methods of a queue that TRL uses."""

    def __init__(self, rollouts: AsyncRollouts) -> None:
        self._rollouts = rollouts

    def get(self, timeout: float) -> Any:
        return self._rollouts._queue.get(timeout)

    def qsize(self) -> int:
        return self._rollouts._queue.qsize()


class _TrainedGroups(set[int]):
    """TRL's set of group ids, which its collator updates once for each micro-batch, with one id for each row."""

    def __init__(self, batched: Callable[[list[int]], None]) -> None:
        super().__init__()
        self._batched = batched

    def update(self, *numbers: Iterable[int]) -> None:
        for batch in map(list, numbers):
            self._batched(batch)
            super().update(batch)
