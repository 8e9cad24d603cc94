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

from polar.client import Client
from polar.table import SessionTable, TaskRefusedError
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

    def __init__(self, settings: Settings, table: SessionTable, *, run: str | None, topic: str | None = None) -> None:
        """`table`: an open `Client.table` of all tasks. `run`, `topic`: as for `TrajectoryConsumer`. Raises InputError."""
        self._client = Client(settings)
        self._table = table
        self._consumer = TrajectoryConsumer(settings=settings, topic=topic, run=run)
        self._spent: set[str] = set()
        """Task ids of groups that were read and not requested."""
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

        Tasks that were submitted before, by a process that was killed, don't run again. Raises InputError for an id requested twice,
        NotReadyError if no coordinator answers or the rule drops `TRIES` groups of one request, and what `Client.submit` and the consumer
        raise.
        """
        if not requests:
            return []
        wanted = Wanted([request.task_id for request in requests], rule, self._spent, self.counts)

        async def submit(ids: Mapping[str, int]) -> None:
            tasks = [requests[at].model_copy(update={"task_id": task_id}) for task_id, at in ids.items()]
            if unseen := await self._client.submit(tasks, self._table, answer_s=ANSWER_S):
                names = ", ".join(unseen)
                raise NotReadyError(
                    f"no coordinator has shown the tasks {names} within {ANSWER_S:g} s; see `polar status`"
                )

        await submit(wanted.waiting)
        log.info("waiting for groups", action="trainer.requested", groups=len(requests), first=requests[0].task_id)
        async for group in self._consumer.groups(_Refusals(self._table, wanted.waiting)):
            if (again := wanted.take(group)) is not None:
                log.warning(
                    "a group is sampled again", action="trainer.again", task_id=again, reasons=dict(self.counts)
                )
                await submit({again: wanted.waiting[again]})
            if not wanted.waiting:
                break
        return wanted.groups()


class Wanted:
    """The groups of one call: which are waited for, and which have come."""

    def __init__(self, names: Sequence[str], rule: Rule, spent: set[str], counts: Counter[str]) -> None:
        """`spent`: ids whose group was read before; it gets those that `take` reads and nobody waits for. Raises InputError."""
        if twice := [name for name, number in Counter(names).items() if number > 1]:
            raise InputError("task_id", twice[0], "is requested twice at a time")
        self._names, self._rule, self._spent, self._counts = names, rule, spent, counts
        self._attempts, self._dropped = [0] * len(names), [0] * len(names)
        self._found: dict[int, Group] = {}
        self.waiting: dict[str, int] = {}
        """Position in `names` by task id."""
        for at in range(len(names)):
            self._attempt(at)

    def take(self, group: Group) -> str | None:
        """Take in a group. If the rule drops it, the id under which its task must be submitted again.

        Raises NotReadyError after `TRIES` dropped groups of one name.
        """
        at = self.waiting.pop(group.task_id, None)
        if at is None:
            self._spent.add(group.task_id)
            self._counts["unrequested"] += 1
            return None
        kept = self._rule(group, self._counts)
        if kept is not None:
            self._found[at] = kept
            return None
        self._dropped[at] += 1
        if self._dropped[at] == TRIES:
            reasons = dict(self._counts)
            raise NotReadyError(f"{TRIES} groups of {self._names[at]} were dropped; left out so far: {reasons}")
        return self._attempt(at)

    def groups(self) -> list[Group]:
        """All groups, in the order of the names, once nothing is waited for."""
        return [self._found[at] for at in range(len(self._names))]

    def _attempt(self, at: int) -> str:
        """Wait for the next attempt whose group can still come."""
        while True:
            self._attempts[at] += 1
            task_id = self._names[at] if self._attempts[at] == 1 else f"{self._names[at]}-{self._attempts[at]}"
            if task_id not in self._spent:
                self.waiting[task_id] = at
                return task_id


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
