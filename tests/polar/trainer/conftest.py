"""A trainer's settings on the suite's broker, and a builder's hand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.polar.trainer.writing import Writer
from topics.environment.settings import Settings


@pytest.fixture
def settings(kafka: str, namespace: str, tmp_path: Path) -> Settings:
    return Settings(kafka=kafka, namespace=namespace, data=tmp_path, replication=1, min_insync=1)


@pytest.fixture
async def writer(settings: Settings) -> AsyncIterator[Writer]:
    """Of the default topic, which is there."""
    async with Writer(settings) as made:
        yield made
