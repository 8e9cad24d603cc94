"""The page in a real browser, as far as its tests look at it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

WAIT_MS = 30_000
LOADS = 10
DROPPED = "ERR_NETWORK_CHANGED"
"""A network interface of this machine came or went, as containers' do."""
ANIMATIONS_END = "() => Promise.allSettled(document.getAnimations().map(each => each.finished)).then(() => null)"
"""Resolves once all animations have ended."""
REFUSED = "Failed to load resource"
"""Chromium's line about an answer such as 401, which a test may ask for."""


class Tab:
    """One tab. `page` is Playwright's Page."""

    def __init__(self, page: Any, url: str, axe: str, token: str) -> None:
        self.page = page
        self._token = token
        self.errors: list[str] = []
        self._url = url
        self._axe = axe
        page.set_default_timeout(WAIT_MS)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", self._heard)
        self._failures: list[str] = []
        page.on("requestfailed", lambda request: self._failures.append(str(request.failure)))

    def open(self, address: str) -> None:
        """Load the page, first with its token, then with this address after `#`; again where Chromium dropped its connections."""
        for _ in range(LOADS):
            self._failures.clear()
            if self._token:
                self.page.goto(f"{self._url}/#token={self._token}")
                self.page.wait_for_function("() => !location.hash.includes('token')")
            self.page.goto("about:blank")
            self.page.goto(f"{self._url}/#/{address}")
            if not any(DROPPED in failure for failure in self._failures):
                self._token = ""  # the tab has it
                return
        raise AssertionError(f"{LOADS} loads failed: {self._failures}")

    def go(self, address: str) -> None:
        """Change the address, as a link does."""
        self.page.evaluate("address => { location.hash = `#/${address}` }", address)

    def text(self, selector: str) -> str:
        """The text of the first such element, once there is one."""
        found: str = self.page.locator(selector).first.inner_text()
        return found

    def texts(self, selector: str) -> list[str]:
        """The texts of all such elements, as they stand in the document."""
        self.page.locator(selector).first.wait_for()
        found: list[str] = self.page.locator(selector).all_text_contents()
        return found

    def wait(self, expression: str, argument: object = None) -> None:
        """Wait until a JavaScript expression is true."""
        self.page.wait_for_function(expression, arg=argument)

    def axe_violations(self) -> list[str]:
        """The violations that axe-core finds: rule, element, and why."""
        if not self.page.evaluate("() => Boolean(window.axe)"):
            self.page.evaluate(self._axe)
        self.page.evaluate(ANIMATIONS_END)  # what fades has other colours meanwhile
        found = self.page.evaluate("() => axe.run()")["violations"]
        return [f"{rule['id']}: {node['target']} {node['failureSummary']}" for rule in found for node in rule["nodes"]]

    def _heard(self, message: Any) -> None:
        if message.type == "error" and not message.text.startswith(REFUSED):
            self.errors.append(message.text)


class Browser:
    """A started browser. `requested` are the addresses of all requests of all tabs."""

    def __init__(self, started: Any, url: str, axe: str, token: str) -> None:
        self.requested: list[str] = []
        self.url = url
        self._started = started
        self._axe = axe
        self._token = token

    @contextmanager
    def tab(self, *, width: int = 1200, height: int = 760) -> Iterator[Tab]:
        context = self._started.new_context(viewport={"width": width, "height": height}, accept_downloads=True)
        context.on("request", lambda request: self.requested.append(request.url))
        try:
            yield Tab(context.new_page(), self.url, self._axe, self._token)
        finally:
            context.close()
