"""Session keys, and the fleet's secrets in the keys file. A key is a signed token with namespace, session, attempt, claim and sampling.

The run worker mints a key at the grant, or for an opened session the proxy that got the request; every proxy verifies it without a lookup.
The fleet's secret signs it (HS256; the `kid` header names the secret). `CloseKey` ends a key (protocol 17); the expiry, a day past the
run's budget, is a backstop. `claim_keys` derives other keys from the same secrets, and `judge_keys` has the keys of evaluations.

Secrets are in a keys file, JSON `{key_id: secret}`: the last one signs, all verify. The file may change while processes run (`Keyring`),
so secrets rotate without a gap: add a secret on every host, let it sign, remove the old one.
"""

from __future__ import annotations

import json
import secrets
import time
from pathlib import Path
from typing import Any

import jwt
import msgspec
import structlog

from topics.environment import private_files
from topics.environment.redaction import PREFIX
from topics.types.errors import InputError

ALGORITHM = "HS256"
CLOCK_GRACE_S = 300
"""Tolerated difference between hosts' clocks."""
BACKSTOP_S = 24 * 3600
LOOK_S = 1.0
"""Between two looks at a keys file; a retired secret stays valid for so long."""

log = structlog.get_logger()

CONCURRENT_CALLS = 64
"""Calls at a time, unless a task sets another limit."""


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
    """Limits of a session's model use."""

    calls: int | None = None
    """Answered calls; None: any number."""
    tokens: int | None = None
    """Sampled tokens; None: any number."""
    concurrent_calls: int = CONCURRENT_CALLS


class KeyClaims(msgspec.Struct, frozen=True, omit_defaults=True):
    """Contents of a key."""

    session_id: str
    attempt: int
    claim_id: str
    expires_at: int
    """Unix seconds."""
    issued_at: int
    """Unix seconds, from `issued_at()`."""
    namespace: str
    """The only one whose proxies honour the key: they alone see its `CloseKey`."""
    mode: str = "train"
    sampling: dict[str, float | int] = {}
    """Imposed on every call, by canonical name."""
    limits: Limits = Limits()
    kind: str | None = None
    """Kind of all calls with this key, set by whoever verifies it: `judge` for an evaluation's. None: rules find each call's kind."""
    log_partition: int = 0
    log_offset: int = 0
    """Position of this attempt's `Open` in `polar.completions`."""


