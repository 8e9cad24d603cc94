"""Tables as people read them on an ordinary terminal."""

from __future__ import annotations

import pytest

from polar.cli import tables

COLUMNS = ["session", "status", ">reward", "error"]


def test_a_narrow_table_cuts_no_id_short(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(tables, "PIPE_WIDTH", 50)
    long_id = "intervals-7a60fb.0"
    tables.show(COLUMNS, [[long_id, "TIMED_OUT", None, "run budget/timeout: the harness worked longer"]])
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 50
    assert all(whole in printed for whole in (long_id, "TIMED_OUT", "reward"))
    assert "…" not in printed
