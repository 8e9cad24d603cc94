"""Log lines go to stderr: results have stdout for themselves."""

from __future__ import annotations

import logging
import sys

import structlog


def for_command() -> None:
    """Warnings of ours only: what aiokafka has to say about a broker that is away, the command says better."""
    _configure(logging.WARNING)
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)


def for_service() -> None:
    """What happens, with times, for a log file."""
    _configure(logging.INFO)
    logging.getLogger("aiokafka").setLevel(logging.WARNING)


def _configure(level: int) -> None:
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(asctime)s [%(levelname)s] %(name)s: %(message)s"
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.ConsoleRenderer(colors=False, sort_keys=False),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
