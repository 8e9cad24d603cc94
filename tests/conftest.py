"""Fixtures of the whole suite: one real Kafka a worker, and a namespace of its own for each test. `tiers` sorts the tests."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import secrets
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import structlog

from polar.embedded import Broker
from tests import tiers
from topics.environment import registry
from topics.environment.settings import Settings
from topics.log import kafka as clients

ROOT = Path(__file__).parents[1]

# The duration of an example depends on the machine, which others share.
hypothesis.settings.register_profile(
    "polar", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True
)
hypothesis.settings.load_profile("polar")
sys.addaudithook(tiers.guard)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What collection makes stays to the end: looking through it for garbage, then and later, takes a tenth of a run's CPU."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses by the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tiers.assign(items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    with tiers.guarded(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    with tiers.guarded(item):
        return (yield)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> tiers.Scheduler:
    return tiers.Scheduler(config, log)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`host:port` of a real broker: `POLAR_TEST_KAFKA` where set, otherwise an embedded broker for this worker.

    One broker for all workers ran out of its 20,000 open files: the tests' topics are some 8,000 partitions of three files each.
    """
    outside = os.environ.get("POLAR_TEST_KAFKA")
    if outside:
        yield outside
        return
    with Broker(tmp_path_factory.mktemp("kafka"), announce=print) as broker:
        yield broker.bootstrap
        # Nobody reads its data again, and an orderly stop of thousands of partitions takes seconds.
        broker.kill()


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> Iterator[str]:
    """A prefix for topics and groups that no other test has. The worker's broker loses the topics soon after the test.

    Otherwise a worker with many tests of whole systems had 7,300 partitions, for which the broker's heap of 256 MiB was too small.
    """
    name = f"t{secrets.token_hex(4)}"
    yield name
    if "kafka" not in request.fixturenames:
        return
    _ended.append(f"{name}.")
    if len(_ended) >= 10:
        asyncio.run(_delete_topics(request.getfixturevalue("kafka"), tuple(_ended)))
        _ended.clear()


_ended: list[str] = []
"""Prefixes of the topics of ended tests, which are deleted next."""


async def _delete_topics(bootstrap: str, prefixes: tuple[str, ...]) -> None:
    admin = clients.admin(Settings(kafka=bootstrap))
    try:
        await admin.start()
        names = [topic["topic"] for topic in await admin.describe_topics()]
        await admin.delete_topics([name for name in names if name.startswith(prefixes)])
    finally:
        await admin.close()


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """A command that a test runs in this process sets up the logs of the process."""
    level = logging.getLogger("aiokafka").level
    yield
    logging.getLogger("aiokafka").setLevel(level)
    structlog.reset_defaults()


@pytest.fixture
def own_plug_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Polar with the plug-ins of this tree's pyproject.toml, as `make install` registers them."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    info = tmp_path / "polar_rollouts-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: polar-rollouts\nVersion: 0.1.0\n")
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()) for group, points in groups.items()]
    (info / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    registry._installed.cache_clear()
    yield
    registry._installed.cache_clear()
