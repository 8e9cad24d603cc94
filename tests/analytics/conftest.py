"""An empty lake, a lake whose story is known, and a reader of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from analytics.lake.manifest import Lake
from analytics.queries import query
from analytics.queries.query import Reader
from tests.analytics.story import story, write
from topics.environment.settings import Settings


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake(tmp_path / "lake")
    made.prepare()
    return made


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Settings of a system whose lake holds the story."""
    made = Settings(data=tmp_path_factory.mktemp("it's data") / ".polar")
    write(made.lake_folder, story())
    return made


@pytest.fixture(scope="module")
def reader(settings: Settings) -> Iterator[Reader]:
    with query.connect(settings) as made:
        yield made
