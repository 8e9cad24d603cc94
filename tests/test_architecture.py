"""The picture of docs/architecture.md is what its script draws from the access rights."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from topics.contract import catalogue

pytestmark = pytest.mark.contract

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"


def test_the_picture_is_what_the_script_draws_and_has_every_topic() -> None:
    drawn = subprocess.run([sys.executable, PICTURES / "architecture.py"], capture_output=True, text=True, check=True)
    assert (PICTURES / "architecture.svg").read_text() == drawn.stdout, "run docs/pictures/architecture.py again"
    names = {topic.name.partition(".")[0] for topic in catalogue.FIXED}
    assert [name for name in names if f">polar.{name}<" not in drawn.stdout] == []
