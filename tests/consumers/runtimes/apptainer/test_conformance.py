"""Runs the conformance tests of runtimes in containers of Apptainer.

Not on its stand-in: that would show the keeper alone, which runs in Docker's containers as well.
"""

from __future__ import annotations

import pytest

from tests.consumers.runtimes.owed import *  # noqa: F403 - pytest collects them here

pytestmark = [pytest.mark.apptainer, pytest.mark.parametrize("engine", ["apptainer"], indirect=True)]
