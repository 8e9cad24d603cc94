"""The points of a run whose curves are known, and when they are final."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from analytics.lake.manifest import Manifest
from analytics.queries import query
from polar.export.metrics.completeness import counted, read_until
from polar.export.metrics.curves import CURVES, Axis, Point, points, tag
from polar.export.metrics.run import Export
from tests.analytics.story import write
from tests.polar.export.metrics.known import BEGIN_MS, FIRST, MINUTES, RUN, SECOND, THIRD, TRUTH, told
from topics.environment.settings import Settings
from topics.log.last_read import LastRead

LATER_MS = BEGIN_MS + 86_400_000
PAUSE_MS = 600_000


def settings_of(folder: Path, until: float = 1e9) -> Settings:
    """Settings of a system without Kafka whose lake has the run's records up to a second."""
    made = Settings(data=folder)
    write(made.lake_folder, told(until))
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


def test_every_curve_has_its_points_by_version_and_by_minute(tmp_path: Path) -> None:
    shown = Shown()
    assert Export(settings_of(tmp_path), RUN, shown).write_all() == 6
    assert same(shown.values)
    named = {tag(axis, curve) for axis in Axis for curve in CURVES}
    assert named - shown.values.keys() == {"by_version/merge_rate", "by_minute/merge_rate"}


def test_a_point_comes_only_once_it_can_not_change(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)

    def at(until_ms: int) -> list[tuple[int, int]]:
        return [(one.step, one.at_ms) for axis in Axis for one in read(settings, axis, until_ms)]

    published_ms = BEGIN_MS + 150_000
    minutes = list(MINUTES.items())
    assert at(published_ms - 1) == minutes[:1]
    assert at(published_ms) == [FIRST, *minutes[:1]]
    assert at(SECOND[1] + PAUSE_MS - 1) == [FIRST, *minutes[:2]]
    assert at(SECOND[1] + PAUSE_MS) == [FIRST, SECOND, *minutes[:2]]
    assert at(THIRD[1] + PAUSE_MS) == [FIRST, SECOND, THIRD, *minutes]


def test_a_point_that_was_final_is_the_same_in_a_later_lake(tmp_path: Path) -> None:
    for second in (131, 160, 171, 1950):
        early = settings_of(tmp_path / str(second), second)
        until_ms = BEGIN_MS + second * 1000
        for axis in Axis:
            before, after = (read(one, axis, until_ms) for one in (early, settings_of(tmp_path / f"{second}{axis}")))
            assert before == after, (second, axis)


@pytest.mark.parametrize("written", [0, 1, 20, 23, 45, 100])
def test_a_start_after_a_crash_writes_what_is_missing_and_nothing_twice(tmp_path: Path, written: int) -> None:
    settings, shown = settings_of(tmp_path), Shown()
    shown.dies_after = written
    with pytest.raises(KeyboardInterrupt):
        Export(settings, RUN, shown).write_all()
    shown.dies_after = None
    assert Export(settings, RUN, shown).write_all() > 0
    assert same(shown.values)
    assert Export(settings, RUN, shown).write_all() == 0


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
