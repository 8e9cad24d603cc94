"""The tasks that a trainer requests for its prompts: the user's function makes the bodies, and ids follow from run, place and body.

Invariant: a process that resumes requests the same ids for the same prompts at the same places, so sessions that ran don't run again.
Another prompt at the same place has another id.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Any, Generic, Literal, TypeVar

from topics.types.errors import InputError
from topics.types.task import TaskRequest, parse

Mode = Literal["train", "eval"]
Prompt = TypeVar("Prompt")

OURS = ("task_id", "num_samples", "mode", "run")
"""Fields of a task that follow from the trainer's configuration."""
RUN = "[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
"""Names of runs: a task's id begins with its run's name."""
DIGEST = 8
"""Hexadecimal digits of a task's hash in its id."""


class PromptTasks(Generic[Prompt]):
    """The tasks of one run. `Prompt`: what the trainer's dataset has for a prompt."""

    def __init__(self, task: Callable[[Prompt], Mapping[str, Any]], *, run: str) -> None:
        """`task`: the body of the task for a prompt (docs/task.md), without `OURS`; equal for an equal prompt. Raises InputError."""
        if re.fullmatch(RUN, run) is None:
            raise InputError("run", run, f"must match {RUN}")
        self.run = run
        self._task = task

    def request(self, prompt: Prompt, place: str, *, samples: int, mode: Mode, temperature: float) -> TaskRequest:
        """The task of a prompt. `place`: names the prompt's place in the training, without regard to its content.

        `temperature`: the trainer's. A task of the mode `eval` may have its own. Raises InputError.
        """
        body = dict(self._task(prompt))
        if found := [name for name in OURS if name in body]:
            raise InputError(
                found[0], body[found[0]], "follows from the trainer's configuration; leave it out of the task"
            )
        sampling = {"temperature": temperature, **body.get("sampling", {})}
        if mode == "train" and sampling["temperature"] != temperature:
            reason = f"must be the trainer's temperature, which is {temperature:g}; leave it out of the task"
            raise InputError("sampling.temperature", sampling["temperature"], reason)
        body |= {"num_samples": samples, "mode": mode, "run": self.run, "sampling": sampling}
        task = parse({**body, "task_id": self.run})
        digest = hashlib.sha256(task.canonical()).hexdigest()[:DIGEST]
        task_id = f"{self.run}-{'' if mode == 'train' else 'eval-'}{place}-{digest}"
        return task.model_copy(update={"task_id": task_id})


class StepPlaces:
    """Places `STEP-CALL-NUMBER`, for trainers whose prompts have no number of their own. A trainer may call several times a step."""

    def __init__(self) -> None:
        self._call = -1, "", 0
        """Step, mode and number of the last call."""

    def __call__(self, step: int, mode: Mode, count: int) -> list[str]:
        """The places of the next call's prompts."""
        last_step, last_mode, number = self._call
        self._call = step, mode, number + 1 if (last_step, last_mode) == (step, mode) else 0
        return [f"{step}-{self._call[2]}-{at}" for at in range(count)]
