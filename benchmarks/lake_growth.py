"""Growth of the lake at a million sessions a week: files and manifests after merging, and how long a query takes to start.

    python -m benchmarks.lake_growth [--format table|json]

Without Kafka: the real flushes, one for each simulated second as `analytics/writing` makes them, of rows that 1.65 sessions of 20 calls
give; the real merging after every tenth. Then manifests that list as many files as weeks and months leave, each file a copy of a real one,
are asked for one session by the real reader.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import Counter
from itertools import cycle
from pathlib import Path

from analytics.lake import compaction, rows
from analytics.lake.manifest import File, Lake, Writing
from analytics.lake.rows import Row
from analytics.queries import query
from analytics.writing.flush import flush
from analytics.writing.upkeep import TIDY_S
from benchmarks import report
from benchmarks.lake import Load
from benchmarks.report import Figure
from topics import completions, events, trajectories
from topics.contract.codec import Codec
from topics.environment.settings import Settings

SECONDS = 200
"""Simulated; a flush each."""
SESSIONS_A_SECOND = 1_000_000 / (7 * 86_400)
POOL = 32
"""Different sessions, whose rows are written again and again."""
LISTED = (100, 1_000, 4_000)
"""Files of a table."""
CODECS: dict[str, Codec[object]] = {
    topic.name: codec  # type: ignore[misc] # only read from
    for topic, codec in (
        (events.TOPIC, events.CODEC),
        (completions.TOPIC, completions.CODEC),
        (trajectories.TOPIC, trajectories.CODEC),
    )
}


def run() -> list[Figure]:
    """All figures."""
    with tempfile.TemporaryDirectory(prefix="polar-bench-") as folder:
        settings = Settings(data=Path(folder))
        lake = Lake(settings.lake_folder)
        with lake.writing() as writing:
            return [*_flushes(lake, writing), *(each for files in LISTED for each in _start(settings, lake, files))]


def _flushes(lake: Lake, writing: Writing) -> list[Figure]:
    load = Load()
    sessions = cycle([rows_of(load, number) for number in range(POOL)])
    halt, due, written = threading.Event(), 0.0, 0
    most: Counter[str] = Counter()
    files_written = 0
    at = ("events", 0)
    for second in range(SECONDS):
        due += SESSIONS_A_SECOND
        batch: dict[str, list[Row]] = {}
        while written < due:
            for table, made in next(sessions).items():
                batch.setdefault(table, []).extend(made)
            written += 1
        flush(lake, writing, batch, {at: second or None}, {at: second + 1})
        files_written += len(batch)
        if second % TIDY_S == TIDY_S - 1:
            most |= Counter({table: len(files) for table, files in lake.newest().files.items()})
            # Simulated seconds pass faster than those for which manifests are kept, so manifests are removed at once.
            compaction.tidy(lake, writing, halt, grace_s=0.0)
    newest = lake.newest()
    return [
        Figure("sessions written", written, ""),
        Figure("files written", files_written, ""),
        Figure("files after merging, all tables", sum(map(len, newest.files.values())), ""),
        Figure("most files of a table before a merge", max(most.values()), ""),
    ]


def _start(settings: Settings, lake: Lake, count: int) -> list[Figure]:
    """A manifest with `count` files of completions, and the time of a question to it."""
    newest = lake.newest()
    smallest = min(newest.files["completions"], key=lambda file: file.bytes)
    source = lake.path("completions", smallest)
    for number in range(count):
        copy = source.with_name(f"copy-{number:06}.parquet")
        if not copy.exists():
            copy.hardlink_to(source)
    copies = [File(f"copy-{number:06}.parquet", smallest.rows, smallest.bytes) for number in range(count)]
    lake.commit(newest, newest.replaced("completions", newest.files["completions"], [smallest, *copies]))
    began = time.monotonic()
    with query.connect(settings) as reader:
        opened = time.monotonic() - began
        list(reader.ask("SELECT count(*) FROM calls WHERE session_id = 'none.0'").rows())
    return [
        Figure(f"size of a manifest of {count:,} files", _size_of_newest(lake) / 1e3, "kB"),
        Figure(f"start of a reader, {count:,} files", opened, "s"),
        Figure(f"a question for one session, {count:,} files, its start included", time.monotonic() - began, "s"),
    ]


def _size_of_newest(lake: Lake) -> int:
    return max((lake.folder / "manifest").glob("*.json")).stat().st_size


def rows_of(load: Load, number: int) -> dict[str, list[Row]]:
    """All rows of a session, by table."""
    found: dict[str, list[Row]] = {}
    for offset, (topic, _, _, value) in enumerate(load.session(number)):
        at: Row = {"log_partition": 0, "log_offset": offset, "logged_at": int(time.time() * 1000)}
        for table, row in rows.of_record(CODECS[topic.name].decode(value), at):
            found.setdefault(table, []).append(row)
    return found


if __name__ == "__main__":
    report.main(__doc__, run)
