"""Runs the conformance tests of runtimes in containers of Docker."""

from __future__ import annotations

import pytest

from tests.consumers.runtimes.owed import *  # noqa: F403 - pytest collects them here
from tests.consumers.runtimes.test_conformance import (
    test_another_worker_attaches_by_the_handle_alone as test_another_worker_attaches_by_the_handle_alone,
)

pytestmark = pytest.mark.docker
