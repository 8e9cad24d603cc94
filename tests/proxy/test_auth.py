"""Session keys at a proxy's door."""

from __future__ import annotations

import time
from pathlib import Path

import jwt
import pytest

from proxy.auth import Authenticator
from proxy.errors import Refusal, RefusalError
from topics.environment.keys import KeyClaims, Keyring, add_key, ensure_keys_file, read_keys_file, retire_key, use_key
from topics.environment.redaction import PREFIX


def test_a_key_of_a_secret_that_was_retired_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    ensure_keys_file(path)
    keyring = Keyring(path)
    (old,) = read_keys_file(path)
    doorman = Authenticator(keyring, "polar")
    now = int(time.time())
    claims = KeyClaims("t.0", 1, "claim", expires_at=now + 60, issued_at=now, namespace="polar")
    key = keyring.mint(claims)
    assert doorman.claims_of(key) == claims
    use_key(path, add_key(path))
    retire_key(path, old)
    assert keyring.refresh(at_once=True)
    with pytest.raises(RefusalError):
        doorman.claims_of(key)


def test_a_key_of_another_namespace_with_the_same_secrets_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    ensure_keys_file(path)
    keyring, now = Keyring(path), int(time.time())
    key = keyring.mint(KeyClaims("t.0", 1, "claim", expires_at=now + 60, issued_at=now, namespace="polar"))
    assert Authenticator(keyring, "polar").claims_of(key).claim_id == "claim"
    for _ in range(2):  # the second time from memory, if it were in it
        with pytest.raises(RefusalError, match="another namespace") as refused:
            Authenticator(keyring, "other").claims_of(key)
        assert refused.value.refusal is Refusal.UNAUTHENTICATED


def test_a_key_without_a_namespace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    ensure_keys_file(path)
    [(key_id, secret)] = read_keys_file(path).items()
    now = int(time.time())
    claims = {"session_id": "t.0", "attempt": 1, "claim_id": "claim", "expires_at": now + 60, "issued_at": now}
    older = PREFIX + jwt.encode(claims, secret, headers={"kid": key_id})
    ours = PREFIX + jwt.encode(claims | {"namespace": "polar"}, secret, headers={"kid": key_id})
    doorman = Authenticator(Keyring(path), "polar")
    assert doorman.claims_of(ours).claim_id == "claim"
    with pytest.raises(RefusalError) as refused:
        doorman.claims_of(older)
    assert refused.value.refusal is Refusal.UNAUTHENTICATED
