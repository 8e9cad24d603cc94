"""Fixtures of the whole suite: one real Kafka a session, and a namespace of its own for each test."""

import os
import secrets
from collections.abc import Iterator

import hypothesis
import pytest

from polar.embedded import Broker

# What an example takes is the machine's matter, and others share it.
hypothesis.settings.register_profile(
    "polar", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True
)
hypothesis.settings.load_profile("polar")


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`host:port` of a real broker: `POLAR_TEST_KAFKA` where set, else an embedded one for this session."""
    outside = os.environ.get("POLAR_TEST_KAFKA")
    if outside:
        yield outside
        return
    with Broker(tmp_path_factory.mktemp("kafka"), announce=print) as broker:
        yield broker.bootstrap


@pytest.fixture
def namespace() -> str:
    """A prefix for topics and groups that no other test has."""
    return f"t{secrets.token_hex(4)}"
