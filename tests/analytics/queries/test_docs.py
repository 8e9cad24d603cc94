"""docs/sql.md: its questions are asked of a lake whose story is known, and its lists of columns are the views' and the tables' own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from analytics.lake import schema
from analytics.lake.manifest import Lake
from analytics.queries import views
from analytics.queries.query import Reader
from topics.environment.settings import Settings

PAGE = (Path(__file__).parents[3] / "docs" / "sql.md").read_text()
BLOCK = re.compile(r"^(?P<title>[^\n]*):?\n\n```(?P<language>sql|python)\n(?P<text>.*?)^```", re.DOTALL | re.MULTILINE)
BLOCKS = list(BLOCK.finditer(PAGE))
QUESTIONS = [pytest.param(block["text"], id=block["title"][:40]) for block in BLOCKS if block["language"] == "sql"]


@pytest.mark.parametrize("sql", QUESTIONS)
def test_every_recipe_has_an_answer(reader: Reader, sql: str) -> None:
    answer = reader.ask(sql)
    columns = list(zip(*answer.rows(), strict=True))
    empty = {
        name for (name, _), values in zip(answer.columns, columns, strict=True) if set(map(str, values)) == {"None"}
    }
    assert empty <= {"tool_calls"}, "nobody in the story called a tool"


def test_a_group_without_differing_rewards_and_the_advantages_are_found(reader: Reader) -> None:
    asked = {str(param.id): str(param.values[0]) for param in QUESTIONS}
    (equal,) = (sql for title, sql in asked.items() if title.startswith("Groups that teach nothing"))
    assert list(reader.ask(equal).rows()) == [("parse", 2, 1.0)]
    (advantages,) = (sql for title, sql in asked.items() if title.startswith("GRPO"))
    assert list(reader.ask(advantages).rows())[:2] == [("mend.0", 1.0, 1.0), ("mend.1", 0.0, -1.0)]


def test_the_python_block_runs_beside_a_lake(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (program,) = (block["text"] for block in BLOCKS if block["language"] == "python")
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
