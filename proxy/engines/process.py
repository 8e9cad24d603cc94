"""The process of an inference server. The start time shows whether a server has restarted.

vLLM reports the start in `/metrics`, as most servers with Prometheus' client do: `process_start_time_seconds`. It does not with several API
servers (`--api-server-count`), and SGLang never does. The start is read at the proxy's start, after a failure, and after the server has
closed a kept connection: all three may mean that it was started again.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Protocol, runtime_checkable

START = re.compile(rb"^process_start_time_seconds(?:\{[^}\n]*\})? ([0-9.eE+]{1,40})\r?$", re.MULTILINE)
LOGIN = re.compile(r"(?<=//)[^/]*@")
"""User and password in a URL."""


class Process(NamedTuple):
    """A process behind the URL of a server."""

    url: str
    """Without a login."""
    started_ms: int | None
    """Unix ms by its host's clock; None: the server doesn't report it."""


@runtime_checkable
class ReportsStart(Protocol):
    """An engine plug-in whose server may report the start of its process. A plug-in that lacks one of the two is not asked."""

    @property
    def closings(self) -> int:
        """Number of kept connections that the server has closed so far. It must count those to a process that has ended before an answer
        of the next process is passed on."""

    async def started_ms(self) -> int | None:
        """Unix ms; None: the server doesn't report it. Raises EngineError if it doesn't answer."""


def start_in(metrics: bytes) -> int | None:
    """The start of the process in Prometheus' text format, Unix ms; None if it isn't there."""
    found = START.search(metrics)
    try:
        return None if found is None else round(float(found[1]) * 1000)
    except (ValueError, OverflowError):
        return None
