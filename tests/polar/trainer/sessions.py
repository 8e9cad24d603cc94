"""`Sessions` stands for a Polar system behind a `TrainingRun`: it has the methods that trainers' modules call, and makes groups at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from polar.trainer.groups import Group
from tests.polar.trainer.writing import trajectory
from topics.types.errors import InputError
from topics.types.task import TaskRequest


class Sessions:
    """Every task's group has the rewards 1, 0, … and its last sample has none."""

    def __init__(self) -> None:
        self.published: list[int] = []
        self.requests: list[TaskRequest] = []
        self.left_out = 0
        self.loaded: Mapping[str, Any] | None = None

    def publish(self, version: int, push: Callable[[], None] | None = None) -> None:
        if push is not None:
            push()
        self.published.append(version)

    def groups(self, requests: Sequence[TaskRequest], mode: str, *, temperature: float) -> list[Group]:
        del temperature
        self.requests += requests
        self.left_out += 1
        assert {request.mode for request in requests} == {mode}
        return [
            Group(
                one.task_id,
                [
                    trajectory(one.task_id, at, one.num_samples, None if at == one.num_samples - 1 else float(at == 0))
                    for at in range(one.num_samples)
                ],
            )
            for one in requests
        ]

    def state_dict(self) -> dict[str, Any]:
        return {"run": "r1", "requested": len(self.requests)}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state.get("run") != "r1":
            raise InputError("run", "r1", f"the checkpoint is of the run {state.get('run')!r}")
        self.loaded = state
