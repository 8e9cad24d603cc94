"""docs/webhooks.md: its receiver receives, and its message is what is sent."""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web

from consumers.webhooks.client import message
from topics.environment.webhook_signing import sign
from topics.types.session import Status
from topics.webhooks import Owed

PAGE = (Path(__file__).parents[3] / "docs" / "webhooks.md").read_text()


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def test_the_message_on_the_page_is_what_is_sent() -> None:
    shown: dict[str, Any] = json.loads(block("json"))
    owed = Owed("fix-7", "https://x.example", 1772337906789, [1.0, None], [Status.COMPLETED, Status.TIMED_OUT])
    assert json.loads(message(owed, "polar")) == shown


async def test_the_receiver_on_the_page_takes_what_is_signed_once_and_nothing_else(
    capsys: pytest.CaptureFixture[str],
) -> None:
    names: dict[str, Any] = {}
    exec(compile(block("python"), "docs/webhooks.md", "exec"), names)
    runner = web.AppRunner(names["app"], access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/groups"
        body = message(Owed("t1", url, 0, [0.5], [Status.COMPLETED]), "polar")
        headers = sign("polar.group.t1", int(time.time()), body, [names["SECRET"]])
        async with asyncio.timeout(10), ClientSession() as client:
            answers = [
                (await client.post(url, data=data, headers=headers)).status for data in (body, body, body + b" ")
            ]
    finally:
        await runner.cleanup()
    assert answers == [204, 204, 401]
    assert capsys.readouterr().out == "t1 [0.5]\n"
