"""docs/clients.md has a row for each client, with what is set today."""

from __future__ import annotations

from consumers.harnesses import clients
from tests.clients.page import PAGE, described


def test_the_page_has_every_client_with_what_it_sets() -> None:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.read_text().splitlines()]
    shown = {tuple(row[:3]) for row in rows if row[0].startswith("`") and len(row) > 1 and row[0] != "`CLIENT`"}
    assert shown == {described(name) for name in clients.names()}
