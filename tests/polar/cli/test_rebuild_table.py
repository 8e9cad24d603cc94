"""`polar topics rebuild-table` where nothing is lost; what it rebuilds is in `tests/integration/test_table_rebuild.py`."""

from __future__ import annotations

import json

from tests.polar.cli.commands import polar
from topics.environment.settings import Settings


def test_a_table_that_lacks_nothing_is_named_as_such(settings: Settings) -> None:
    assert settings.kafka is not None
    code, out, err = polar("topics", "rebuild-table")
    assert (code, out) == (0, "nothing to rebuild: no partition's table is older than its events\n"), err
    assert json.loads(polar("topics", "rebuild-table", "--format", "json")[1])["partitions"] == 0
