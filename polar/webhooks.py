"""What sender and receiver of a webhook agree on: the signature of the Standard Webhooks specification, and the file of secrets.

A receiver needs this module alone, or any library of that specification:

    group = verify(request.headers, body, secret)["data"]

The signature covers id, instant and body, so that none of them can be changed, and old messages can't be sent again later. Each secret
of the sender signs: a receiver that knows one of them is content, and secrets change without a gap. Delivering is `consumers/webhooks/`'s.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import os
import secrets
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from polar.types.errors import NotReady

ID = "webhook-id"
TIMESTAMP = "webhook-timestamp"
SIGNATURE = "webhook-signature"
PREFIX = "whsec_"
VERSION = "v1"
SECRET_BYTES = 32
LEAST_BYTES = 24
"""The specification's: 24 to 64 bytes."""
TOLERANCE_S = 300.0


class BadSignature(ValueError):  # noqa: N818 - named for what it is
    """Not what the sender signed, or signed too long ago; the message says which. Answer 401, and the sender tries again."""


def sign(webhook_id: str, sent_s: int, body: bytes, signing: Iterable[str]) -> dict[str, str]:
    """The three headers of a message sent at Unix time `sent_s`; `signing`: `whsec_…`, each of which signs."""
    signatures = " ".join(f"{VERSION},{_signature(webhook_id, str(sent_s), body, secret)}" for secret in signing)
    return {ID: webhook_id, TIMESTAMP: str(sent_s), SIGNATURE: signatures}


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
    wanted = [_signature(webhook_id, sent, body, one).encode() for one in known]
    given = [value for version, _, value in (part.partition(",") for part in signatures.split()) if version == VERSION]
    if not any(hmac.compare_digest(one, value.encode()) for one in wanted for value in given):
        raise BadSignature("no signature of this secret; is it the sender's?")
    message: dict[str, Any] = json.loads(body)
    return message


def read_secrets(path: Path) -> list[str]:
    """The `whsec_…` lines of a file, in order; empty lines and those that begin with `#` are passed over. Raises NotReady."""
    try:
        lines = [line.strip() for line in path.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise NotReady(
            f"webhooks can't be signed: {path} can't be read ({type(error).__name__}); write `whsec_` and 32 random bytes in base64 to it, "
            "or say where it is (POLAR_WEBHOOK_SECRET_FILE)"
        ) from None
    found = [line for line in lines if line and not line.startswith("#")]
    try:
        for secret in found:
            _key(secret)
    except ValueError as error:
        raise NotReady(f"webhooks can't be signed: {path}: {error}") from None
    if not found:
        raise NotReady(f"webhooks can't be signed: {path} holds no secret")
    return found


def ensure_secret_file(path: Path) -> None:
    """Make a file with one fresh secret, mode 0600, unless there is one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    with os.fdopen(descriptor, "w") as file:
        file.write(new_secret() + "\n")


def new_secret() -> str:
    """A fresh `whsec_…`."""
    return PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def _signature(webhook_id: str, sent: str, body: bytes, secret: str) -> str:
    signed = b".".join((webhook_id.encode(), sent.encode(), body))
    return base64.b64encode(hmac.digest(_key(secret), signed, hashlib.sha256)).decode()


def _key(secret: str) -> bytes:
    """Raises ValueError, which doesn't repeat the secret."""
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("a secret is `whsec_` and base64") from None
    if len(key) < LEAST_BYTES:
        raise ValueError(f"a secret holds at least {LEAST_BYTES} bytes; this one {len(key)}")
    return key
