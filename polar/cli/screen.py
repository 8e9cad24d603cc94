"""The page of `polar watch`: never larger than the terminal, or one line if there is no terminal.

If the page is too high it drops older groups first, then older errors, then stages; the head stays. This module reads nothing, and text of
agents and models passes `one_line` into `Text`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from polar.cli.output import ago, bars, counted, one_line, table
from polar.cli.status import fleet_in_words
from topics.types.session import WAITING_PHASES, Phase

if TYPE_CHECKING:
    from analytics.live.fold import AttemptError, Snapshot, StageLoad
    from analytics.live.session_counts import Group

ROOMY = 76
"""Columns of a terminal that also has room for the rates of stages."""
GAUGE = 8
"""Width of the bar of busy slots."""
SECTION = 2
"""Lines of a table besides its rows: an empty line and the header."""
FEW_ERRORS = 3
"""Errors that come before groups; the others fill the remaining room."""


@dataclass(frozen=True)
class Page:
    """A snapshot as a renderable, laid out for the current size of the terminal."""

    snapshot: Snapshot
    title: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = options.max_width, options.height or console.size.height
        yield from self._lines(width, height)

    def _lines(self, width: int, height: int) -> Iterable[Text | Table]:
        found = self.snapshot
        head = [self._first(width), *_notices(found), *(_line(label, words) for label, words in _head(found))]
        left = height - len(head)
        stages, left = _share(len(found.stages), left)
        few, left = _share(min(FEW_ERRORS, len(found.errors)), left)
        groups, left = _share(len(found.groups), left)
        errors = few and min(len(found.errors), few + left)
        yield from head[:height]
        if stages:
            yield from (Text(""), _stage_table(found.stages[:stages], width))
        if groups:
            yield from (Text(""), _group_table(found.groups[:groups], width))
        if errors:
            yield from (Text(""), _error_table(found.errors[:errors], found.at, width))

    def _first(self, width: int) -> Text:
        now = clock(self.snapshot.at)
        name = Text(one_line(self.title), style="bold", no_wrap=True)
        name.truncate(max(0, width - len(now) - 2), overflow="ellipsis", pad=True)
        return _one_line(Text.assemble(name, "  ", now))


def summary(snapshot: Snapshot) -> str:
    """A snapshot in one line, without its time."""
    notices = [notice.plain for notice in _notices(snapshot)]
    loads = [f"{_place(load)} {load.busy}/{load.slots}" for load in snapshot.stages if load.workers]
    slots = [f"slots {', '.join(loads)}"] if loads else []
    return "; ".join([*notices, *(f"{label} {words}" for label, words in _head(snapshot)), *slots])


def in_words(trouble: AttemptError) -> str:
    """An error in one line, with its session."""
    return f"{one_line(trouble.session_id)} {_what(trouble)}"


def clock(at_ms: int) -> str:
    """Local time of day. `at_ms`: Unix ms."""
    return datetime.fromtimestamp(at_ms / 1000, tz=UTC).astimezone().strftime("%H:%M:%S")


def _notices(snapshot: Snapshot) -> list[Text]:
    """Conditions under which the rest of the page is outdated or incomplete."""
    notices = []
    if snapshot.away_s is not None:
        notices.append(f"Kafka hasn't answered since {clock(snapshot.at)}: the page shows that time")
    if snapshot.reading is not None:
        notices.append(f"reading the topics: {100 * snapshot.reading:.0f} %")
    elif not snapshot.processes:
        notices.append("no live process: `polar up`, `polar worker` and `polar proxy` start them")
    if (pause := fleet_in_words(snapshot)) is not None:
        notices.append(pause)
    return [_one_line(Text(notice, style="bold yellow")) for notice in notices]


def _head(snapshot: Snapshot) -> list[tuple[str, str]]:
    calls = snapshot.calls
    counts = [(phase, snapshot.phases.get(phase.value, 0)) for phase in Phase]
    unended = [f"{count} {phase.value}" for phase, count in counts if count and phase is not Phase.ENDED]
    ended = snapshot.phases.get(Phase.ENDED.value, 0)
    statuses = f" ({counted(snapshot.statuses)})" if snapshot.statuses else ""
    version = "" if snapshot.policy_version is None else f"; policy {snapshot.policy_version}"
    lost = {"failed": calls.failed, "abandoned": calls.abandoned}
    without = counted({name: count for name, count in lost.items() if count})
    rates = (
        f"{_short(calls.answered)} calls{f' ({without})' if without else ''}, {_short(calls.sampled_tokens)} tokens sampled; "
        f"{_short(snapshot.ended)} ended, {_short(snapshot.trainable_tokens)} trainable"
    )
    return [
        ("alive", (counted(snapshot.processes) or "nothing") + version),
        ("tasks", f"{snapshot.tasks}; {', '.join(unended) or 'none waiting or running'}; {ended} ended{statuses}"),
        ("minute", rates),
    ]


def _stage_table(loads: Sequence[StageLoad], width: int) -> Table:
    columns = ["stage", ">workers", ">slots", "busy", "waiting"]
    is_roomy = width >= ROOMY
    columns[4:4] = [">started/min", ">ended/min"] if is_roomy else []
    return _table(
        columns,
        (
            [
                _cut(_place(load), width // 3),
                str(load.workers),
                f"{load.busy}/{load.slots}",
                _gauge(load.busy, load.slots),
                *([str(load.started), str(load.finished)] if is_roomy else []),
                f"{load.waiting} {WAITING_PHASES[load.stage].name}" if load.waiting else "",
            ]
            for load in loads
        ),
    )


def _group_table(groups: Sequence[Group], width: int) -> Table:
    rows: Iterable[Sequence[str | Text]] = (
        [
            _cut(group.task_id, width * 2 // 5),
            f"{group.ended}/{group.num_samples}",
            *("–" if figure is None else f"{figure:.3g}" for figure in (group.mean, group.std)),
            Text(bars(group.rewards), style="green" if group.is_finished else ""),
        ]
        for group in groups
    )
    return _table(["group", ">ended", ">mean", ">std", "rewards"], rows)


def _error_table(errors: Sequence[AttemptError], now_ms: int, width: int) -> Table:
    rows = ([ago(now_ms - error.at), _cut(error.session_id, width // 3), _what(error)] for error in errors)
    return _table([">ago", "session", "error"], rows)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> Table:
    """One line per row. A row that is too wide is cut in its last column."""
    lines = ([_one_line(cell if isinstance(cell, Text) else Text(cell)) for cell in row] for row in rows)
    return table(columns, lines, overflow="ellipsis", box=None, padding=(0, 2, 0, 0), header_style="dim")


def _share(wanted: int, left: int) -> tuple[int, int]:
    """The number of table rows with room, and the remaining lines."""
    rows = min(wanted, max(0, left - SECTION))
    return (rows, left - SECTION - rows) if rows else (0, left)


def _line(label: str, words: str) -> Text:
    return _one_line(Text.assemble((f"{label:7}", "dim"), words))


def _one_line(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _place(load: StageLoad) -> str:
    """`run`, `run of gpu`."""
    return load.stage.value if load.pool == "default" else f"{load.stage.value} of {one_line(load.pool)}"


def _what(error: AttemptError) -> str:
    return one_line(f"{error.stage} {error.kind}/{error.code}: {error.message}")


def _gauge(busy: int, slots: int) -> str:
    filled = round(GAUGE * busy / slots) if slots else 0
    return "█" * filled + "░" * (GAUGE - filled if slots else 0)


def _cut(name: str, limit: int) -> str:
    """An id's beginning and end: siblings differ at the end."""
    name, limit = one_line(name), max(8, limit)
    if len(name) <= limit:
        return name
    tail = limit // 2
    return f"{name[: limit - tail - 1]}…{name[-tail:]}"


def _short(count: int) -> str:
    """`950`, `35.2k`, `1.2M`."""
    if count < 10_000:
        return str(count)
    return f"{count / 1e3:.1f}k" if count < 1_000_000 else f"{count / 1e6:.1f}M"
