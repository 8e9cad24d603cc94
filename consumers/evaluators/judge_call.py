"""One request of a judge to the proxy, in the form of OpenAI's chat completions.

The request runs in a daemon thread of its own: a worker that stops, or whose claim is revoked, doesn't wait for a model.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from consumers.runtimes.base import ModelAccess
from topics.environment import http_json

REFUSED = (400, 404, 413, 422)
"""Statuses of a request that is at fault itself: too long for the model, or with a schema that its engine doesn't know."""
SPENT = 403
"""Status of a request beyond the key's limits."""
SHOWN = 500
"""Characters of an error that a message repeats."""


class RefusedError(Exception):
    """The request was refused, and would be again; the message says why."""


class SpentError(Exception):
    """The key allows no further call; the message says which limit is reached."""


class UnansweredError(Exception):
    """There is no answer, and another try may help; the message says why."""


async def choices(access: ModelAccess, body: Mapping[str, Any], timeout_s: float) -> list[dict[str, Any]]:
    """The answer's choices, at least one, as they came. Raises UnansweredError, RefusedError and SpentError."""
    url = f"{access.proxy_url}/v1/chat/completions"
    try:
        answer = await _in_thread(partial(http_json.send, url, body, token=access.key, timeout_s=timeout_s), timeout_s)
        said = answer.json()
    except TimeoutError:
        raise UnansweredError(f"nothing came within {timeout_s:.0f} s") from None
    except (http_json.NoAnswerError, ValueError, RecursionError) as error:
        raise UnansweredError(str(error)[:SHOWN]) from None
    listed = said.get("choices") if isinstance(said, dict) else None
    found = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    if answer.status == 200 and found:
        return found
    if answer.status in REFUSED:
        raise RefusedError(f"status {answer.status}: {_message(said)}")
    if answer.status == SPENT:
        raise SpentError(f"status {answer.status}: {_message(said)}")
    raise UnansweredError(f"status {answer.status}: {_message(said)}")


async def _in_thread(send: partial[http_json.Answer], timeout_s: float) -> http_json.Answer:
    """The result of `send`. Raises what it raises, and TimeoutError: its own limit counts for each of its steps."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[http_json.Answer] = loop.create_future()

    def settle(answer: http_json.Answer | None, error: Exception | None) -> None:
        if ended.done():
            return
        if answer is not None:
            ended.set_result(answer)
        else:
            ended.set_exception(error or RuntimeError("no result"))

    def run() -> None:
        answer: http_json.Answer | None = None
        raised: Exception | None = None
        try:
            answer = send()
        except Exception as error:
            raised = error
        with suppress(RuntimeError):  # the loop is closed: the worker has stopped
            loop.call_soon_threadsafe(settle, answer, raised)

    threading.Thread(target=run, name="judge", daemon=True).start()
    async with asyncio.timeout(timeout_s):
        return await ended


def _message(said: object) -> str:
    """The words of an error in the form of OpenAI's API."""
    error = said.get("error") if isinstance(said, dict) else None
    return str(error.get("message") if isinstance(error, dict) else said)[:SHOWN]
