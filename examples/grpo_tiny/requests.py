"""The work as TaskRequests: what each step trains on, and what is evaluated. The same seed and step give the same tasks, byte for byte.

Invariant: so a step that is submitted again after a crash is the same step, and none of its sessions runs twice.
"""

from __future__ import annotations

import random
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from examples.grpo_tiny import agent
from examples.tiny_model.tasks import HELD_OUT, Task, draw, line
from polar import InputError, TaskRequest, parse_task

AGENT = Path(agent.__file__)
PYTHON = Path(sys.executable).resolve()
"""The interpreter itself: what `python3` on PATH is may take longer to start than the agent to work."""
SAMPLES = 8
"""Sessions of a prompt: GRPO's group."""
HELD_OUT_SAMPLES = 4
RUN_S = 120.0
EVALUATOR = "examples.grpo_tiny.evaluator:Repaired"


@dataclass(frozen=True)
class Work:
    """What all tasks of a run have in common."""

    seed: int
    builder: str = "prefix_merging"
    evaluator: str = EVALUATOR

    def step(self, number: int, prompts: int) -> list[TaskRequest]:
        """A training step's tasks. Raises InputError."""
        if prompts < 1:
            raise InputError("prompts", prompts, "must be 1 or more tasks a step")
        rng = random.Random(f"{self.seed} step {number}")
        return [self._request(f"step-{number}-{at}", draw(rng), SAMPLES, "train") for at in range(prompts)]

    def held_out(self, name: str, sessions: int) -> list[TaskRequest]:
        """Tasks of pairs that nothing trained asks for; the same ones whatever their name. Raises InputError."""
        if sessions < 1 or sessions % HELD_OUT_SAMPLES:
            raise InputError("held_out", sessions, f"must be a positive multiple of {HELD_OUT_SAMPLES} sessions")
        rng = random.Random(f"{self.seed} held out")
        return [
            self._request(f"{name}-{at}", draw(rng, [pair]), HELD_OUT_SAMPLES, "eval")
            for at, pair in enumerate(_taken(HELD_OUT, sessions // HELD_OUT_SAMPLES))
        ]

    def _request(self, task_id: str, task: Task, samples: int, mode: Literal["train", "eval"]) -> TaskRequest:
        body = {**body_of(task, self.evaluator), "builder": {"strategy": self.builder}}
        return parse_task({**body, "task_id": task_id, "num_samples": samples, "mode": mode})


def body_of(task: Task, evaluator: str) -> dict[str, Any]:
    """A task's body, as far as it follows from the work."""
    return {
        "instruction": task.request,
        "runtime": {
            "prepare": [
                {"type": "upload_file", "source": str(AGENT), "target": AGENT.name},
                {"type": "exec", "command": "\n".join(_written(task))},
            ]
        },
        "agent": {"harness": "shell", "custom_shell": {"command": f"exec {PYTHON} -S -E {AGENT.name}"}},
        "evaluator": {"strategy": evaluator, "config": {"goal": _goal(task)}},
        "timeouts": {"run": RUN_S},
    }


def _taken(pairs: tuple[tuple[str, int], ...], count: int) -> Iterator[tuple[str, int]]:
    """So many, from the first on, and round again."""
    return (pairs[at % len(pairs)] for at in range(count))


def _makefile(task: Task) -> str:
    wanted = shlex.quote(line(task.key, task.value))
    return f"test:\n\t@grep -qx {wanted} {shlex.quote(task.path)}\n"


def _goal(task: Task) -> dict[str, Any]:
    return {**task.goal, "Makefile": _makefile(task)}


def _written(task: Task) -> Iterator[str]:
    """A shell command for each file, that writes it."""
    for name, text in {**task.files, "Makefile": _makefile(task)}.items():
        yield f"printf %s {shlex.quote(text)} > {shlex.quote(name)}"
