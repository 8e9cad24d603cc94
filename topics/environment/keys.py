"""Session keys: signed tokens that say which session, attempt and claim a call belongs to, and how it may sample.

Minted at the grant (by the run worker; for an opened session by the proxy that was asked), checked by every proxy without a look-up.
Signed with the fleet's secret (HS256, the `kid` header names it). The expiry is a backstop, a day past the run's budget; `CloseKey` ends
a key (protocol 17).

The secrets lie in a keys file, JSON `{key_id: secret}`, of which the last signs and all check. It may change while processes run
(`Keyring`), so that secrets rotate without a gap: one is added that checks, on every host; then it signs; then the old one goes.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from pathlib import Path
from typing import Any

import jwt
import msgspec
import structlog

from topics.environment import private_files
from topics.types.errors import InputError

ALGORITHM = "HS256"
PREFIX = "sk-polar-"
"""So that a key is recognised for what it is, in logs' redaction and by people."""
KEY_SHOWN = "[a session's key]"
"""What stands for a key in whatever is kept."""
CLOCK_GRACE_S = 300
BACKSTOP_S = 24 * 3600
LOOK_S = 1.0
"""How often a keys file is looked at: so long may a retired secret still be good."""

_KEY = re.compile(rf"{re.escape(PREFIX)}[A-Za-z0-9_.-]+")
_KEY_BYTES = re.compile(_KEY.pattern.encode())

log = structlog.get_logger()

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


class KeyRefusedError(ValueError):
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
        return cls(read_keys_file(path))

    def mint(self, claims: KeyClaims) -> str:
        """The API key that a harness is given."""
        payload: dict[str, Any] = msgspec.to_builtins(claims)
        token = jwt.encode(
            payload, self._secrets[self._signing_id], algorithm=ALGORITHM, headers={"kid": self._signing_id}
        )
        return PREFIX + token

    def check(self, key: str, now_s: float) -> KeyClaims:
        """The claims of a key at Unix time `now_s`. Raises KeyRefusedError."""
        token = key.removeprefix(PREFIX)
        try:
            key_id = jwt.get_unverified_header(token).get("kid", "")
            payload = jwt.decode(token, self._secrets[key_id], algorithms=[ALGORITHM], options={"verify_exp": False})
            claims = msgspec.convert(payload, KeyClaims)
        except jwt.InvalidSignatureError:
            raise KeyRefusedError("forged") from None
        except (jwt.InvalidTokenError, KeyError, msgspec.ValidationError, UnicodeEncodeError):
            raise KeyRefusedError("unknown") from None
        if now_s > claims.expires_at + CLOCK_GRACE_S:
            raise KeyRefusedError("expired")
        return claims


class Keyring:
    """The secrets of a keys file as it is now. One that can't be read any more changes nothing, and is complained of."""

    def __init__(self, path: Path) -> None:
        """Raises FileNotFoundError or ValueError, both with the path."""
        self._path = path
        self._read_as = _version(path)
        self._signer = Signer.from_file(path)
        self._looked_at = time.monotonic()
        self.generation = 0
        """Raised when the secrets change: what was concluded from them before is void."""

    def mint(self, claims: KeyClaims) -> str:
        """A key of the secret that signs now."""
        self.refresh()
        return self._signer.mint(claims)

    def check(self, key: str, now_s: float) -> KeyClaims:
        """The claims of a key at Unix time `now_s`. Raises KeyRefusedError."""
        self.refresh()
        try:
            return self._signer.check(key, now_s)
        except KeyRefusedError as error:
            # Signed a moment ago, perhaps, by a secret that is newer than our last look.
            if error.reason == "expired" or not self.refresh(at_once=True):
                raise
            return self._signer.check(key, now_s)

    def refresh(self, *, at_once: bool = False) -> bool:
        """Read the file again if it has changed; True where the secrets did."""
        now = time.monotonic()
        if not at_once and now - self._looked_at < LOOK_S:
            return False
        self._looked_at = now
        try:
            version = _version(self._path)
            if version == self._read_as:
                return False
            self._signer = Signer.from_file(self._path)
        except (OSError, ValueError) as error:
            log.warning("keys file not read", action="keys.unreadable", why=str(error))
            return False
        self._read_as = version
        self.generation += 1
        return True


def _version(path: Path) -> tuple[int, int, int]:
    """What changes with a file's content, also where it is replaced or a link to it is."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


def redacted(text: str) -> str:
    """`text` without keys: those of other sessions and the rest of one that was cut off, too."""
    return _KEY.sub(KEY_SHOWN, text)


def redacted_bytes(data: bytes) -> bytes:
    """The same of bytes; also of JSON, which stays what it is."""
    # Asked first, since bodies of many megabytes pass here: it is 10 times as fast.
    return _KEY_BYTES.sub(KEY_SHOWN.encode(), data) if PREFIX.encode() in data else data


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
    private_files.create(path, json.dumps(dict([_new_secret()])))


def read_keys_file(path: Path) -> dict[str, str]:
    """Secrets by key id, in order. Raises FileNotFoundError or ValueError, both with the path."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=dict[str, str])
    except msgspec.DecodeError as error:
        raise ValueError(f"{path}: not a keys file ({error})") from error
    if not found:
        raise ValueError(f"{path}: a keys file holds at least one signing key")
    return found


def add_key(path: Path) -> str:
    """Add a secret that checks and doesn't sign yet; its id. Raises as `read_keys_file` does, and OSError."""
    key_id, secret = _new_secret()
    _write(path, {key_id: secret} | read_keys_file(path))
    return key_id


def use_key(path: Path, key_id: str) -> None:
    """Sign with this secret from now on. Raises InputError where it isn't there; else as `add_key`."""
    found = read_keys_file(path)
    _require(found, key_id)
    secret = found.pop(key_id)
    _write(path, found | {key_id: secret})


def retire_key(path: Path, key_id: str) -> None:
    """Forget a secret: keys that it signed are refused. Raises InputError for the one that signs; else as `use_key`."""
    found = read_keys_file(path)
    _require(found, key_id)
    if key_id == list(found)[-1]:
        raise InputError("key", key_id, "it signs: let another one sign first (`polar keys use`)")
    del found[key_id]
    _write(path, found)


def _require(found: dict[str, str], key_id: str) -> None:
    if key_id not in found:
        raise InputError("key", key_id, f"no such key; there are: {', '.join(found)}")


def _new_secret() -> tuple[str, str]:
    return secrets.token_hex(4), secrets.token_urlsafe(32)


def _write(path: Path, found: dict[str, str]) -> None:
    private_files.replace(path, json.dumps(found))
