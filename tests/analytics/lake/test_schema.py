"""What the declaration of the tables renders."""

from __future__ import annotations

import pyarrow as pa
import pytest

from analytics.lake.schema import TABLES, Table, document


@pytest.mark.parametrize("table", TABLES.values(), ids=list(TABLES))
def test_a_table_says_where_on_the_log_its_rows_are_from_and_no_name_twice(table: Table) -> None:
    names = [column.name for column in table.columns]
    assert names[:3] == ["log_partition", "log_offset", "logged_at"]
    assert len(names) == len(set(names))
    assert table.arrow.names == names
    assert table.arrow.field("logged_at").type == pa.timestamp("ms", tz="UTC")


def test_every_column_is_documented() -> None:
    lines = document().splitlines()
    for table in TABLES.values():
        assert f"### {table.name}" in lines
    rows = [line for line in lines if line.startswith("| `")]
    assert len(rows) == sum(len(table.columns) for table in TABLES.values())
    assert "| `sampled` | list<item: int32> | the answer's ids; empty: not answered |" in rows
