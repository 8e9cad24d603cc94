"""The requests that the proxy refused before they became calls: a section of the page, and one line for `polar session close`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from polar.cli.output import escaped_line
from polar.cli.show.page import Page
from topics.completions import FIRST_REFUSED, RefusedRequest

SHOWN = 5
"""The last ones; `--format json` has all that were recorded."""
WORDS_LIMIT = 200
"""Characters of a message in one line."""


def draw_refused(page: Page, refused: Sequence[RefusedRequest]) -> None:
    """A line per request, the last of many; nothing if there are none."""
    if not refused:
        return
    page.heading("Refused requests")
    shown = refused[-SHOWN:]
    page.line(f"{counted(refused)}{_which(refused, shown)}", indent=2)
    page.table(
        ["at", "request", ">status", "message"],
        ([_time(one), f"{one.method} {one.path}", one.status, one.message] for one in shown),
    )


def counted(refused: Sequence[RefusedRequest]) -> str:
    """`the proxy refused 3 requests`; `at least` if some may have no record, since a proxy doesn't record each of many."""
    requests = sum(one.requests for one in refused)
    least = "at least " if requests > FIRST_REFUSED or any(one.requests > 1 for one in refused) else ""
    return f"the proxy refused {least}{requests:,} request{'' if requests == 1 else 's'}"


def summary(refused: Sequence[RefusedRequest]) -> str:
    """The number of requests, and what became of the last one, for a line of its own."""
    last = refused[-1]
    message = last.message if len(last.message) <= WORDS_LIMIT else last.message[:WORDS_LIMIT] + "…"
    which = ":" if len(refused) == 1 else ", the last:"
    return escaped_line(f"{counted(refused)}{which} {last.method} {last.path} got {last.status}, {message}")


def _which(refused: Sequence[RefusedRequest], shown: Sequence[RefusedRequest]) -> str:
    return "" if len(shown) == len(refused) else f"; these are the last {len(shown)} on the log"


def _time(one: RefusedRequest) -> str:
    return datetime.fromtimestamp(one.refused_at / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
