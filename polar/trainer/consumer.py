"""`TrajectoryConsumer`: trajectories or whole groups, by `for` or `async for`, and a state to go on from after a crash.

Invariant: between two items `state_dict()` says exactly what was handed out. It is the trainer's to keep, beside its weights, since
only the two together are a checkpoint: no consumer group stores a position. What was handed out is `progress.py`'s, reading `reader.py`'s.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import structlog

from polar.trainer.groups import Checked, Group, GroupDeadline, Rule, enough, group_deadline
from polar.trainer.loop_thread import LoopThread
from polar.trainer.progress import Fold, Groups, Items, Mark, State, Trajectories
from polar.trainer.reader import Reader, Start
from topics import trajectories
from topics.contract.codec import DecodeError, UnknownRecord
from topics.environment.settings import Settings, load
from topics.log.kafka import Record
from topics.types import ids
from topics.types.errors import InputError
from topics.types.trajectory import Trajectory

OUTAGE_S = 300.0

log = structlog.get_logger()

T = TypeVar("T")


@dataclass(frozen=True)
class Stream(Generic[T]):
    """Items as they come; every loop over it goes on where the last one ended."""

    _take: Callable[[], T | None]
    _fill: Callable[[], Awaitable[bool]]
    _fill_from_outside: Callable[[], bool]

    def __iter__(self) -> Iterator[T]:
        while (item := self._take()) is not None or self._fill_from_outside():
            if item is not None:
                yield item

    async def __aiter__(self) -> AsyncIterator[T]:
        while (item := self._take()) is not None or await self._fill():
            if item is not None:
                yield item


class TrajectoryConsumer:
    """Reads a trajectories topic. A context manager, `with` or `async with`; one thread or task uses it at a time.

    Iterating it gives trajectories, iterating `groups()` whole groups; one consumer does one of the two.
    """

    def __init__(
        self,
        data: str | Path | None = None,
        *,
        settings: Settings | None = None,
        topic: str | None = None,
        run: str | None = None,
        start: Start = "earliest",
        timeout_s: float | None = None,
        outage_s: float = OUTAGE_S,
        allow_gap: bool = False,
    ) -> None:
        """Of the system whose data folder is `data`, or of `settings`; neither: as the `polar` command finds it.

        `topic`: None for what is trained, `eval`, or a task's `output_topic`. `run`: yield only what belongs to this run; None: all runs.
        `start`: where to begin without a state.
        `timeout_s`: iteration ends when it has waited that long and Kafka says that there is no more; None waits for ever.
        `outage_s`: how long Kafka may be away before iteration raises NotReadyError. `allow_gap`: records that have left the log unread
        are passed over, else they raise NotReadyError. Raises InputError for a bad setting or name.
        """
        if start not in ("earliest", "latest"):
            raise InputError("start", start, "must be earliest or latest")
        if run is not None and re.fullmatch(ids.RUN, run) is None:
            raise InputError("run", run, f"must match {ids.RUN}")
        self.settings = settings or load(None if data is None else Path(data))
        """Those of the system that is read."""
        output = trajectories.output_named(topic, self.settings.namespace)
        self._topic = trajectories.topic(output).name
        self._run = run
        self._start: Start = start
        self._timeout_s = timeout_s
        self._reader = Reader(self.settings, output, outage_s=outage_s, allow_gap=allow_gap)
        self._thread: LoopThread | None = None
        self._is_open = self._is_placed = False
        self._items: Items | None = None
        self._marks: dict[int, Mark] | None = None
        """The positions before `_fold` was made; None if no state was loaded and the first offsets aren't known yet."""
        self._fold: Fold[Any] | None = None
        self._pending: tuple[Any, dict[int, Mark]] | None = None
        """An item that the rules are checking, and the positions before it. If a rule raises, the item is checked again."""
        self._deadline: GroupDeadline | None = None
        self._checked: list[Checked] = []
        self.skipped: Counter[str] = Counter()
        """Counts of skipped items by reason: `undecodable`; `unknown_<type>`; `other_run`: trajectories of other runs than `run`;
        `incomplete_group`: reading began after the group did; `late_sample`: its group was already yielded; and the reasons of rules."""

    def __iter__(self) -> Iterator[Trajectory]:
        return iter(self._stream("trajectories"))

    def __aiter__(self) -> AsyncIterator[Trajectory]:
        return aiter(self._stream("trajectories"))

    def groups(self, *rules: Rule, at_least: int | None = None, within_s: float | None = None) -> Stream[Group]:
        """An iterable, for `for` and `async for`, of groups; a group is yielded when its last trajectory has been read.

        `rules` are applied in order. `at_least` drops groups with fewer usable samples (with a reward and tokens to train). With
        `within_s`, a group with that many usable samples is yielded incomplete, `within_s` seconds after its first trajectory was written.
        Trajectories of incomplete groups, those of the tasks in flight, are kept in memory. Raises InputError.
        """
        self._deadline = group_deadline(at_least, within_s)
        candidates: Sequence[object] = rules  # mypy takes no function for a Checked
        self._checked = [rule for rule in candidates if isinstance(rule, Checked)]
        return self._stream("groups", *rules, *([] if at_least is None else [enough(at_least)]))

    def state_dict(self) -> dict[str, Any]:
        """The position after the items yielded so far, as JSON values.

        Raises RuntimeError if the consumer was neither opened nor given a state.
        """
        marks = self._yielded()
        if marks is None:
            raise RuntimeError("the first offsets are known once the consumer is open: call this inside `with`")
        return State(
            self.settings.namespace, self._topic, self._items, dict(sorted(marks.items())), run=self._run
        ).to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume at any time from a state: iteration continues with the first item not yet yielded when the state was saved.

        Raises InputError if `state` is invalid, belongs to another topic, or is of a consumer that yielded another run only. Later,
        iterating raises InputError for the other kind of items, and what `Reader.place` raises.
        """
        loaded = State.from_dict(state)
        name, expected = f"{loaded.namespace}.{loaded.topic}", f"{self.settings.namespace}.{self._topic}"
        if name != expected:
            raise InputError("state.topic", name, f"this consumer reads {expected}")
        if loaded.run not in (None, self._run):
            raise InputError(
                "state.run",
                loaded.run,
                f"this consumer yields {self._run or 'all runs'}: it would miss what the other one passed over; begin without a state",
            )
        self._items, self._marks = loaded.items, loaded.partitions
        self._fold = self._pending = None
        self._is_placed = False

    def __enter__(self) -> Self:
        thread = LoopThread(f"read-{self._topic}")
        try:
            thread.call(self._open())
        except BaseException:
            thread.call(self._close())
            thread.stop()
            raise
        self._thread = thread
        return self

    def __exit__(self, *_: object) -> None:
        thread, self._thread = self._thread, None
        assert thread is not None, "entered by `with`"
        thread.call(self._close())
        thread.stop()

    async def __aenter__(self) -> Self:
        try:
            await self._open()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    async def _open(self) -> None:
        await self._reader.open()
        await self._place()
        self._is_open = True

    async def _close(self) -> None:
        self._is_open = self._is_placed = False
        self._marks = self._yielded()
        self._fold = self._pending = None
        await self._reader.close()

    async def _place(self) -> None:
        if self._marks is None:
            await self._reader.place(self._start)
            self._marks = {number: Mark(offset, offset) for number, offset in self._reader.positions.items()}
        else:
            last = {number: mark.last for number, mark in self._marks.items() if mark.last is not None}
            await self._reader.place({number: mark.start for number, mark in self._marks.items()}, last)
        self._is_placed = True

    def _stream(self, items: Items, *rules: Rule) -> Stream[Any]:
        return Stream(partial(self._kept, items, rules), self._fill, self._fill_from_outside)

    def _kept(self, items: Items, rules: Sequence[Rule]) -> Any | None:
        """The next item among the records already read that the rules keep, as changed by them."""
        while (item := self._next(items)) is not None:
            counts: Counter[str] = Counter()
            for rule in rules:
                item = None if item is None else rule(item, counts)
            self._pending = None
            self.skipped.update(counts)
            if item is not None:
                return item
        return None

    def _next(self, items: Items) -> Any | None:
        """The next item for the rules to check; it doesn't count as yielded yet."""
        if self._pending is None:
            before = self._yielded()
            item = self._take(items)
            if item is None:
                return None
            assert before is not None, "placed"
            self._pending = item, before
        return self._pending[0]

    def _yielded(self) -> dict[int, Mark] | None:
        if self._pending is not None:
            return self._pending[1]
        return self._marks if self._fold is None else self._fold.marks()

    def _take(self, items: Items) -> Any | None:
        """The next item among the records already read."""
        if not self._is_open:
            raise RuntimeError("a consumer is used inside `with TrajectoryConsumer(...) as consumer:`, or `async with`")
        if self._items not in (items, None):
            raise InputError("items", items, f"this consumer yields {self._items}; open a second one")
        if not self._is_placed:
            return None
        self._items = items
        if self._fold is None:
            assert self._marks is not None, "placed"
            self._fold = (
                Trajectories(self._marks, self.skipped)
                if items == "trajectories"
                else Groups(self._marks, self.skipped, lambda: self._deadline)
            )
        ready = self._reader.ready
        while (item := self._fold.due()) is None and ready:
            # Decoding takes the time, so an interrupt comes there: the record must still be in `ready` then.
            record, decoded = ready[0], self._decoded(ready[0])
            ready.popleft()
            item = self._fold.take(record.partition, record.offset, decoded, record.timestamp)
            if item is not None:
                break
        return item

    async def _fill(self) -> bool:
        """Read more, once all records read have been used; False if iteration ends."""
        if not self._is_placed:
            await self._place()
        is_running = await self._reader.fill(self._timeout_s, self._due_ms)
        if is_running and not self._reader.ready and self._fold is not None:
            self._fold.passed(round(time.time() * 1000))
        return is_running

    def _due_ms(self) -> int | None:
        """The time, Unix ms, at which an item is due without another record. Raises what a rule's `check` raises."""
        for rule in self._checked:
            rule.check()
        if self._fold is None:
            return None
        for number, offset in self._reader.positions.items():
            self._fold.reached(number, offset)
        return self._fold.due_ms()

    def _fill_from_outside(self) -> bool:
        """`_fill` for callers outside the event loop."""
        if self._thread is None:
            raise RuntimeError("a consumer opened by `async with` must be iterated by `async for`")
        return self._thread.call(self._fill())

    def _decoded(self, record: Record) -> trajectories.Output | None:
        try:
            decoded = trajectories.CODEC.decode(record.value or b"")
        except DecodeError as error:
            self.skipped["undecodable"] += 1
            at = f"{record.topic}[{record.partition}]@{record.offset}"
            log.warning("undecodable record", action="trainer.undecodable", at=at, reason=str(error))
            return None
        if isinstance(decoded, UnknownRecord):
            self.skipped[f"unknown_{decoded.type}"] += 1
            return None
        if self._run not in (None, decoded.run):
            self.skipped["other_run"] += isinstance(decoded, Trajectory)
            return None
        return decoded
