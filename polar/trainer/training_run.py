"""`TrainingRun`: one training's connection to Polar, for trainers that call a function for each batch of rollouts.

    with TrainingRun(settings, "r1") as run:
        run.publish(version)
        groups = run.groups(requests, "train", temperature=1.0)

It runs on an event loop in a thread of its own, so that trainers with or without a loop can call it; the methods block.

Invariant: a trained token of a returned group was sampled by the weights of the last `publish`, and at the trainer's temperature.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, Self

import msgspec

from polar.client import Client
from polar.fleet import Fleet
from polar.trainer.groups import Group
from polar.trainer.loop_thread import LoopThread
from polar.trainer.prompt_tasks import Mode
from polar.trainer.published_weights import PublishedWeights
from polar.trainer.requested_groups import RequestedGroups
from polar.trainer.sampling_expectation import expect
from polar.trainer.staleness import Staleness
from topics.environment.settings import Settings
from topics.types.errors import InputError
from topics.types.task import TaskRequest


class TrainingRun:
    """The fleet and the requested groups of one run, inside `with`. One thread uses it at a time."""

    def __init__(self, settings: Settings, run: str) -> None:
        self._run = run
        self._thread = LoopThread("training_run")
        self._fleet, self._table = Fleet(settings), Client(settings).table()
        self._requested: dict[Mode, RequestedGroups] = {
            "train": RequestedGroups(settings, self._table, run=run),
            "eval": RequestedGroups(settings, self._table, run=run, topic="eval"),
        }
        self._weights = PublishedWeights(self._fleet)
        self._stack = AsyncExitStack()

    def __enter__(self) -> Self:
        try:
            self._thread.call(self._enter())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._thread.call(self._stack.aclose())
        finally:
            self._thread.stop()

    async def _enter(self) -> None:
        parts: list[AbstractAsyncContextManager[Any]] = [self._fleet, self._table, *self._requested.values()]
        for each in parts:
            await self._stack.enter_async_context(each)

    def interrupt(self) -> None:
        """Cancel the call in progress, which then raises CancelledError of `concurrent.futures`. From another thread."""
        self._thread.interrupt()

    def state_dict(self) -> dict[str, Any]:
        """The run's name and its positions in the log after the groups returned so far, as JSON values."""
        return {"run": self._run, **{mode: one.state_dict() for mode, one in self._requested.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state, before the first request. Raises InputError for a state of another run, or none of `state_dict`."""
        require_run(state, self._run)
        for mode, one in self._requested.items():
            one.load_state_dict(state.get(mode, {}))

    @property
    def left_out(self) -> int:
        """Groups that were dropped or that nobody requested, so far."""
        return sum(one.counts.total() for one in self._requested.values())

    def publish(self, version: int, push: Callable[[], None] | None = None) -> None:
        """Publish the version of the engine's weights in a pause of the fleet. Raises FleetError, and what `push` does.

        `push` gives the engine the weights inside the pause. Without it the engine has them already, and a version that this process
        published last isn't published again.
        """
        if push is None and self._weights.is_current(version):
            return
        self._thread.call(self._weights.publish(version, push))

    def groups(self, requests: Sequence[TaskRequest], mode: Mode, *, temperature: float) -> list[Group]:
        """The groups in the order of the tasks, each sampled by the published weights. Raises as `RequestedGroups.groups` does.

        In the mode `train` a group lacks the samples whose log-probabilities a trainer can't compute from the temperature alone.
        """
        found = self._thread.call(self._requested[mode].groups(requests, Staleness(self._weights.current, limit=0)))
        return found if mode == "eval" else [_as_expected(group, temperature) for group in found]


def require_run(state: object, run: str) -> None:
    """Raise InputError for a trainer's checkpoint that isn't of this run."""
    if not isinstance(state, Mapping) or state.get("run") != run:
        name = repr(state.get("run")) if isinstance(state, Mapping) else "unknown"
        raise InputError("run", run, f"the checkpoint is of the run {name}; resume under its name")


def _as_expected(group: Group, temperature: float) -> Group:
    rule = expect(temperature=temperature, logprobs="processed", otherwise_plain=True)
    return rule(group, Counter()) or msgspec.structs.replace(group, trajectories=[])
