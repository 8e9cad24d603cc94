"""What the tests of the page need of others: Playwright, axe-core and a Chromium. Nothing of it is shipped.

Playwright's package is installed into the user's cache and drives the machine's own Chromium, so no browser is downloaded.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from consumers.harnesses.npm import OPTIONS, RECORD, npm
from tests import installed
from topics.environment import cache

PINS = Path(__file__).with_name("playwright.txt")
AXE = Path(__file__).with_name("axe")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def chromium() -> str:
    """The path of this machine's Chromium. Without one the test skips."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"the page is walked in a Chromium: there is none of {', '.join(BROWSERS)} on PATH")
    return found


def playwright() -> Any:
    """Playwright's module `sync_api`."""
    folder = str(installed.packages("playwright", PINS, sys.executable))
    if folder not in sys.path:
        sys.path.append(folder)
    import playwright.sync_api as module

    return module


def axe() -> str:
    """The script of axe-core, which adds `axe` to a page."""
    lock = AXE / "package-lock.json"

    def build(folder: Path) -> None:
        for name in ("package.json", lock.name):
            (folder / name).write_bytes((AXE / name).read_bytes())
        subprocess.run(npm("ci", "--prefix", str(folder), *OPTIONS), check=True, capture_output=True, timeout=300)

    folder = cache.installed(
        f"axe-{installed.digest(lock)}", build, whole=lambda folder: (folder / RECORD).is_file(), announce=print
    )
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text()
