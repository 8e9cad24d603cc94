"""The notebook that asks the lake runs on a lake whose truth is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from analytics.queries import views
from tests.analytics.known_run import known_run
from tests.analytics.story import write
from tests.notebooks import cells_of, run_cells
from topics.environment.settings import Settings

NOTEBOOK = Path(__file__).parents[2] / "examples" / "ask_the_lake.ipynb"


async def test_the_notebook_runs_from_its_first_cell_to_its_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(data=tmp_path)
    lake = write(settings.lake_folder, known_run())
    views.write_database(settings.lake_folder.with_name("polar.duckdb"), lake.folder, lake.newest())
    monkeypatch.setenv("POLAR_DATA", str(tmp_path))
    await run_cells(list(cells_of(NOTEBOOK)))
    output = capsys.readouterr().out
    assert "│ pi          │        4 │         0.5 │ 0.428" in output
    assert "  2 assistant  All tests pass.\n" in output
    assert "talk.0 26 tokens, mean logprob -0.5\n" in output
    assert output.endswith("[(0, 102), (1, 64)]\n")
