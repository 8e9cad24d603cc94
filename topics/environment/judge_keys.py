"""Keys of judges: an evaluator's calls to a model. They are recorded as `judge`, and are never trained (protocol 36).

An evaluate worker signs such a key with its ticket's claim key, so it needs none of the fleet's secrets, and a key is worth nothing for
another claim. A proxy derives the claim key from its secrets. The key names the evaluation's claim, which no `Open` ever names: builders
pass its calls over, whatever a worker writes into the key. The signing key is derived once more, so that a key's signature is the MAC of no
fact.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from typing import Any

import jwt
import msgspec
from msgspec.structs import replace

from topics.environment.claim_keys import derived, ticket_of
from topics.environment.keys import ALGORITHM, CLOCK_GRACE_S, KeyClaims, KeyRefusedError
from topics.environment.redaction import PREFIX
from topics.types.completion import JUDGE
from topics.types.session import Stage

SIGNED_BY = "evaluation-ticket"
"""The `kid` of such a key; the ids of the fleet's secrets are hexadecimal."""


def mint(claims: KeyClaims, claim_key: bytes) -> str:
    """The API key for the evaluation of `claims.claim_id`. `claim_key`: its ticket's."""
    payload: dict[str, Any] = msgspec.to_builtins(claims)
    return PREFIX + jwt.encode(payload, _signing_key(claim_key), algorithm=ALGORITHM, headers={"kid": SIGNED_BY})


def is_one(key: str) -> bool:
    """Whether a key says that it is a judge's; `check` verifies it."""
    try:
        return bool(jwt.get_unverified_header(key.removeprefix(PREFIX)).get("kid") == SIGNED_BY)
    except (jwt.InvalidTokenError, UnicodeEncodeError):
        return False


def check(key: str, secrets: Iterable[bytes], now_s: float) -> KeyClaims:
    """The claims of a judge's key at Unix time `now_s`; their kind is `judge`. `secrets`: the fleet's. Raises KeyRefusedError."""
    token = key.removeprefix(PREFIX)
    try:
        payload = jwt.decode(token, options={"verify_signature": False})
        claims = replace(msgspec.convert(payload, KeyClaims), kind=JUDGE)
    except (jwt.InvalidTokenError, msgspec.ValidationError, UnicodeEncodeError):
        raise KeyRefusedError("unknown") from None
    stage, ticket = ticket_of(claims.claim_id) or (None, "")
    if stage is not Stage.EVALUATE:
        raise KeyRefusedError("forged")
    if not any(
        _is_signed(token, derived(secret, claims.session_id, claims.attempt, stage, ticket)) for secret in secrets
    ):
        raise KeyRefusedError("forged")
    if now_s > claims.expires_at + CLOCK_GRACE_S:
        raise KeyRefusedError("expired")
    return claims


def _is_signed(token: str, claim_key: bytes) -> bool:
    try:
        jwt.decode(token, _signing_key(claim_key), algorithms=[ALGORITHM], options={"verify_exp": False})
    except jwt.InvalidTokenError:
        return False
    return True


def _signing_key(claim_key: bytes) -> bytes:
    return hmac.digest(claim_key, b"judge", "sha256")
