"""Session keys at a proxy's door."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from proxy.auth import Authenticator
from proxy.errors import RefusalError
from topics.environment.keys import KeyClaims, Keyring, add_key, ensure_keys_file, read_keys_file, retire_key, use_key


def test_a_key_of_a_secret_that_was_retired_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    ensure_keys_file(path)
    keyring = Keyring(path)
    (old,) = read_keys_file(path)
    doorman = Authenticator(keyring)
    now = int(time.time())
    claims = KeyClaims("t.0", 1, "claim", expires_at=now + 60, issued_at=now)
    key = keyring.mint(claims)
    assert doorman.claims_of(key) == claims
    use_key(path, add_key(path))
    retire_key(path, old)
    assert keyring.refresh(at_once=True)
    with pytest.raises(RefusalError):
        doorman.claims_of(key)
