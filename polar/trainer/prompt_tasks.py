"""The tasks that a trainer requests for its prompts: the user's function makes the bodies, and ids follow from run, place and body.

Invariant: a process that resumes requests the same ids for the same prompts at the same places, so sessions that ran don't run again.
Another prompt at the same place has another id.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any, Generic, Literal, TypeVar

from topics.types.errors import InputError
from topics.types.task import TaskRequest, parse

Mode = Literal["train", "eval"]
Prompt = TypeVar("Prompt")

OURS = ("task_id", "num_samples", "mode", "run", "output_topic")
"""Fields of a task that follow from what requests it, such as a trainer's configuration."""
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
        require_free(body, "the trainer's configuration")
        sampling = {"temperature": temperature, **body.get("sampling", {})}
        if mode == "train" and sampling["temperature"] != temperature:
            reason = f"must be the trainer's temperature, which is {temperature:g}; leave it out of the task"
            raise InputError("sampling.temperature", sampling["temperature"], reason)
        body |= {"num_samples": samples, "mode": mode, "run": self.run, "sampling": sampling}
        task = parse({**body, "task_id": self.run})
        digest = hashlib.sha256(task.canonical()).hexdigest()[:DIGEST]
        task_id = f"{self.run}-{'' if mode == 'train' else 'eval-'}{place}-{digest}"
        return task.model_copy(update={"task_id": task_id})


def require_free(body: Mapping[str, Any], source: str, names: Collection[str] = OURS) -> None:
    """Raise InputError for a field of the body that follows from `source`."""
    for name in names:
        if name in body:
            raise InputError(name, body[name], f"follows from {source}; leave it out of the task")


def body_function(name: str, path: str) -> Callable[[Any], Mapping[str, Any]]:
    """The function of an import path `MODULE.FUNCTION`, the value of the trainer's setting `name`. Raises InputError."""
    module, _, function = path.rpartition(".")
    try:
        found: Callable[[Any], Mapping[str, Any]] = getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        reason = f"must be MODULE.FUNCTION, importable in the trainer's process: {error}"
        raise InputError(name, path, reason) from None
    return found


class StepPlaces:
    """Places `STEP-CALL-NUMBER`, for trainers whose prompts have no number of their own. A trainer may call several times a step."""

    def __init__(self) -> None:
        self._step = -1
        self._calls: Counter[Mode] = Counter()
        """Numbers of calls of this step."""

    def __call__(self, step: int, mode: Mode, count: int) -> list[str]:
        """The places of the next call's prompts."""
        if step != self._step:
            self._step, self._calls = step, Counter()
        call = self._calls[mode]
        self._calls[mode] += 1
        return [f"{step}-{call}-{at}" for at in range(count)]
