"""The SQL box on a real lake: no query outlives its request, fills the memory, or keeps the next one waiting."""

from __future__ import annotations

import asyncio
import tracemalloc
from pathlib import Path

import pytest

from polar.page.sql_box import SqlBox
from polar.page.sql_query import ANSWER_BYTES, Request, find
from proxy.control.api import ControlError
from tests.analytics.story import story, write
from topics.environment.settings import Settings

pytestmark = pytest.mark.contract

ANSWERED_S = 120.0
ONE_CALL = "SELECT levenshtein(repeat('a', 300000), repeat('b', 300000))"
"""Minutes in one call of a function, which DuckDB can't interrupt."""


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SqlBox:
    """With a deadline that a busy machine keeps."""
    monkeypatch.setattr("polar.page.sql_box.DEADLINE_S", ANSWERED_S)
    settings = Settings(data=tmp_path)
    write(settings.lake_folder, story())
    return SqlBox(settings)


async def test_a_single_function_call_ends_at_the_deadline_and_the_next_query_runs(
    box: SqlBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as soon:
        soon.setattr("polar.page.sql_box.DEADLINE_S", 3.0)
        with pytest.raises(ControlError, match="longer than 3 s"):
            await box.ask(ONE_CALL, 1)
    assert (await box.ask("SELECT 1", 1)).rows == [[1]]


async def test_a_query_whose_client_has_left_is_ended(box: SqlBox) -> None:
    asking = asyncio.create_task(box.ask(ONE_CALL, 1))
    await asyncio.sleep(0)
    with pytest.raises(ControlError, match="another query"):
        await box.ask("SELECT 1", 1)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert (await box.ask("SELECT 1", 1)).rows == [[1]]


def test_large_rows_are_measured_before_all_of_a_batch_is_in_memory(box: SqlBox, tmp_path: Path) -> None:
    """Of a thousand rows of 200 kB each, 200 MB, forty fit."""
    sql = "SELECT repeat('x', 200000 + i::INT % 2) FROM range(1000) AS r(i)"
    request = Request(str(tmp_path / "lake"), str(tmp_path), Settings().namespace, sql, 1000, 0, 60)
    tracemalloc.start()
    found = find(request)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (len(found.rows), found.cut, found.error) == (ANSWER_BYTES // 200_003, True, None)
    assert most < 60_000_000


async def test_errors_say_what_is_wrong(box: SqlBox, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ControlError, match="cals"):
        await box.ask("SELECT * FROM cals", 1)
    monkeypatch.setattr("polar.page.sql_box.MEMORY_BYTES", 2 * 1024**3)
    with pytest.raises(ControlError, match=r"(?i)memory"):
        await box.ask("SELECT repeat('x', 900000000)", 1)
    assert (await box.ask("SELECT 1", 1)).rows == [[1]]