class KeyRefusedError(ValueError):
    """An invalid key; `reason` is `unknown`, `foreign` (signed with a secret that isn't among these), `forged` or `expired`."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the API key is {reason}")


class Signer:
    """Mints and verifies keys with the secrets of a keys file."""

    def __init__(self, secrets_by_id: dict[str, str]) -> None:
        if not secrets_by_id:
            raise ValueError("a keys file holds at least one signing key")
        self._secrets = secrets_by_id
        self._signing_id = list(secrets_by_id)[-1]
        self.secrets = [secret.encode() for secret in secrets_by_id.values()]
        """In order: the last one signs."""

    @classmethod
    def from_file(cls, path: Path) -> Signer:
        """Raises FileNotFoundError or ValueError, both with the path."""
        return cls(read_keys_file(path))

    def mint(self, claims: KeyClaims) -> str:
        """The API key for a harness."""
        payload: dict[str, Any] = msgspec.to_builtins(claims)
        token = jwt.encode(
            payload, self._secrets[self._signing_id], algorithm=ALGORITHM, headers={"kid": self._signing_id}
        )
        return PREFIX + token

    def check(self, key: str, now_s: float) -> KeyClaims:
        """The claims of a key at Unix time `now_s`. Raises KeyRefusedError."""
        if not key.startswith(PREFIX):
            # Redaction knows keys by their prefix.
            raise KeyRefusedError("unknown")
        token = key.removeprefix(PREFIX)
        try:
            key_id = jwt.get_unverified_header(token)["kid"]
            if key_id not in self._secrets:
                raise KeyRefusedError("foreign")
            payload = jwt.decode(token, self._secrets[key_id], algorithms=[ALGORITHM], options={"verify_exp": False})
            claims = msgspec.structs.replace(msgspec.convert(payload, KeyClaims), kind=None)
        except jwt.InvalidSignatureError:
            raise KeyRefusedError("forged") from None
        except (jwt.InvalidTokenError, KeyError, msgspec.ValidationError, UnicodeEncodeError):
            raise KeyRefusedError("unknown") from None
        if now_s > claims.expires_at + CLOCK_GRACE_S:
            raise KeyRefusedError("expired")
        return claims


class Keyring:
    """The current secrets of a keys file. If the file becomes unreadable, the last secrets stay and a warning is logged."""

    def __init__(self, path: Path) -> None:
        """Raises FileNotFoundError or ValueError, both with the path."""
        self._path = path
        self._read_as = _version(path)
        self._signer = Signer.from_file(path)
        self._looked_at = time.monotonic()
        self.generation = 0
        """Grows when the secrets change; results from earlier secrets are void."""

    def mint(self, claims: KeyClaims) -> str:
        """A key, signed with the current secret."""
        self.refresh()
        return self._signer.mint(claims)

    def check(self, key: str, now_s: float) -> KeyClaims:
        """The claims of a key at Unix time `now_s`. Raises KeyRefusedError."""
        self.refresh()
        try:
            return self._signer.check(key, now_s)
        except KeyRefusedError as error:
            # The key may be signed with a secret that is newer than our last look.
            if error.reason == "expired" or not self.refresh(at_once=True):
                raise
            return self._signer.check(key, now_s)

    def secrets(self) -> list[bytes]:
        """The current secrets, in order: the last one signs."""
        self.refresh()
        return self._signer.secrets

    def refresh(self, *, at_once: bool = False) -> bool:
        """Read the file again if it changed; True if the secrets changed."""
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


def issued_at(granted_ms: int) -> int:
    """When a key was granted, in Unix seconds: by this host's clock or that of the Grant's record, whichever is behind.

    A proxy serves a key from memory if it is newer than what the proxy knows (protocol 18): a clock that runs ahead must not make it new.
    """
    return min(int(time.time()), granted_ms // 1000)


def _version(path: Path) -> tuple[int, int, int]:
    """Values that change with a file's content, or when the file or a link to it is replaced."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


def environment(proxy_url: str, key: str) -> dict[str, str]:
    """Variables with the proxy's URL and the key, in the form that each provider's client expects.

    `proxy_url` has no trailing slash or `/v1`.
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
    """Make a keys file with one new secret, unless the file exists."""
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
    """Add a secret that verifies but doesn't sign yet; return its id. Raises as `read_keys_file` does, and OSError."""
    key_id, secret = _new_secret()
    private_files.replace(path, json.dumps({key_id: secret} | read_keys_file(path)))
    return key_id


def use_key(path: Path, key_id: str) -> None:
    """Let this secret sign from now on. Raises InputError for an unknown id, and as `add_key` does."""
    found = _with_key(path, key_id)
    secret = found.pop(key_id)
    private_files.replace(path, json.dumps(found | {key_id: secret}))


def retire_key(path: Path, key_id: str) -> None:
    """Remove a secret, which invalidates keys that it signed. Raises InputError for the signing secret, and as `use_key` does."""
    found = _with_key(path, key_id)
    if key_id == list(found)[-1]:
        raise InputError("key", key_id, "it signs: let another one sign first (`polar keys use`)")
    del found[key_id]
    private_files.replace(path, json.dumps(found))


def _with_key(path: Path, key_id: str) -> dict[str, str]:
    found = read_keys_file(path)
    if key_id not in found:
        raise InputError("key", key_id, f"no such key; there are: {', '.join(found)}")
    return found


def _new_secret() -> tuple[str, str]:
    return secrets.token_hex(4), secrets.token_urlsafe(32)
