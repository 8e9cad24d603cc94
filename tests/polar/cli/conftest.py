"""The command line, in this process: what it sets for its own process is put back after each test."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    level = logging.getLogger("aiokafka").level
    yield
    logging.getLogger("aiokafka").setLevel(level)
    structlog.reset_defaults()
