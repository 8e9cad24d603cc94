"""For receivers of webhooks: verify that a message is the sender's.

    group = verify(request.headers, body, secret)["data"]

Any library of the Standard Webhooks specification does the same. Signing is in `topics/environment/webhook_signing.py`, delivery in
`consumers/webhooks/`.
"""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

from topics.environment.webhook_signing import ID, SIGNATURE, TIMESTAMP, VERSION, signature

TOLERANCE_S = 300.0
"""The specification's: older messages may be replays."""


class BadSignature(ValueError):  # noqa: N818 - named for what it is
    """Not what the sender signed, or signed too long ago; the message says which. Answer 401, and the sender tries again."""


def verify(
    headers: Mapping[str, str],
    body: bytes,
    secret: str | Iterable[str],
    *,
    tolerance_s: float = TOLERANCE_S,
    now_s: float | None = None,
) -> dict[str, Any]:
    """The message in `body`, once it is known to be the sender's: `{type, timestamp, data}`. Raises BadSignature.

    `headers` are looked up in lower case where the mapping minds case. `secret`: `whsec_…`, or several, any of which will do. `now_s`:
    Unix time, the clock's where it isn't given.
    """
    said = {name.lower(): value for name, value in headers.items()}
    try:
        webhook_id, sent, signatures = said[ID], said[TIMESTAMP], said[SIGNATURE]
    except KeyError as missing:
        raise BadSignature(f"no {missing.args[0]} header") from None
    if not sent.isascii() or not sent.isdigit() or len(sent) > 12:
        raise BadSignature(f"{TIMESTAMP} is no Unix time: {sent[:40]!r}")
    age_s = (time.time() if now_s is None else now_s) - int(sent)
    if abs(age_s) > tolerance_s:
        raise BadSignature(f"sent {age_s:.0f} s ago; {tolerance_s:.0f} s are allowed (do the clocks agree?)")
    known = [secret] if isinstance(secret, str) else list(secret)
    wanted = [signature(webhook_id, sent, body, one).encode() for one in known]
    given = [value for version, _, value in (part.partition(",") for part in signatures.split()) if version == VERSION]
    if not any(hmac.compare_digest(one, value.encode()) for one in wanted for value in given):
        raise BadSignature("no signature of this secret; is it the sender's?")
    message: dict[str, Any] = json.loads(body)
    return message
