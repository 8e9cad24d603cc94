"""Session keys: signed tokens that say which session, attempt and claim a call belongs to, and how it may sample.

Minted at the grant (by the run worker; for an opened session by the proxy that was asked), checked by every proxy without a look-up.
Signed with the fleet's secret (HS256, the `kid` header names it). The expiry is a backstop, a day past the run's budget; `CloseKey` ends
a key (protocol 17).
"""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any

import jwt
import msgspec

ALGORITHM = "HS256"
PREFIX = "sk-polar-"
"""So that a key is recognised for what it is, in logs' redaction and by people."""
CLOCK_GRACE_S = 300
BACKSTOP_S = 24 * 3600


CONCURRENT_CALLS = 64
"""At a time, where a task says nothing."""


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a session may use."""

    calls: int | None = None
    """Answered calls; None: any number."""
    tokens: int | None = None
    """Sampled tokens; None: any number."""
    concurrent_calls: int = CONCURRENT_CALLS


class KeyClaims(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a key says."""

    session_id: str
    attempt: int
    claim_id: str
    expires_at: int
    """Unix seconds."""
    issued_at: int
    mode: str = "train"
    sampling: dict[str, float | int] = {}
    """Imposed on every call, by canonical name."""
    limits: Limits = Limits()
    log_partition: int = 0
    log_offset: int = 0
    """Where this attempt's `Open` lies in `polar.completions`."""


class KeyRefused(ValueError):  # noqa: N818 - named for what the caller does
    """A key that can't be honoured; `reason` is `unknown`, `forged` or `expired`."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the API key is {reason}")


class Signer:
    """Mints and checks keys with the secrets of a keys file: JSON `{key_id: secret}`, the last one signs."""

    def __init__(self, secrets_by_id: dict[str, str]) -> None:
        if not secrets_by_id:
            raise ValueError("a keys file holds at least one signing key")
        self._secrets = secrets_by_id
        self._signing_id = list(secrets_by_id)[-1]

    @classmethod
    def from_file(cls, path: Path) -> Signer:
        """Raises FileNotFoundError or ValueError, both with the path."""
        try:
            loaded: dict[str, str] = json.loads(path.read_text())
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}: not a keys file ({error})") from error
        return cls(loaded)

    def mint(self, claims: KeyClaims) -> str:
        """The API key that a harness is given."""
        payload: dict[str, Any] = msgspec.to_builtins(claims)
        token = jwt.encode(
            payload, self._secrets[self._signing_id], algorithm=ALGORITHM, headers={"kid": self._signing_id}
        )
        return PREFIX + token

    def check(self, key: str, now_s: float) -> KeyClaims:
        """The claims of a key at Unix time `now_s`. Raises KeyRefused."""
        token = key.removeprefix(PREFIX)
        try:
            key_id = jwt.get_unverified_header(token).get("kid", "")
            payload = jwt.decode(token, self._secrets[key_id], algorithms=[ALGORITHM], options={"verify_exp": False})
            claims = msgspec.convert(payload, KeyClaims)
        except jwt.InvalidSignatureError:
            raise KeyRefused("forged") from None
        except (jwt.InvalidTokenError, KeyError, msgspec.ValidationError, UnicodeEncodeError):
            raise KeyRefused("unknown") from None
        if now_s > claims.expires_at + CLOCK_GRACE_S:
            raise KeyRefused("expired")
        return claims


def environment(proxy_url: str, key: str) -> dict[str, str]:
    """How an agent finds the proxy and shows its key: for each provider's client, the URL in the form that this client wants.

    `proxy_url` is without a trailing slash or `/v1`.
    """
    return {
        "OPENAI_BASE_URL": f"{proxy_url}/v1",
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": proxy_url,
        "ANTHROPIC_API_KEY": key,
        "GOOGLE_GEMINI_BASE_URL": proxy_url,
        "GEMINI_API_KEY": key,
    }


def ensure_keys_file(path: Path) -> None:
    """Make a keys file with one fresh secret, mode 0600, unless there is one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    with os.fdopen(descriptor, "w") as file:
        json.dump({secrets.token_hex(4): secrets.token_urlsafe(32)}, file)
