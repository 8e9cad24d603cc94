"""Fixtures of the whole suite: one real Kafka a run, and a namespace of its own for each test. `tiers` sorts the tests."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest

from polar.embedded import Broker
from tests import tiers

# The duration of an example depends on the machine, which others share.
hypothesis.settings.register_profile(
    "polar", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True
)
hypothesis.settings.load_profile("polar")
sys.addaudithook(tiers.guard)

SHARED_BROKER = pytest.StashKey[tiers.SharedBroker]()


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


def pytest_configure_node(node: Any) -> None:
    """The controller tells each of its workers where the shared broker is."""
    if SHARED_BROKER not in node.config.stash:
        node.config.stash[SHARED_BROKER] = tiers.SharedBroker()
    node.workerinput["shared_broker"] = node.config.stash[SHARED_BROKER].address


def pytest_unconfigure(config: pytest.Config) -> None:
    if SHARED_BROKER in config.stash:
        config.stash[SHARED_BROKER].stop()


@pytest.fixture(scope="session")
def kafka(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`host:port` of a real broker: `POLAR_TEST_KAFKA` where set, otherwise an embedded broker for the whole run."""
    if outside := os.environ.get("POLAR_TEST_KAFKA"):
        yield outside
    elif worker := getattr(request.config, "workerinput", None):
        yield tiers.shared_bootstrap(worker["shared_broker"])
    else:
        with Broker(tmp_path_factory.mktemp("kafka"), announce=print) as broker:
            yield broker.bootstrap


@pytest.fixture
def namespace() -> str:
    """A prefix for topics and groups that no other test has."""
    return f"t{secrets.token_hex(4)}"
