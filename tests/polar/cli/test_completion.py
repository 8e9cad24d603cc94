"""Shells complete subcommands, options and their values."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.contract


def completed(*words: str) -> list[str]:
    """What bash gets for the last of these words, by the protocol of the installed script."""
    request = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1), "_POLAR_COMPLETE": "complete_bash"}
    program = "from polar.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", program], env=os.environ | request, capture_output=True, text=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_names_of_subcommands_and_their_options_are_completed() -> None:
    assert completed("polar", "wh") == ["why"]
    assert completed("polar", "dead-letters", "re") == ["replay"]
    assert completed("polar", "list", "--se") == ["--sessions"]
    assert completed("polar", "why", "t", "--format", "j") == ["json"]
