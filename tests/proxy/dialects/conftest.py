"""How expectations are written anew."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where this folder is named on the command line."""
    parser.addoption("--accept", action="store_true", help="write what recorded bodies come to as what is expected")
