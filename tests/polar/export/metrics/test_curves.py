"""The points of a run whose curves are known, and when they are final."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path

import pytest

from analytics.lake.manifest import Manifest
from analytics.queries import query
from polar.export.metrics.completeness import counted, read_until
from polar.export.metrics.curves import CURVES, Axis, Point, points, tag
from polar.export.metrics.run import Export
from tests.analytics.story import write
from tests.polar.export.metrics.known import BEGIN_MS, FIRST, MINUTES, RUN, SECOND, THIRD, TRUTH, records
from tests.waiting import eventually
from topics.environment.settings import Settings
from topics.log.last_read import LastRead

LATER_MS = BEGIN_MS + 86_400_000
PAUSE_MS = 600_000
DEADLINE_S = 60.0


def settings_of(folder: Path, until: float = 1e9) -> Settings:
    """Settings of a system without Kafka whose lake has the run's records up to a second."""
    made = Settings(data=folder)
    write(made.lake_folder, records(until))
    return made


def read(settings: Settings, axis: Axis, until_ms: int = LATER_MS, since_ms: int = 0) -> list[Point]:
    with query.connect(settings) as reader:
        return list(points(reader, RUN, axis, since_ms, until_ms))


class Shown:
    """In place of a program that shows curves: keeps each value, and may die in the middle of a point."""

    address = "here"

    def __init__(self) -> None:
        self.values: defaultdict[str, list[tuple[int, int, float]]] = defaultdict(list)
        self.dies_after: int | None = None
        """Values that are still written before it dies; None: it doesn't."""

    def written(self) -> dict[str, int]:
        return {name: max(at_ms for _, at_ms, _ in values) for name, values in self.values.items()}

    def write(self, point: Point) -> None:
        for name, value in point.values.items():
            if self.dies_after == 0:
                raise KeyboardInterrupt
            if self.dies_after is not None:
                self.dies_after -= 1
            self.values[name].append((point.step, point.at_ms, value))

    def close(self) -> None:
        pass


def same(found: dict[str, list[tuple[int, int, float]]]) -> bool:
    return found == {name: [pytest.approx(one) for one in values] for name, values in TRUTH.items()}


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Settings of a system whose lake has the whole run."""
    return settings_of(tmp_path_factory.mktemp("data"))


def test_every_curve_has_its_points_by_version_and_by_minute(settings: Settings) -> None:
    shown = Shown()
    assert Export(settings, RUN, shown).write_all() == 6
    assert same(shown.values)
    assert shown.values.keys() == {tag(axis, curve) for axis in Axis for curve in CURVES}
    assert Export(settings, "another", shown).write_all() == 0


def test_a_point_comes_only_once_it_can_not_change(settings: Settings) -> None:
    def at(axis: Axis, until_ms: int) -> list[tuple[int, int]]:
        return [(one.step, one.at_ms) for one in read(settings, axis, until_ms)]

    published_ms, [first, second, third] = BEGIN_MS + 150_000, MINUTES.items()
    assert at(Axis.BY_VERSION, published_ms - 1) == []
    assert at(Axis.BY_VERSION, published_ms) == [FIRST]
    assert at(Axis.BY_VERSION, SECOND[1] + PAUSE_MS - 1) == [FIRST]
    assert at(Axis.BY_VERSION, SECOND[1] + PAUSE_MS) == [FIRST, SECOND]
    assert at(Axis.BY_VERSION, THIRD[1] + PAUSE_MS) == [FIRST, SECOND, THIRD]
    assert at(Axis.BY_MINUTE, second[1] - 1) == [first]
    assert at(Axis.BY_MINUTE, third[1]) == [first, second, third]


@pytest.mark.parametrize("second", [160, 1950])
def test_a_point_that_was_final_is_the_same_in_a_later_lake(settings: Settings, tmp_path: Path, second: int) -> None:
    early, until_ms = settings_of(tmp_path, second), BEGIN_MS + second * 1000
    for axis in Axis:
        before = read(early, axis, until_ms)
        assert before == read(settings, axis, until_ms)
        assert before != []


def test_a_start_after_a_crash_writes_what_is_missing_and_nothing_twice(settings: Settings) -> None:
    for values in (0, 23, 100):
        shown = Shown()
        shown.dies_after = values
        with pytest.raises(KeyboardInterrupt):
            Export(settings, RUN, shown).write_all()
        assert sum(map(len, shown.values.values())) == values
        shown.dies_after = None
        assert Export(settings, RUN, shown).write_all() > 0
        assert same(shown.values), values
    assert Export(settings, RUN, shown).write_all() == 0


async def test_following_waits_for_a_lake_and_writes_what_comes(tmp_path: Path) -> None:
    export, stop = Export(Settings(data=tmp_path), RUN, Shown()), asyncio.Event()
    following = asyncio.create_task(export.follow(stop))
    await eventually(lambda: export.failures, DEADLINE_S)
    await asyncio.to_thread(settings_of, tmp_path)
    await eventually(lambda: export.points == 6 and export.failures == 0, DEADLINE_S)
    stop.set()
    await following


def test_the_lake_is_complete_up_to_the_oldest_record_behind_which_another_lies() -> None:
    offsets = {"trajectories": {0: 10, 1: 7}, "trajectories.eval": {0: 1}, "fleet": {0: 0}, "workers": {0: 500}}
    last = {
        "trajectories": {0: LastRead(9, 4_000), 1: LastRead(6, 1_000)},
        "trajectories.eval": {0: LastRead(0, 2_000)},
    }
    manifest = Manifest(1, 5_000, offsets, last)
    names = [("trajectories", 0), ("trajectories", 1), ("trajectories.eval", 0), ("fleet", 0)]
    assert counted(manifest) == names
    ends = dict(zip(names, (10, 7, 1, 0), strict=True))
    assert read_until(manifest, ends, 9_000) == 9_000
    assert read_until(manifest, ends | {names[0]: 12}, 9_000) == 4_000
    assert read_until(manifest, ends | {names[0]: 12, names[2]: 2}, 9_000) == 2_000
    assert read_until(manifest, ends | {names[3]: 1}, 9_000) == 0
