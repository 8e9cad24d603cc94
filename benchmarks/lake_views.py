"""The views of texts, tokens and sums over 100,000 calls: seconds from nothing to the answer.

    python -m benchmarks.lake_views [--format table|json]

Without Kafka: the sessions of `benchmarks.lake`, made into rows, flushed and merged by the writer's own code. Each question is asked by a
reader of its own, so connecting and binding the views count.
"""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from analytics.lake import compaction
from analytics.lake.manifest import Lake, Writing
from analytics.lake.rows import Row
from analytics.queries import query
from analytics.writing.flush import flush
from benchmarks import report
from benchmarks.lake import CALLS, SESSIONS, TOKENS, Load
from benchmarks.lake_growth import rows_of
from benchmarks.report import Figure, say
from topics.environment.settings import Settings

SESSIONS_A_FLUSH = 50
FLUSHES_A_MERGE = 10
TIMES = 5
QUESTIONS = {
    "harness_summary": ("FROM harness_summary", "< 1"),
    "run_summary": ("FROM run_summary", ""),
    "messages of one session": (
        f"FROM messages WHERE session_id = 'task-{SESSIONS // 2:06}.0' ORDER BY call_number, position",
        "< 0.2",
    ),
    "messages that contain a word": ("SELECT count(*) FROM messages WHERE content LIKE '%import%'", ""),
    "tokens: count(*), avg(logprob)": ("SELECT count(*), avg(logprob) FROM tokens", "< 3"),
    "tokens of one trace": (f"FROM tokens WHERE session_id = 'task-{SESSIONS // 2:06}.0' ORDER BY position", ""),
    "staleness by version": ("SELECT policy_version, sum(tokens) FROM staleness GROUP BY ALL", ""),
    "lineage by branch": ("SELECT branch, count(*) FROM lineage GROUP BY branch", ""),
}


def run() -> list[Figure]:
    """All figures."""
    with tempfile.TemporaryDirectory(prefix="polar-bench-") as folder:
        settings = Settings(data=Path(folder))
        lake = Lake(settings.lake_folder)
        with lake.writing() as writing:
            fill(lake, writing)
        size = sum(file.bytes for files in lake.newest().files.values() for file in files)
        answers = [each for name, (sql, goal) in QUESTIONS.items() for each in _figures(settings, name, sql, goal)]
    return [
        Figure("calls", CALLS, ""),
        Figure("tokens", TOKENS, ""),
        Figure("size of the lake", size / 1e6, "MB"),
        *answers,
    ]


def fill(lake: Lake, writing: Writing) -> None:
    """Write all sessions, a flush for every `SESSIONS_A_FLUSH`."""
    load, halt, at = Load(), threading.Event(), ("events", 0)
    say(f"writing {CALLS} calls to the lake")
    for number, start in enumerate(range(0, SESSIONS, SESSIONS_A_FLUSH)):
        batch: dict[str, list[Row]] = {}
        for session in range(start, start + SESSIONS_A_FLUSH):
            for table, made in rows_of(load, session).items():
                batch.setdefault(table, []).extend(made)
        flush(lake, writing, batch, {at: number or None}, {at: number + 1})
        if number % FLUSHES_A_MERGE == FLUSHES_A_MERGE - 1:
            compaction.tidy(lake, writing, halt, grace_s=0.0)


def _figures(settings: Settings, name: str, sql: str, goal: str) -> list[Figure]:
    """Medians of a question, from nothing to its last row: on the clock, and of all cores together."""
    took, used = [], []
    for _ in range(TIMES):
        began, computed = time.perf_counter(), time.process_time()
        with query.connect(settings) as reader:
            assert list(reader.ask(sql).rows())
        took.append(time.perf_counter() - began)
        used.append(time.process_time() - computed)
    return [Figure(name, float(np.median(took)), "s", goal), Figure(f"{name}: CPU", float(np.median(used)), "s")]


if __name__ == "__main__":
    report.main(__doc__, run)
