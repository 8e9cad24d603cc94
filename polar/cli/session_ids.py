"""Names of tasks and sessions on the command line."""

from __future__ import annotations

import re
from dataclasses import dataclass

from topics.types.errors import InputError
from topics.types.session import TaskState

FIELD = "TASK|SESSION"
HELP = "A task's id, or a session's: <task>.<sample>."
SHAPE = re.compile(r"(?P<task>[A-Za-z0-9][A-Za-z0-9_-]{0,127})(\.(?P<sample>0|[1-9]\d{0,3}))?")


@dataclass(frozen=True)
class Target:
    name: str
    """As typed."""
    task_id: str
    sample: int | None
    """None: the whole task."""

    def check(self, task: TaskState) -> None:
        """Raise InputError if the task's body is known and has no such sample."""
        if self.sample is not None and task.body_hash is not None and self.sample >= task.num_samples:
            raise InputError(FIELD, self.name, f"no such sample; {self.task_id} has 0 to {task.num_samples - 1}")


def parse(name: str) -> Target:
    """The task or session of this name. Raises InputError for anything that is no id."""
    found = SHAPE.fullmatch(name)
    if found is None:
        raise InputError(FIELD, name, "expected a task id, or <task id>.<sample index>")
    sample = found["sample"]
    return Target(name, found["task"], None if sample is None else int(sample))
