"""Session keys: who may mint them, and what is refused."""

import json
import stat
from pathlib import Path

import jwt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from topics.environment.keys import (
    CLOCK_GRACE_S,
    KeyClaims,
    KeyRefusedError,
    Keyring,
    Signer,
    add_key,
    ensure_keys_file,
    issued_at,
    read_keys_file,
    retire_key,
    use_key,
)
from topics.environment.redaction import KEY_SHOWN, PREFIX, redacted, redacted_bytes
from topics.types.errors import InputError

CLAIMS = KeyClaims(
    "t.0",
    1,
    "claim",
    expires_at=1000,
    issued_at=10,
    namespace="polar",
    sampling={"temperature": 1.0, "top_k": -1},
    log_partition=3,
    log_offset=42,
)
SECRETS = {"old": "o" * 32, "new": "n" * 32}


def test_a_key_says_what_was_minted() -> None:
    key = Signer(SECRETS).mint(CLAIMS)
    assert key.startswith(PREFIX)
    assert Signer(SECRETS).check(key, now_s=500) == CLAIMS


def test_the_newest_secret_signs_and_the_older_ones_still_check() -> None:
    key = Signer(SECRETS).mint(CLAIMS)
    assert jwt.get_unverified_header(key.removeprefix(PREFIX))["kid"] == "new"
    older = Signer({"old": SECRETS["old"]}).mint(CLAIMS)
    assert Signer(SECRETS).check(older, now_s=500) == CLAIMS


def test_a_key_expires_after_the_grace_for_clocks() -> None:
    key = Signer(SECRETS).mint(CLAIMS)
    assert Signer(SECRETS).check(key, now_s=1000 + CLOCK_GRACE_S)
    with pytest.raises(KeyRefusedError, match="expired"):
        Signer(SECRETS).check(key, now_s=1001 + CLOCK_GRACE_S)


def token(algorithm: str, secret: str) -> str:
    """A JSON web token that isn't a session key."""
    return PREFIX + jwt.encode({"session_id": "t.0"}, secret, algorithm=algorithm, headers={"kid": "new"})


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        pytest.param(Signer({"theirs": "t" * 32}).mint(CLAIMS), "foreign", id="another fleet's"),
        pytest.param(Signer({"new": "x" * 32}).mint(CLAIMS), "forged", id="another secret"),
        pytest.param(token("none", ""), "unknown", id="no signature"),
        pytest.param(token("HS256", SECRETS["new"]), "unknown", id="signed, but no key"),
        pytest.param(Signer(SECRETS).mint(CLAIMS).removeprefix(PREFIX), "unknown", id="without our prefix"),
    ],
)
def test_a_token_that_no_signer_of_ours_minted_is_refused(key: str, reason: str) -> None:
    with pytest.raises(KeyRefusedError, match=reason):
        Signer(SECRETS).check(key, now_s=0)


@given(st.text(st.characters()) | st.binary().map(lambda data: PREFIX + data.hex()))
@example("\udcff")  # a header's byte that is no UTF-8
def test_rubbish_is_refused_and_never_raises_anything_else(key: str) -> None:
    with pytest.raises(KeyRefusedError):
        Signer(SECRETS).check(key, now_s=0)


@given(st.integers(len(PREFIX), 400), st.characters(categories=["L", "N"]))
def test_a_changed_key_is_refused(at: int, letter: str) -> None:
    key = Signer(SECRETS).mint(CLAIMS)
    body = key[: key.rindex(".")]
    changed = body[: at % len(body)] + letter + body[at % len(body) + 1 :] + key[len(body) :]
    if changed.removeprefix(PREFIX) != key.removeprefix(PREFIX) and changed.startswith(PREFIX):
        with pytest.raises(KeyRefusedError):
            Signer(SECRETS).check(changed, now_s=0)


