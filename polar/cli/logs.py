"""Log lines go to stderr: results have stdout for themselves."""

from __future__ import annotations

import logging
import sys
import time

import structlog

REPEAT_S = 10.0


class Seldom(logging.Filter):
    """Lets a message through once every REPEAT_S: aiokafka says hundreds of times a second that a broker is away."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Messages are the same by their template, whatever fills it."""
        said = (record.name, str(record.msg))
        if time.monotonic() - self._last.get(said, -REPEAT_S) < REPEAT_S:
            return False
        self._last[said] = time.monotonic()
        return True


def for_command() -> None:
    """Warnings of ours only: what aiokafka has to say about a broker that is away, the command says better."""
    _configure(logging.WARNING)
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)


def for_service() -> None:
    """What happens, with times, for a log file."""
    _configure(logging.INFO)
    logging.getLogger("aiokafka").setLevel(logging.WARNING)


def _configure(level: int) -> None:
    handler = logging.StreamHandler()
    handler.addFilter(Seldom())
    logging.basicConfig(
        handlers=[handler], level=logging.WARNING, format="%(asctime)s [%(levelname)s] %(name)s: %(message)s"
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            # Not the default: that prints local variables, keys among them.
            structlog.dev.ConsoleRenderer(
                colors=False, sort_keys=False, exception_formatter=structlog.dev.plain_traceback
            ),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )
