"""One query of the SQL box, in a process of its own: `python -m polar.page.sql_query FOLDER`.

It reads `FOLDER/request.json` and writes `FOLDER/answer.json`; an exit without an answer is a failure. DuckDB can't interrupt a single
function call, and a large value becomes Python objects before it is measured: this process may be killed, and has bounded memory.
"""

from __future__ import annotations

import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from topics.environment.settings import Settings
from topics.types.errors import InputError, NotReadyError, install_command

if TYPE_CHECKING:
    from analytics.queries.query import Answer

REQUEST = "request.json"
ANSWER = "answer.json"
ANSWER_BYTES = 8 * 1024 * 1024
"""Largest answer as JSON: a browser still shows it as a table."""
BATCH = 16
"""Rows that become Python objects before they are measured."""


class Request(msgspec.Struct, frozen=True):
    lake: str
    """A folder, or s3://BUCKET[/PREFIX]."""
    data: str
    """Folder of the copies of a lake in a bucket."""
    namespace: str
    sql: str
    limit: int
    """Most rows."""
    memory_bytes: int
    """Limit of the process's address space. DuckDB's own, a share of the machine's memory, counts neither Python's values nor a
    function's."""
    deadline_s: float
    """The process ends so long after its start is complete, by SIGALRM."""


class Found(msgspec.Struct, frozen=True):
    """An answer, or with `error` none."""

    columns: list[tuple[str, str]] = []
    """Names and DuckDB's types."""
    rows: list[list[Any]] = []
    cut: bool = False
    """Whether there are more rows."""
    error: str | None = None
    field: str | None = None
    """Field of the request that is wrong; None: the lake can't be read."""


def find(request: Request) -> Found:
    """The answer, or the error that says why there is none."""
    try:
        # Half a second and 40 MB, which a page without SQL doesn't need.
        from analytics.queries import query
    except ImportError as error:
        return Found(error=f"SQL needs {error.name}: {install_command('analytics')}")
    settings = Settings(lake=request.lake, data=Path(request.data), namespace=request.namespace)
    try:
        with query.connect(settings) as reader:
            answer = reader.ask(request.sql)
            return Found(answer.columns, *_bounded(answer, request.limit))
    except InputError as error:
        return Found(error=str(error), field=error.field)
    except NotReadyError as error:
        return Found(error=str(error))


def _bounded(answer: Answer, limit: int) -> tuple[list[list[Any]], bool]:
    rows: list[list[Any]] = []
    size = 0
    for row in answer.rows(BATCH):
        written = msgspec.json.encode(row, enc_hook=str)
        size += len(written)
        if len(rows) == limit or size > ANSWER_BYTES:
            return rows, True
        rows.append(msgspec.json.decode(written))
    return rows, False


def main(folder: Path) -> None:
    request = msgspec.json.decode((folder / REQUEST).read_bytes(), type=Request)
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    bound = request.memory_bytes if most == resource.RLIM_INFINITY else min(request.memory_bytes, most)
    resource.setrlimit(resource.RLIMIT_AS, (bound, most))
    with suppress(ImportError):  # the deadline isn't for the start, which takes seconds on a busy machine
        import analytics.queries.query  # noqa: F401
    # The system ends the process, within a call into DuckDB, too.
    signal.setitimer(signal.ITIMER_REAL, request.deadline_s)
    (folder / ANSWER).write_bytes(msgspec.json.encode(find(request)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
