"""SkyRL trains on Polar's sessions: a `GeneratorInterface` whose trajectories are tasks.

    class Experiment(BasePPOExp):
        def get_generator(self, cfg, tokenizer, inference_engine_client):
            return PolarGenerator(task, run="r1", positions=Path(cfg.trainer.ckpt_path) / "polar")

Made for skyrl 0.3.0 (`skyrl/train/trainer.py`, `skyrl/train/generators/base.py`) with `generator.step_wise_trajectories=true`. SkyRL keeps
its engines and its weight updates. Its synchronous trainer updates weights between two calls only, so a call publishes their version,
submits a task per prompt and returns the sessions of its group. The version is the step that trains on the weights' samples: evaluations
come after a step's update, so they have the next step's version.

Invariant: a task's id follows from the step and the place of the prompt, and a file for each step has the position in the log after it. A
process that resumes from SkyRL's checkpoint of a step begins at that step's position.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from polar.trainer.prompt_tasks import PromptTasks, StepPlaces
from polar.trainer.skyrl_batch import batch, check_sampling, prompts_of
from polar.trainer.step_positions import StepPositions
from polar.trainer.training_run import TrainingRun
from topics.environment.settings import Settings, load
from topics.types.errors import InputError

try:
    from skyrl.train.generators.base import GeneratorInterface, TrajectoryID
except ImportError as error:
    raise ImportError(f"polar.trainer.skyrl needs skyrl 0.3.0: pip install skyrl==0.3.0 ({error})") from None

__all__ = ["PolarGenerator"]

INTERRUPT_S = 0.1
"""Between two interrupts of a batch that was cancelled."""


class PolarGenerator(GeneratorInterface):  # type: ignore[misc]
    """SkyRL's generator. It connects to Polar at the first batch, and until the process ends."""

    def __init__(
        self,
        task: Callable[[Mapping[str, Any]], Mapping[str, Any]],
        *,
        run: str,
        positions: Path,
        data: str | Path | None = None,
        settings: Settings | None = None,
    ) -> None:
        """`task`: the body of the task for a prompt (docs/task.md), without the fields `prompt_tasks.OURS`; equal for an equal prompt.

        A prompt is a mapping with the keys `prompt` (messages), `env_class`, `env_extras` (the row's other columns) and `uid`. `run`: a
        name for this training. `positions`: a folder beside SkyRL's checkpoints, which must outlive the process as they do; it gets a
        small file per step. `data`, `settings`: as for `TrajectoryConsumer`. Raises InputError.
        """
        self._tasks, self._places = PromptTasks(task, run=run), StepPlaces()
        self._positions = StepPositions(positions)
        self._settings = settings or load(None if data is None else Path(data))
        self._run: TrainingRun | None = None
        self._is_busy = False

    async def generate(self, input_batch: Mapping[str, Any], disable_tqdm: bool = True) -> dict[str, Any]:
        """SkyRL's `GeneratorOutput`, in the order of the batch's prompts. Raises as `TrainingRun.groups`, `skyrl_batch.batch` and
        `skyrl_batch.prompts_of` do."""
        del disable_tqdm
        if self._is_busy:
            raise RuntimeError(
                "SkyRL's fully asynchronous trainer updates weights in the middle of batches: use the synchronous one"
            )
        self._is_busy = True
        try:
            return await self._in_thread(input_batch)
        finally:
            self._is_busy = False

    async def _in_thread(self, input_batch: Mapping[str, Any]) -> dict[str, Any]:
        """`_generate` in a thread. Cancelling this, as Ctrl-C does, ends the thread: a program's end waits for it."""
        work = asyncio.create_task(asyncio.to_thread(self._generate, input_batch), name="polar_generate")
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            # Again, since the thread may have been between two calls.
            while not work.done():
                if self._run is not None:
                    self._run.interrupt()
                await asyncio.wait([work], timeout=INTERRUPT_S)
            work.exception()  # seen: otherwise asyncio logs it
            raise

    def _generate(self, input_batch: Mapping[str, Any]) -> dict[str, Any]:
        metadata, sampling = input_batch["batch_metadata"], input_batch["sampling_params"] or {}
        if metadata is None or metadata.global_step is None:
            raise InputError("batch_metadata", metadata, "needs a step: submit tasks to evaluate without a training")
        step, mode = metadata.global_step, metadata.training_phase
        temperature = check_sampling(sampling, mode)
        prompts, samples = prompts_of(input_batch)
        run = self._connected(step if mode == "eval" else step - 1)
        run.publish(step + 1 if mode == "eval" else step)
        requests = [
            self._tasks.request(prompt, place, samples=samples, mode=mode, temperature=temperature)
            for prompt, place in zip(prompts, self._places(step, mode, len(prompts)), strict=True)
        ]
        began, left_out = time.monotonic(), run.left_out
        groups = run.groups(requests, mode, temperature=temperature)
        output = batch([prompt["uid"] for prompt in prompts], groups)
        output["trajectory_ids"] = [TrajectoryID(*one) for one in output["trajectory_ids"]]
        output["rollout_metrics"] = {
            "polar/null_rewards": sum(group.rewards.count(None) for group in groups),
            "polar/rollout_seconds": time.monotonic() - began,
            "polar/groups_left_out": run.left_out - left_out,
        }
        if mode == "train":  # a process that resumes at this step evaluates again, and finds its sessions
            self._positions.keep(run, step)
        return output

    def _connected(self, last_step: int) -> TrainingRun:
        """The connection, which begins at the position after this step if it is new. Raises InputError, NotReadyError."""
        if self._run is None:
            self._run = self._positions.connected(self._settings, self._tasks.run, last_step)
        return self._run
