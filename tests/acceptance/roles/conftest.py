"""The whole system that tests of this folder share: a process for each role, as several machines would have them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.acceptance.fleet import ROLES, Fleet, fleet


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def system(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    """On a Kafka with logins, each with the rights of its roles alone.

    Tests come in the order of their files: `test_growing` replaces workers, and `test_spine` leaves dead letters.
    """
    async with fleet(tmp_path_factory.mktemp("roles"), [], secured=True) as made:
        for role in ROLES:
            await start(made, f"{role}-1")
        yield made


async def start(system: Fleet, name: str) -> None:
    """A worker whose figures are served."""
    options = ("--concurrency", "4", "--grace", "60", "--metrics-port", "0", "--data", str(system.data))
    await system.spawn(name, "polar.cli", "worker", name.partition("-")[0], *options)
