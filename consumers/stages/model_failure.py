"""Whether an engine or a proxy that failed ended a harness: the proxies know how the last call of its claim ended (protocol 34)."""

from __future__ import annotations

import asyncio

import msgspec

from topics.environment import http_json
from topics.types.completion import CallError
from topics.types.last_call import PATH, LastCall

TRY_S = 10.0
"""For one answer: the proxy may have to ask another one."""
ASKING_S = 20.0
"""Longer than another proxy needs to take the sessions of a dead one over."""
PAUSE_S = 0.5

KEY_REFUSED = LastCall(
    CallError(
        "key_refused",
        "the proxy refuses the key that this worker has minted; do all hosts share one keys file (POLAR_KEYS_FILE)?",
    )
)
"""A harness with such a key was refused at each call."""

_decode = msgspec.json.Decoder(LastCall).decode


async def model_failure(proxy_url: str, key: str, exit_code: int | None) -> str | None:
    """Why the end of a harness isn't its own doing, for people; None if it is. `exit_code` None: its time was over.

    A call that failed counts whatever the exit code: some harnesses report success when their model is gone. That the session's proxy
    changed, or that none can be asked, counts only against a harness that failed.
    """
    ends = asyncio.get_running_loop().time() + ASKING_S
    while True:
        answer = await asyncio.to_thread(_asked, proxy_url, key)
        if answer is not None:
            break
        if exit_code == 0:
            return None
        if asyncio.get_running_loop().time() > ends:
            return f"no proxy told within {ASKING_S:g} s how the harness's last call ended"
        await asyncio.sleep(PAUSE_S)
    if answer.failure is not None:
        status = "" if answer.failure.status is None else f", HTTP status {answer.failure.status}"
        return f"the harness's last model call failed ({answer.failure.code}{status}): {answer.failure.message}"
    if answer.moved and exit_code:
        return "the session's proxy was replaced after the harness's last call, whose answer may have been lost"
    return None


def _asked(proxy_url: str, key: str) -> LastCall | None:
    """None if there is no answer that helps, for now."""
    try:
        answer = http_json.send(proxy_url + PATH, token=key, timeout_s=TRY_S)
        if answer.status == 200:
            return _decode(answer.body)
    except (http_json.NoAnswerError, msgspec.DecodeError):
        return None
    if answer.status == 401:
        return KEY_REFUSED
    # A key that is closed: the claim is over, and what is reported about it counts no more.
    return LastCall() if answer.status < 500 and answer.status != 429 else None
