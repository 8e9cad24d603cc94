"""Verifies a request's API key (signature, expiry and namespace) and returns its claims. `proxy/session/claim_cache.py` knows closed keys.

No message contains any part of a key.
"""

from __future__ import annotations

import time
from collections import OrderedDict

from proxy.errors import Refusal, RefusalError
from topics.environment import judge_keys
from topics.environment.keys import CLOCK_GRACE_S, KeyClaims, KeyRefusedError, Keyring

REMEMBERED = 4096
"""Keys whose signature was verified are cached: saves 60 µs a call."""
WORDS = {
    "unknown": "this API key is not one of Polar's session keys; use the key that the session was given",
    "foreign": "this API key is signed with a secret that this proxy lacks: all hosts of a fleet share one keys file (POLAR_KEYS_FILE)",
    "forged": "this API key's signature is not ours",
    "expired": "this API key has expired",
    "elsewhere": "this API key is of another namespace; use the proxy that the session was given",
}


class Authenticator:
    """Verifies keys with the fleet's secrets."""

    def __init__(self, keyring: Keyring, namespace: str) -> None:
        self._keyring = keyring
        self._namespace = namespace
        self._checked: OrderedDict[str, KeyClaims] = OrderedDict()
        self._checked_with = keyring.generation

    def claims_of(self, key: str | None) -> KeyClaims:
        """The claims of a key. Raises RefusalError (401)."""
        if not key:
            raise RefusalError(Refusal.UNAUTHENTICATED, "no API key was given")
        self._keyring.refresh()
        if self._keyring.generation != self._checked_with:
            self._checked.clear()
            self._checked_with = self._keyring.generation
        known = self._checked.get(key)
        now = time.time()
        if known is not None and now <= known.expires_at + CLOCK_GRACE_S:
            self._checked.move_to_end(key)
            return known
        try:
            claims = self._keyring.check(key, now) if not judge_keys.is_one(key) else self._judges(key, now)
        except KeyRefusedError as error:
            raise RefusalError(Refusal.UNAUTHENTICATED, WORDS[error.reason]) from None
        if claims.namespace != self._namespace:
            # Two namespaces may share a keys file, but not `polar.control`: this proxy can't know whether the key is closed.
            raise RefusalError(Refusal.UNAUTHENTICATED, WORDS["elsewhere"])
        self._checked[key] = claims
        if len(self._checked) > REMEMBERED:
            self._checked.popitem(last=False)
        return claims

    def _judges(self, key: str, now: float) -> KeyClaims:
        try:
            return judge_keys.check(key, self._keyring.secrets(), now)
        except KeyRefusedError as error:
            # Its ticket may be signed with a secret that is newer than our last look.
            if error.reason == "expired" or not self._keyring.refresh(at_once=True):
                raise
            return judge_keys.check(key, self._keyring.secrets(), now)
