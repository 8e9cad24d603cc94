"""Runs the conformance tests of runtimes in containers of Apptainer."""

from __future__ import annotations

import pytest

from tests.consumers.runtimes.owed import *  # noqa: F403 - pytest collects them here

pytestmark = pytest.mark.contract
