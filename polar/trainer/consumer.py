"""`TrajectoryConsumer`: trajectories or whole groups, by `for` or `async for`, and a state to go on from after a crash.

Invariant: between two items `state_dict()` says exactly what was handed out. It is the trainer's to keep, beside its weights, since
only the two together are a checkpoint: no consumer group stores a position. What was handed out is `progress.py`'s, reading `reader.py`'s.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import structlog

from polar.trainer.groups import Checked, Group, Patience, Rule, enough, patience
from polar.trainer.loop_thread import LoopThread
from polar.trainer.progress import Fold, Groups, Items, Mark, State, Trajectories
from polar.trainer.reader import Reader, Start
from topics import trajectories
from topics.contract.codec import DecodeError, UnknownRecord
from topics.environment.settings import Settings, load
from topics.log.kafka import Record
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
        start: Start = "earliest",
        timeout_s: float | None = None,
        outage_s: float = OUTAGE_S,
        allow_gap: bool = False,
    ) -> None:
        """Of the system whose data folder is `data`, or of `settings`; neither: as the `polar` command finds it.

        `topic`: None for what is trained, `eval`, or a task's `output_topic`. `start`: where to begin without a state.
        `timeout_s`: iteration ends when it has waited that long and Kafka says that there is no more; None waits for ever.
        `outage_s`: how long Kafka may be away before iteration raises NotReady. `allow_gap`: records that have left the log unread
        are passed over, else they raise NotReady. Raises InputError for a bad setting or name.
        """
        if start not in ("earliest", "latest"):
            raise InputError("start", start, "must be earliest or latest")
        self._settings = settings or load(None if data is None else Path(data))
        output = trajectories.output_named(topic, self._settings.namespace)
        self._topic = trajectories.topic(output).name
        self._start: Start = start
        self._timeout_s = timeout_s
        self._reader = Reader(self._settings, output, outage_s=outage_s, allow_gap=allow_gap)
        self._thread: LoopThread | None = None
        self._is_open = self._is_placed = False
        self._items: Items | None = None
        self._marks: dict[int, Mark] | None = None
        """What was handed out before the fold; None where that is nothing, and unknown where it begins."""
        self._fold: Fold[Any] | None = None
        self._unjudged: tuple[Any, dict[int, Mark]] | None = None
        """An item that rules are asked about, and what was handed out before it. Where one of them raises it is judged again."""
        self._patience: Patience | None = None
        self._checked: list[Checked] = []
        self.skipped: Counter[str] = Counter()
        """What was passed over, and why: `undecodable`, `unknown_<type>`; `incomplete_group`: a group that began before reading did;
        `late_sample`: one whose group was out; and what rules dropped, by their reasons."""

    def __iter__(self) -> Iterator[Trajectory]:
        return iter(self._stream("trajectories"))

    def __aiter__(self) -> AsyncIterator[Trajectory]:
        return aiter(self._stream("trajectories"))

    def groups(self, *rules: Rule, at_least: int | None = None, within_s: float | None = None) -> Stream[Group]:
        """Groups, each when its last trajectory is out; for `for` and `async for`.

        `rules` are asked in their order. `at_least`: groups with fewer usable samples (a reward, tokens to train) are dropped; with
        `within_s` a group that has so many leaves that long after its first trajectory was written, without the rest. Holds the
        trajectories of the groups that aren't whole: of the tasks in flight. Raises InputError.
        """
        self._patience = patience(at_least, within_s)
        given: Sequence[object] = rules  # mypy takes no function for a Checked
        self._checked = [rule for rule in given if isinstance(rule, Checked)]
        return self._stream("groups", *rules, *([] if at_least is None else [enough(at_least)]))

    def state_dict(self) -> dict[str, Any]:
        """What was handed out so far, as JSON can hold it. Raises RuntimeError before the consumer was opened, or loaded."""
        marks = self._handed_out()
        if marks is None:
            raise RuntimeError("where reading begins is known once the consumer is open: inside `with`")
        return State(self._settings.namespace, self._topic, self._items, dict(sorted(marks.items()))).to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there: what comes next is what wasn't handed out when it was taken, and nothing else. At any time.

        Raises InputError where it is no state, of another topic, or of the other kind of items; iterating then raises what
        `Reader.place` does.
        """
        loaded = State.from_dict(state)
        name, own = f"{loaded.namespace}.{loaded.topic}", f"{self._settings.namespace}.{self._topic}"
        if name != own:
            raise InputError("state.topic", name, f"this consumer reads {own}")
        self._items, self._marks = loaded.items, loaded.partitions
        self._fold = self._unjudged = None
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def _open(self) -> None:
        await self._reader.open()
        await self._place()
        self._is_open = True

    async def _close(self) -> None:
        self._is_open = self._is_placed = False
        self._marks = self._handed_out()
        self._fold = self._unjudged = None
        await self._reader.close()

    async def _place(self) -> None:
        if self._marks is None:
            await self._reader.place(self._start)
            self._marks = {number: Mark(offset, offset) for number, offset in self._reader.positions.items()}
        else:
            await self._reader.place({number: mark.start for number, mark in self._marks.items()})
        self._is_placed = True

    def _stream(self, items: Items, *rules: Rule) -> Stream[Any]:
        return Stream(partial(self._kept, items, rules), self._fill, self._fill_from_outside)

    def _kept(self, items: Items, rules: Sequence[Rule]) -> Any | None:
        """The next item of what is read already that the rules keep, as they leave it."""
        while (item := self._next(items)) is not None:
            counts: Counter[str] = Counter()
            for rule in rules:
                item = None if item is None else rule(item, counts)
            self._unjudged = None
            self.skipped.update(counts)
            if item is not None:
                return item
        return None

    def _next(self, items: Items) -> Any | None:
        """The next item that is to be judged; it doesn't count as handed out yet."""
        if self._unjudged is None:
            before = self._handed_out()
            item = self._take(items)
            if item is None:
                return None
            assert before is not None, "placed"
            self._unjudged = item, before
        return self._unjudged[0]

    def _handed_out(self) -> dict[int, Mark] | None:
        if self._unjudged is not None:
            return self._unjudged[1]
        return self._marks if self._fold is None else self._fold.marks()

    def _take(self, items: Items) -> Any | None:
        """The next item of what is read already."""
        if not self._is_open:
            raise RuntimeError("a consumer is used inside `with TrajectoryConsumer(...) as consumer:`, or `async with`")
        if self._items not in (items, None):
            raise InputError("items", items, f"this consumer hands out {self._items}; make one more")
        if not self._is_placed:
            return None
        self._items = items
        if self._fold is None:
            assert self._marks is not None, "placed"
            self._fold = (
                Trajectories(self._marks, self.skipped)
                if items == "trajectories"
                else Groups(self._marks, self.skipped, lambda: self._patience)
            )
        ready = self._reader.ready
        while (item := self._fold.due()) is None and ready:
            # An interrupt comes while a record is decoded, if anywhere: it is ready still, then.
            record, decoded = ready[0], self._decoded(ready[0])
            ready.popleft()
            item = self._fold.take(record.partition, record.offset, decoded, record.timestamp)
            if item is not None:
                break
        return item

    async def _fill(self) -> bool:
        """Read on, all that was read being taken; False where iteration is to end."""
        if not self._is_placed:
            await self._place()
        going_on = await self._reader.fill(self._timeout_s, self._due_ms)
        if going_on and not self._reader.ready and self._fold is not None:
            self._fold.passed(round(time.time() * 1000))
        return going_on

    def _due_ms(self) -> int | None:
        """When an item is to be had without a record; asked while all that was read is taken. Raises what rules do that are asked."""
        for rule in self._checked:
            rule.check()
        if self._fold is None:
            return None
        for number, offset in self._reader.positions.items():
            self._fold.reached(number, offset)
        return self._fold.due_ms()

    def _fill_from_outside(self) -> bool:
        """`_fill`, for code that doesn't await."""
        if self._thread is None:
            raise RuntimeError("opened by `async with`, a consumer is iterated by `async for`")
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
        return decoded
