"""The page of `polar up`: no process before the first visit, then the sessions of this system, also after the process was killed."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from typing import Any

from polar.sessions import control_token
from tests.acceptance.up.running import Up
from tests.acceptance.up.test_up import CALL
from tests.waiting import until
from topics.environment import settings

SHOWN_S = 120.0


def token(up: Up) -> str:
    file = settings.load(up.data).control_token_file
    assert file is not None
    return control_token(file)


def answer(up: Up, path: str, body: bytes | None = None) -> Any:
    """The answer to a GET, or with a body to a POST."""
    headers = {"Authorization": f"Bearer {token(up)}", "Content-Type": "application/json"}
    url = up.addresses["POLAR_PAGE_URL"] + path
    request = urllib.request.Request(url, body, headers)
    with urllib.request.urlopen(request, timeout=SHOWN_S) as found:
        return json.load(found)


def test_the_page_begins_with_its_first_visitor_and_shows_what_runs(up: Up) -> None:
    assert f"{up.addresses['POLAR_PAGE_URL']}/#token={token(up)}\n" in up.output.read_text()
    assert up.submit("on-the-page", CALL, "--wait", "--run", "of-the-page").returncode == 0

    def row() -> dict[str, Any] | None:
        rows = answer(up, "/api/sessions")["sessions"]
        return next((one for one in rows if one["session_id"] == "on-the-page.0" and one["flags"] is not None), None)

    found = until(row, SHOWN_S, every_s=0.5)
    assert found is not None
    assert (found["run"], found["status"], found["calls"], found["reward"]) == ("of-the-page", "COMPLETED", 1, 1.0)
    assert found["flags"] == ["version_unknown"], "no trainer has published a version"
    [trained, *_] = [one for one in answer(up, "/api/sessions/on-the-page.0/tokens")["tokens"] if one["trained"]]
    assert trained["text"], "the engine was asked for the text"
    [first] = up.parts("page")
    assert answer(up, "/api/fleet/resume", b"{}")["paused"] is False
    os.kill(first, signal.SIGKILL)
    assert until(row, SHOWN_S, every_s=0.5) == found
    assert up.parts("page") != [first]
    assert token(up) not in (up.data / "logs" / "page.log").read_text() + (up.data / "polar.env").read_text()
