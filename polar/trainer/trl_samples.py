"""`SampleQueue`: what TRL's asynchronous trainer reads as its queue of rollouts. The queue itself is Kafka's log.

The feed keeps a bounded number of sessions ahead of the trainer: running, or finished and not yet read. `get` reads the next group when the
trainer needs its rows, so that its age is that at its use. It runs in the trainer's thread.

Invariant: a row that `get` returns was sampled by weights at most `max_staleness` versions old, at the trainer's temperature, and is the
first use of its session's trace.
"""

from __future__ import annotations

import queue
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from typing import Any

import msgspec
import structlog

from polar.trainer.consumer import TrajectoryConsumer
from polar.trainer.exporters.trl import RolloutSample, rollout_samples
from polar.trainer.feeding import Feed
from polar.trainer.groups import Group, Rule
from polar.trainer.handed_out import HandedOut, Progress
from polar.trainer.prompt_tasks import PromptTasks
from polar.trainer.sampling_expectation import expect
from polar.trainer.staleness import Staleness
from topics.environment.settings import Settings
from topics.fleet import Publication
from topics.types.errors import InputError
from topics.types.task import TaskRequest

LOOK_S = 0.5
"""For one look at the log; `get` looks until its own timeout."""

log = structlog.get_logger()


@dataclass(frozen=True)
class Plan:
    """The requests: the prompts in order, again and again, each with the same number of samples."""

    tasks: PromptTasks[Any]
    prompts: Any
    """A sequence."""
    samples: int
    temperature: float

    def request(self, number: int) -> TaskRequest:
        """The task of the group of this number, from 0 on. Raises InputError."""
        prompt = self.prompts[number % len(self.prompts)]
        return self.tasks.request(prompt, str(number), samples=self.samples, mode="train", temperature=self.temperature)

    def requests(self) -> Iterator[TaskRequest]:
        """All of them."""
        return map(self.request, count())

    def number(self, task_id: str) -> int | None:
        """The number of a group; None: its task isn't one of these."""
        digits = task_id.rpartition("-")[0].rpartition("-")[2]
        if not digits.isdecimal() or self.request(int(digits)).task_id != task_id:
            return None
        return int(digits)


class SampleQueue:
    """A queue with TRL's `get` and `qsize`, between `start` and `stop`."""

    def __init__(
        self,
        settings: Settings,
        plan: Plan,
        publication: Callable[[], Publication],
        *,
        max_in_flight: int,
        max_staleness: int,
        longest: Callable[[], int],
        report: Callable[[dict[str, float]], None],
    ) -> None:
        """`publication`: of the trainer's weights. `max_in_flight`: sessions ahead of the trainer. `longest`: the number of tokens that a
        row may have; 0: any. `report`: gets counts for TRL's log. Raises InputError.
        """
        self._plan, self._publication = plan, publication
        self._max_staleness, self._longest, self._report = max_staleness, longest, report
        self._consumer = TrajectoryConsumer(settings=settings, run=plan.tasks.run, timeout_s=LOOK_S)
        self._feed = Feed(plan.requests(), max_in_flight, settings=settings)
        self._groups = self._consumer.groups(self._feed)
        self._rules: list[Rule] = [
            self._requested,
            expect(temperature=plan.temperature, logprobs="processed", otherwise_plain=True),
            Staleness(publication, limit=max_staleness),
        ]
        self._handed_out: HandedOut | None = None
        self._progress: Progress | None = None
        self._rows: deque[RolloutSample] = deque()
        self._stack = ExitStack()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a state, before `start`. Raises InputError."""
        try:
            self._progress = msgspec.convert(state, Progress, str_keys=True)
        except msgspec.ValidationError as error:
            raise InputError("state", state, f"not a state_dict() of a queue of samples: {error}") from None
        self._consumer.load_state_dict(self._progress.state.get("consumer", {}))
        self._feed.load_state_dict(self._progress.state.get("feed", {}))

    def state_dict(self) -> dict[str, Any]:
        """A checkpoint of the rows that were trained so far, as JSON values. Before `start`: the one that was loaded, or an empty one."""
        before = self._progress or Progress({})
        progress = before if self._handed_out is None else self._handed_out.progress()
        made: dict[str, Any] = msgspec.to_builtins(progress, str_keys=True)
        return made

    def start(self) -> None:
        """Connect and send the first tasks. Raises NotReadyError, and what sending raises."""
        try:
            self._stack.enter_context(self._consumer)
            self._stack.enter_context(self._feed)
        except BaseException:
            self.stop()
            raise
        self._handed_out = HandedOut(self._progress or Progress(self._reading()))

    def stop(self) -> None:
        """Disconnect; a second time does nothing. Sessions that run go on, and their groups stay on the log."""
        self._stack.close()

    def qsize(self) -> int:
        """Rows that were read and not yet returned."""
        return len(self._rows)

    def get(self, timeout: float) -> RolloutSample:
        """The next row. Raises queue.Empty after `timeout` seconds without one, and what reading or sending raises."""
        ends = time.monotonic() + timeout
        while True:
            while self._rows:
                if self._is_trainable(row := self._rows.popleft()):
                    self._started.give(row.group_id)
                    return row
                self._started.leave_out(row.group_id)
            if time.monotonic() >= ends:
                raise queue.Empty
            self._read()

    def batched(self, numbers: list[int]) -> None:
        """TRL has made a micro-batch of rows of the groups of these numbers, one for each row."""
        self._started.batched(numbers)

    def trained(self) -> None:
        """TRL has trained its oldest micro-batch."""
        self._started.trained()

    @property
    def _started(self) -> HandedOut:
        if self._handed_out is None:
            raise RuntimeError("the queue of samples wasn't started")
        return self._handed_out

    def _reading(self) -> dict[str, Any]:
        return {"consumer": self._consumer.state_dict(), "feed": self._feed.state_dict()}

    def _requested(self, group: Group, counts: Counter[str]) -> Group | None:
        """A rule: leave out groups of tasks that aren't the plan's; reason `unrequested_group`."""
        if self._plan.number(group.task_id) is not None:
            return group
        counts["unrequested_group"] += 1
        return None

    def _read(self) -> None:
        """Read one group, if there is one within `LOOK_S`. One that the rules drop is counted at once, however many follow it."""
        group: Group | None = next(iter(self._groups), None)
        counts: Counter[str] = Counter()
        for rule in self._rules:
            group = None if group is None else rule(group, counts)
        self._count(counts)
        if group is None:
            return
        number = self._plan.number(group.task_id)
        assert number is not None, "a rule has left out others"
        rows = rollout_samples(group, group_id=number)
        self._rows.extend(rows[self._started.add(number, len(rows), self._reading()) :])

    def _is_trainable(self, row: RolloutSample) -> bool:
        """Whether TRL would train the row, too; what it would drop itself, it would drop uncounted by our checkpoint."""
        version = self._publication().version
        assert version is not None, "published by the trainer"
        if version - row.model_version > self._max_staleness:
            self._count(Counter(stale_sample=1))
            return False
        if 0 < self._longest() < len(row.input_ids):
            self._count(Counter(too_long_sample=1))
            return False
        return True

    def _count(self, reasons: Counter[str]) -> None:
        if reasons:
            log.warning("samples aren't trained", action="trainer.left_out", reasons=dict(reasons))
            self._report({f"polar/{reason}_total": float(number) for reason, number in reasons.items()})
