"""docs/sql.md: its program runs, and its lists of columns are the views' and the tables' own. `test_cookbook.py` asks its questions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from analytics.lake import schema
from analytics.lake.manifest import Lake
from analytics.queries import views
from topics.environment.settings import Settings

PAGE = (Path(__file__).parents[3] / "docs" / "sql.md").read_text()
PROGRAM = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def test_the_python_block_runs_beside_a_lake(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [program] = PROGRAM.findall(PAGE)
    lake = Lake(settings.lake_folder)
    views.write_database(lake.folder.with_name("polar.duckdb"), lake.folder, lake.newest())
    monkeypatch.chdir(settings.data.parent)
    exec(program, {})
    assert "external" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "listed"), [("views", views.document()), ("tables", schema.document())])
def test_the_lists_of_columns_are_the_codes(name: str, listed: str) -> None:
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", PAGE, re.DOTALL)
    assert found is not None
    assert found[1] == listed, f"docs/sql.md is older than the {name}"
