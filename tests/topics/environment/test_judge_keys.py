"""Keys of judges: only the holder of an evaluation's ticket makes one, for that evaluation alone, and its calls have the kind `judge`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from topics.environment import judge_keys
from topics.environment.claim_keys import ClaimKeys, mac
from topics.environment.keys import CLOCK_GRACE_S, KeyClaims, KeyRefusedError, Signer
from topics.types.session import Stage

NOW = 1_800_000_000
SECRETS = [b"o" * 32, b"n" * 32]
CLAIMS = KeyClaims("t.0", 1, "e-1a.1-0123456789abcdef", NOW + 60, NOW, "polar", mode="eval")


@pytest.fixture
def keys(tmp_path: Path) -> ClaimKeys:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"old": "o" * 32, "new": "n" * 32}))
    return ClaimKeys(path)


def claim_key(keys: ClaimKeys, **changes: Any) -> bytes:
    ticket: dict[str, Any] = {"session_id": "t.0", "attempt": 1, "stage": Stage.EVALUATE, "ticket": "1a.1"}
    return keys.key(**ticket | changes)


def test_a_ticket_s_holder_makes_a_key_for_its_evaluation(keys: ClaimKeys) -> None:
    key = judge_keys.mint(CLAIMS, claim_key(keys))
    assert judge_keys.is_one(key)
    assert judge_keys.check(key, SECRETS, NOW) == replace(CLAIMS, kind="judge")
    assert judge_keys.check(key, SECRETS, NOW + 60 + CLOCK_GRACE_S).claim_id == CLAIMS.claim_id
    with pytest.raises(KeyRefusedError, match="expired"):
        judge_keys.check(key, SECRETS, NOW + 61 + CLOCK_GRACE_S)


def test_its_kind_is_never_what_it_says_itself(keys: ClaimKeys) -> None:
    assert (
        judge_keys.check(judge_keys.mint(replace(CLAIMS, kind="main"), claim_key(keys)), SECRETS, NOW).kind == "judge"
    )
    fleet = Signer({"new": "n" * 32})
    assert fleet.check(fleet.mint(replace(CLAIMS, kind="judge")), NOW).kind is None


@pytest.mark.parametrize(
    "changes",
    [{"session_id": "t.1"}, {"attempt": 2}, {"claim_id": "e-1a.2-0123456789abcdef"}],
    ids=["session", "attempt", "ticket"],
)
def test_a_ticket_s_key_signs_for_no_other_evaluation(keys: ClaimKeys, changes: dict[str, Any]) -> None:
    with pytest.raises(KeyRefusedError, match="forged"):
        judge_keys.check(judge_keys.mint(replace(CLAIMS, **changes), claim_key(keys)), SECRETS, NOW)


@pytest.mark.parametrize("claim_id", ["r-1a.1-0123456789abcdef", "o-0123456789abcdef", "e-0123456789abcdef", ""])
def test_no_run_s_claim_has_such_a_key(keys: ClaimKeys, claim_id: str) -> None:
    """Its calls would enter the run's tree."""
    for stage in Stage:
        key = judge_keys.mint(replace(CLAIMS, claim_id=claim_id), claim_key(keys, stage=stage))
        with pytest.raises(KeyRefusedError, match="forged"):
            judge_keys.check(key, SECRETS, NOW)


def test_other_secrets_and_broken_keys_are_refused(keys: ClaimKeys) -> None:
    key = judge_keys.mint(CLAIMS, claim_key(keys))
    with pytest.raises(KeyRefusedError, match="forged"):
        judge_keys.check(key, [b"x" * 32], NOW)
    for broken in (key[:-2] + ("AA" if key[-2:] != "AA" else "BB"), key.rpartition(".")[0] + ".", key + "x"):
        with pytest.raises(KeyRefusedError):
            judge_keys.check(broken, SECRETS, NOW)
    for stranger in ("", "polar-", "polar-abc", "\ud800", Signer({"new": "n" * 32}).mint(CLAIMS)):
        assert not judge_keys.is_one(stranger)


def test_the_signature_is_the_mac_of_no_fact(keys: ClaimKeys) -> None:
    secret = claim_key(keys)
    _, _, signed = judge_keys.mint(CLAIMS, secret).rpartition("-")
    message, _, _ = judge_keys.mint(CLAIMS, secret).rpartition(".")
    assert mac(secret, message.encode()).hex() not in signed