def test_a_keys_file_is_made_once_and_readable_to_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "data" / "keys.json"
    ensure_keys_file(path)
    first = path.read_text()
    ensure_keys_file(path)
    assert path.read_text() == first
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Signer.from_file(path).check(Signer.from_file(path).mint(CLAIMS), now_s=0) == CLAIMS


def test_two_fleets_have_different_secrets(tmp_path: Path) -> None:
    for name in ("a", "b"):
        ensure_keys_file(tmp_path / name)
    assert json.loads((tmp_path / "a").read_text()) != json.loads((tmp_path / "b").read_text())


def test_a_bad_keys_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    with pytest.raises(FileNotFoundError, match=r"keys\.json"):
        Signer.from_file(path)
    path.write_text("not json")
    with pytest.raises(ValueError, match=r"keys\.json: not a keys file"):
        Signer.from_file(path)
    path.write_text("{}")
    with pytest.raises(ValueError, match="at least one"):
        Signer.from_file(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A keys file."""
    ensure_keys_file(tmp_path / "keys.json")
    return tmp_path / "keys.json"


def minted(path: Path) -> str:
    return Signer.from_file(path).mint(CLAIMS)


def signing(path: Path) -> str:
    return str(jwt.get_unverified_header(minted(path).removeprefix(PREFIX))["kid"])


def test_a_secret_checks_before_it_signs_and_after_another_does(path: Path) -> None:
    old, before = signing(path), minted(path)
    added = add_key(path)
    assert signing(path) == old
    assert list(read_keys_file(path)) == [added, old]
    use_key(path, added)
    assert signing(path) == added
    assert Signer.from_file(path).check(before, now_s=0) == CLAIMS
    retire_key(path, old)
    with pytest.raises(KeyRefusedError, match="foreign"):
        Signer.from_file(path).check(before, now_s=0)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_the_secret_that_signs_is_not_retired_and_an_unknown_one_named(path: Path) -> None:
    only = signing(path)
    with pytest.raises(InputError, match="it signs"):
        retire_key(path, only)
    with pytest.raises(InputError, match=f"no such key; there are: {only}"):
        use_key(path, "typo")


def test_a_keyring_takes_a_key_of_a_secret_that_came_a_moment_ago(path: Path) -> None:
    keyring = Keyring(path)
    use_key(path, add_key(path))
    assert keyring.check(minted(path), now_s=0) == CLAIMS
    assert keyring.generation == 1


def test_a_keyring_whose_file_is_damaged_or_gone_goes_on_with_what_it_knows(path: Path) -> None:
    keyring, key = Keyring(path), minted(path)
    for damage in (lambda: path.write_text("{"), lambda: path.write_text("{}"), path.unlink):
        damage()
        assert not keyring.refresh(at_once=True)
        assert keyring.check(key, now_s=0) == CLAIMS


AROUND = st.text(st.characters(exclude_characters="abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"))


@given(AROUND, AROUND, st.from_regex(r"[A-Za-z0-9_-]{1,20}", fullmatch=True))
def test_a_minted_key_is_taken_out_whole_wherever_it_stands(before: str, after: str, name: str) -> None:
    key = Signer({"k": "s" * 32}).mint(
        KeyClaims(f"{name}.0", 1, "r-1", expires_at=2**31, issued_at=0, namespace="polar")
    )
    assert redacted(before + key + after) == before + KEY_SHOWN + after
    assert json.loads(redacted_bytes(json.dumps([before + key + after]).encode())) == [before + KEY_SHOWN + after]


@pytest.mark.parametrize("ahead_s", [-3600, 3600])
def test_a_key_is_as_old_as_the_clock_that_is_behind_says(monkeypatch: pytest.MonkeyPatch, ahead_s: int) -> None:
    monkeypatch.setattr("topics.environment.keys.time.time", lambda: 10_000.0 + ahead_s)
    assert issued_at(10_000_500) == min(10_000, 10_000 + ahead_s)
