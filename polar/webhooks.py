"""For receivers of webhooks: verify that a message comes from its sender.

    group = verify_webhook(request.headers, body, secret)["data"]

Every library of the Standard Webhooks specification can do this. Signing is in `topics/environment/webhook_signing.py`, delivery in
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
"""Largest age of a message, from the specification: older messages may be replays."""


class WebhookSignatureError(ValueError):
    """The sender didn't sign this message, or signed it too long ago; the message says which. Answer 401, and the sender retries."""


def verify_webhook(
    headers: Mapping[str, str],
    body: bytes,
    secret: str | Iterable[str],
    *,
    tolerance_s: float = TOLERANCE_S,
    now_s: float | None = None,
) -> dict[str, Any]:
    """The message in `body`, `{type, timestamp, data}`, if the sender signed it. Raises WebhookSignatureError.

    `headers`: names may be in any case. `secret`: `whsec_…`, or several, of which one must match. `now_s`: Unix time, by default the
    clock's.
    """
    by_name = {name.lower(): value for name, value in headers.items()}
    try:
        webhook_id, sent, signatures = by_name[ID], by_name[TIMESTAMP], by_name[SIGNATURE]
    except KeyError as missing:
        raise WebhookSignatureError(f"no {missing.args[0]} header") from None
    if not sent.isascii() or not sent.isdigit() or len(sent) > 12:
        raise WebhookSignatureError(f"{TIMESTAMP} is no Unix time: {sent[:40]!r}")
    age_s = (time.time() if now_s is None else now_s) - int(sent)
    if abs(age_s) > tolerance_s:
        raise WebhookSignatureError(f"sent {age_s:.0f} s ago; {tolerance_s:.0f} s are allowed (do the clocks agree?)")
    secrets = [secret] if isinstance(secret, str) else list(secret)
    expected = [signature(webhook_id, sent, body, each).encode() for each in secrets]
    parts = (part.partition(",") for part in signatures.split())
    received = [value.encode() for version, _, value in parts if version == VERSION]
    if not any(hmac.compare_digest(one, other) for one in expected for other in received):
        raise WebhookSignatureError("no signature of this secret; is it the sender's?")
    message: dict[str, Any] = json.loads(body)
    return message
