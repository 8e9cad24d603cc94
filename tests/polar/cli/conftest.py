"""The command line, in this process."""

from __future__ import annotations

import asyncio

import pytest

from polar.cli import progress
from topics.contract import catalogue
from topics.environment.settings import Settings
from topics.log import admin


@pytest.fixture(autouse=True)
def _without_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, reading few records takes more than a second, and would show its progress."""
    monkeypatch.setattr(progress, "QUICK_S", 600.0)


@pytest.fixture
def settings(
    kafka: str, namespace: str, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Settings:
    """A fresh namespace with all topics; the commands find it by the environment."""
    data = tmp_path_factory.mktemp("data")
    found = Settings(kafka=kafka, namespace=namespace, replication=1, min_insync=1, data=data)
    for name in ("kafka", "namespace", "replication", "min_insync", "data"):
        monkeypatch.setenv(f"POLAR_{name.upper()}", str(getattr(found, name)))
    asyncio.run(admin.apply(found, catalogue.FIXED, embedded=True))
    return found
