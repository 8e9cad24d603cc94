"""A fleet of one worker and a coordinator that the test plays."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.consumers.stages.coordinating import Coordinator, coordinating, settings_for
from topics.environment.settings import Settings


@pytest.fixture
def settings(kafka: str, namespace: str, tmp_path: Path) -> Settings:
    return settings_for(kafka, namespace, tmp_path)


@pytest.fixture
async def coordinator(settings: Settings) -> AsyncIterator[Coordinator]:
    async with coordinating(settings) as played:
        yield played
