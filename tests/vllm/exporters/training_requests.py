"""`Requests` stands for a Polar system behind a `TrainingRun`, in the programs of this folder."""

from __future__ import annotations

from collections.abc import Sequence

from polar.trainer.groups import Group
from topics.types.task import TaskRequest


class Requests:
    """Every request of tasks gets these groups; the tasks must have this number of samples."""

    left_out = 0

    def __init__(self, groups: Sequence[Group], *, samples: int) -> None:
        self.instructions: list[str] = []
        self.published: list[int] = []
        self._groups, self._samples = groups, samples

    def publish(self, version: int) -> None:
        self.published.append(version)

    def groups(self, requests: Sequence[TaskRequest], mode: str, *, temperature: float) -> list[Group]:
        expected = {(mode, self._samples, temperature)}
        assert {(one.mode, one.num_samples, one.sampling.temperature) for one in requests} == expected
        self.instructions += [one.instruction for one in requests]
        return [*self._groups]

    def state_dict(self) -> dict[str, str]:
        return {"run": "r1"}
