"""What `cancel` and `status` are pointed at: a task, or one session of it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from topics.types.errors import InputError
from topics.types.session import TaskState

FIELD = "TASK|SESSION"
SHAPE = re.compile(r"(?P<task>[A-Za-z0-9][A-Za-z0-9_-]{0,127})(\.(?P<sample>0|[1-9]\d{0,3}))?")


@dataclass(frozen=True)
class Target:
    """A task id, and where a session is meant its sample index."""

    name: str
    """As it was given."""
    task_id: str
    sample: int | None

    def check(self, task: TaskState) -> None:
        """Raises InputError where the task, once its body is known, has no such session."""
        if self.sample is not None and task.body_hash is not None and self.sample >= task.num_samples:
            raise InputError(FIELD, self.name, f"no such sample; {self.task_id} has 0 to {task.num_samples - 1}")


def read(given: str) -> Target:
    """Raises InputError for what is no id."""
    found = SHAPE.fullmatch(given)
    if found is None:
        raise InputError(FIELD, given, "expected a task id, or <task id>.<sample index>")
    sample = found["sample"]
    return Target(given, found["task"], None if sample is None else int(sample))
