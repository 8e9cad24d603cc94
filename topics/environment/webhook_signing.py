"""Signatures of webhooks by the Standard Webhooks specification, and the file of secrets.

The signature covers id, time and body, which prevents changes and later replays. All of the sender's secrets sign, so a receiver needs only
one of them, and secrets rotate without a gap. Receivers use `polar/webhooks.py`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Iterable
from pathlib import Path

from topics.environment import private_files
from topics.types.errors import NotReadyError

ID = "webhook-id"
TIMESTAMP = "webhook-timestamp"
SIGNATURE = "webhook-signature"
PREFIX = "whsec_"
VERSION = "v1"
SECRET_BYTES = 32
LEAST_BYTES = 24
"""The specification's: 24 to 64 bytes."""


def sign(webhook_id: str, sent_s: int, body: bytes, signing: Iterable[str]) -> dict[str, str]:
    """The three headers of a message sent at Unix time `sent_s`, signed with each of the `whsec_…` secrets in `signing`."""
    signatures = " ".join(f"{VERSION},{signature(webhook_id, str(sent_s), body, secret)}" for secret in signing)
    return {ID: webhook_id, TIMESTAMP: str(sent_s), SIGNATURE: signatures}


def read_secrets(path: Path) -> list[str]:
    """The `whsec_…` lines of a file, in order, without empty lines and `#` comments. Raises NotReadyError."""
    try:
        lines = [line.strip() for line in path.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise NotReadyError(
            f"webhooks can't be signed: {path} can't be read ({type(error).__name__}); write `whsec_` and 32 random bytes in base64 to it, "
            "or say where it is (POLAR_WEBHOOK_SECRET_FILE)"
        ) from None
    found = [line for line in lines if line and not line.startswith("#")]
    try:
        for secret in found:
            _key(secret)
    except ValueError as error:
        raise NotReadyError(f"webhooks can't be signed: {path}: {error}") from None
    if not found:
        raise NotReadyError(f"webhooks can't be signed: {path} holds no secret")
    return found


def ensure_secret_file(path: Path) -> None:
    """Make a file with one new secret, unless the file exists."""
    private_files.create(path, new_secret() + "\n")


def new_secret() -> str:
    """A new `whsec_…` secret."""
    return PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def signature(webhook_id: str, sent: str, body: bytes, secret: str) -> str:
    """The base64 signature with one secret. Raises ValueError for an invalid secret."""
    signed = b".".join((webhook_id.encode(), sent.encode(), body))
    return base64.b64encode(hmac.digest(_key(secret), signed, hashlib.sha256)).decode()


def _key(secret: str) -> bytes:
    """The secret's bytes. Raises ValueError, whose message doesn't contain the secret."""
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("a secret is `whsec_` and base64") from None
    if len(key) < LEAST_BYTES:
        raise ValueError(f"a secret holds at least {LEAST_BYTES} bytes; this one {len(key)}")
    return key
