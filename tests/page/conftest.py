"""One filled system and one browser for all tests of the page; each test has a tab of its own."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.page import programs
from tests.page.browser import Browser, Tab
from tests.page.serving import TOKEN, Served, served

SESSIONS = 10_000
PICTURES = Path(__file__).parents[2] / "docs" / "pictures"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where this folder is named on the command line."""
    parser.addoption("--record-pictures", action="store_true", help="rewrite docs/pictures/page_*.png")


@pytest.fixture(scope="module")
def system(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    programs.chromium()  # without one nothing needs to be filled
    with served(kafka, f"page{secrets.token_hex(3)}", tmp_path_factory.mktemp("page"), SESSIONS) as found:
        yield found


@pytest.fixture(scope="module")
def browser(system: Served) -> Iterator[Browser]:
    with programs.playwright().sync_playwright() as driver:
        # In a container the browser's own sandbox has no rights, and all that it opens is ours.
        options = ["--no-sandbox", "--enable-precise-memory-info", "--js-flags=--expose-gc"]
        started = driver.chromium.launch(executable_path=programs.chromium(), args=options)
        yield Browser(started, system.url, programs.axe(), TOKEN)
        started.close()


@pytest.fixture
def tab(browser: Browser) -> Iterator[Tab]:
    """A tab of its own. A script's error, or a violation of the page's Content-Security-Policy, fails the test."""
    with browser.tab() as opened:
        yield opened
        assert opened.errors == []


@pytest.fixture
def pictures(request: pytest.FixtureRequest) -> Path | None:
    """The folder for pictures; None: they aren't recorded in this run."""
    return PICTURES if request.config.getoption("--record-pictures", default=False) else None
