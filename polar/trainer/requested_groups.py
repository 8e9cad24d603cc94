"""`RequestedGroups`: submits the tasks of a step and returns their groups in the order of the tasks, for trainers that call a function.

    async with RequestedGroups(settings, table, run="r1") as requested:
        groups = await requested.groups(tasks, Staleness(lambda: publication, limit=0))

Invariant: after a crash, a trainer that loads the state of its checkpoint and requests the same tasks gets the sessions that ran before. A
group is returned once: groups that were read while nobody requested them are never returned later. An earlier process of this run
requested them with weights that the checkpoint doesn't have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Self

import structlog

from polar.client import Client, SessionTable, TaskRefusedError
from polar.trainer.consumer import TrajectoryConsumer
from polar.trainer.groups import Group, Rule
from topics.environment.settings import Settings
from topics.types.errors import InputError, NotReadyError
from topics.types.task import TaskRequest

ANSWER_S = 60.0
"""For a coordinator to show the tasks."""
TRIES = 3
"""Groups of one request that the rule may drop: a fleet that samples with other weights again and again has a fault."""

log = structlog.get_logger()


class RequestedGroups:
    """The requests of one run on one trajectories topic, inside `async with`; one task uses it at a time."""

    def __init__(self, settings: Settings, table: SessionTable, *, run: str, topic: str | None = None) -> None:
        """`table`: an open `Client.table` of all tasks. `topic`: as for `TrajectoryConsumer`. Raises InputError."""
        self._client = Client(settings)
        self._table = table
        self._consumer = TrajectoryConsumer(settings=settings, topic=topic, run=run)
        self._spent: set[str] = set()
        """Task ids of groups that were read and not requested."""
        self._waiting: dict[str, int] = {}
        """Position in the request by task id."""
        self.counts: Counter[str] = Counter()
        """Groups that were left out, by reason: `unrequested`, and the reasons of the rule."""

    async def __aenter__(self) -> Self:
        await self._consumer.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._consumer.__aexit__(*error)

    def state_dict(self) -> dict[str, Any]:
        """The position after the groups returned so far, as JSON values. Taken between two requests."""
        return {"consumer": self._consumer.state_dict(), "spent": sorted(self._spent)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state, between two requests. Raises InputError as `TrajectoryConsumer.load_state_dict` does."""
        if not isinstance(state.get("spent"), list) or not isinstance(state.get("consumer"), Mapping):
            raise InputError("state", state, "not a state_dict() of requested groups")
        self._consumer.load_state_dict(state["consumer"])
        self._spent = set(state["spent"])

    async def groups(self, requests: Sequence[TaskRequest], rule: Rule) -> list[Group]:
        """One group per request. A group that the rule drops is sampled again, as the task `ID-2`, then `ID-3`, and so on.

        Tasks that were submitted before, by a process that was killed, don't run again. Raises NotReadyError if no coordinator answers, or
        the rule drops `TRIES` groups of one request, and what `Client.submit` and the consumer raise.
        """
        names = [request.task_id for request in requests]
        if twice := [name for name, number in Counter(names).items() if number > 1]:
            raise InputError("task_id", twice[0], "is requested twice at a time")
        attempts, dropped = [0] * len(requests), [0] * len(requests)
        found: dict[int, Group] = {}

        async def submit(positions: Sequence[int]) -> None:
            tasks = []
            for at in positions:
                attempts[at], task_id = self._next_id(names[at], attempts[at])
                self._waiting[task_id] = at
                tasks.append(requests[at].model_copy(update={"task_id": task_id}))
            if unseen := await self._client.submit(tasks, self._table, answer_s=ANSWER_S):
                shown = ", ".join(unseen)
                raise NotReadyError(
                    f"no coordinator has shown the tasks {shown} within {ANSWER_S:g} s; see `polar status`"
                )

        self._waiting = {}
        await submit(range(len(requests)))
        log.info("waiting for the groups of a step", action="trainer.requested", groups=len(requests), first=names[0])
        async for group in self._consumer.groups(_Refusals(self._table, self._waiting)):
            at = self._waiting.pop(group.task_id, None)
            if at is None:
                self._spent.add(group.task_id)
                self.counts["unrequested"] += 1
            elif (kept := self._checked(group, rule)) is not None:
                found[at] = kept
            else:
                dropped[at] += 1
                if dropped[at] == TRIES:
                    raise NotReadyError(f"{TRIES} groups of {names[at]} were dropped: {dict(self.counts)}")
                await submit([at])
            if not self._waiting:
                break
        return [found[at] for at in range(len(requests))]

    def _checked(self, group: Group, rule: Rule) -> Group | None:
        counts: Counter[str] = Counter()
        kept = rule(group, counts)
        self.counts.update(counts)
        if kept is None:
            log.warning("a group is sampled again", action="trainer.again", task_id=group.task_id, reasons=dict(counts))
        return kept

    def _next_id(self, name: str, attempt: int) -> tuple[int, str]:
        """The next attempt at a request whose group can still come, and its task id."""
        while True:
            attempt += 1
            task_id = name if attempt == 1 else f"{name}-{attempt}"
            if task_id not in self._spent:
                return attempt, task_id


class _Refusals:
    """A rule that drops nothing, and ends the wait for a task that was refused after it had been shown."""

    def __init__(self, table: SessionTable, waiting: Mapping[str, int]) -> None:
        self._table, self._waiting = table, waiting

    def __call__(self, group: Group, counts: Counter[str]) -> Group:
        del counts  # nothing is dropped here
        return group

    def check(self) -> None:
        """Raises TaskRefusedError."""
        if refusals := [self._table.refusals[name] for name in self._waiting if name in self._table.refusals]:
            raise TaskRefusedError(refusals)
