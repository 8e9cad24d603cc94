"""Redaction: every spelling of a key and of the fleet's secrets is found, ordinary text is unchanged, and time is linear."""

import base64
import html
import json
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.environment import redaction
from topics.environment.keys import KeyClaims, Signer, add_key, ensure_keys_file, read_keys_file
from topics.environment.redaction import KEY_SHOWN, PREFIX, SECRET_SHOWN, redacted, redacted_bytes
from topics.environment.settings import EngineSettings, Settings

CLAIMS = KeyClaims("fix-1.0", 1, "c-1", expires_at=2**31, issued_at=0, namespace="polar", sampling={"temperature": 1.0})
KEY = Signer({"0123abcd": "s" * 43}).mint(CLAIMS)
JWT = KEY.removeprefix(PREFIX)


def wrapped(text: str, width: int, separator: str) -> str:
    return separator.join(textwrap.wrap(text, width, break_on_hyphens=False))


def percent(text: str) -> str:
    return "".join(c if c.isalnum() else f"%{ord(c):02x}" for c in text)


def entities(text: str) -> str:
    return "".join(c if c.isalnum() else f"&#{ord(c)};" for c in text)


def unicode_escapes(text: str) -> str:
    return "".join(c if c.isalnum() else f"\\u{ord(c):04x}" for c in text)


def in_base64(text: str, before: str = "") -> str:
    return base64.b64encode(f"{before}{text}".encode()).decode()


SPELLINGS = {
    "with prefix": KEY,
    "bare": JWT,
    "without its first part": JWT.partition(".")[2],
    "wrapped at 64": wrapped(KEY, 64, "\n"),
    "wrapped at 76": wrapped(KEY, 76, "\r\n"),
    "wrapped in the prefix": wrapped("API_KEY=" + "x" * 52 + "=" + KEY, 64, "\n").partition("=x")[2],
    "bare, wrapped": wrapped(JWT, 64, "\n"),
    "wrapped in JSON": wrapped(KEY, 64, "\\n"),
    "wrapped in JSON in JSON": json.dumps(json.dumps(wrapped(KEY, 64, "\n"))),
    "lines of a string in a program": wrapped(KEY, 60, '"\n    "'),
    "strings added in a program": wrapped(KEY, 60, '" +\n    "'),
    "quoted-printable": wrapped(KEY, 75, "=\n"),
    "continued lines of a shell": wrapped(KEY, 70, "\\\n"),
    "in a URL": percent(KEY),
    "bare in a URL": percent(JWT),
    "in HTML": entities(KEY),
    "in JSON": unicode_escapes(KEY),
    "in Markdown": KEY.replace("_", "\\_").replace("-", "\\-"),
    "base64": in_base64(KEY),
    "base64 behind one character": in_base64(KEY, "="),
    "base64 behind two": in_base64(KEY, "K="),
    "base64, wrapped": wrapped(in_base64(KEY, "OPENAI_API_KEY="), 76, "\n"),
    "bare, base64": in_base64(JWT, "bearer "),
    "for a URL, base64": base64.urlsafe_b64encode(KEY.encode()).decode(),
}


@pytest.mark.parametrize("spelled", SPELLINGS.values(), ids=SPELLINGS)
def test_a_key_is_found_in_each_of_its_spellings(spelled: str) -> None:
    """No part of 16 characters stays, and what stands around it does."""
    kept = redacted(f"first\n{spelled}\nPATH=/usr/bin\nlast line")
    assert kept.startswith("first\n"), kept
    assert kept.endswith("\nPATH=/usr/bin\nlast line"), kept
    assert KEY_SHOWN in kept
    left = kept.replace("\n", "")
    secret = JWT.partition(".")[2] if "base64" not in kept else spelled
    assert not any(secret[i : i + 16] in left for i in range(len(secret) - 16)), kept
    assert not any(spelled[i : i + 40] in kept for i in range(60, len(spelled) - 40)), kept


@pytest.mark.parametrize("length", [1, 30, len(KEY) - 50, len(KEY) - 44, len(KEY) - 43, len(KEY) - 1])
def test_a_key_without_its_end_is_found(length: int) -> None:
    assert redacted(f"a {PREFIX}{JWT[:length]}\nand\nmore") == f"a {KEY_SHOWN}\nand\nmore"


def test_keys_behind_each_other_are_all_found() -> None:
    assert redacted("\n".join([KEY, JWT, PREFIX + "x", KEY, "end"])) == "\n".join([KEY_SHOWN] * 4 + ["end"])
    assert (
        redacted(f"{wrapped(KEY, 64, chr(10))}\n{wrapped(KEY, 76, chr(10))}\nend") == f"{KEY_SHOWN}\n{KEY_SHOWN}\nend"
    )


def test_tokens_of_others_stay() -> None:
    """Ordinary work with JSON web tokens is not changed."""
    head = base64.urlsafe_b64encode(b'{"alg":"HS256","kid":"a","typ":"JWT"}').decode().rstrip("=")
    body = base64.urlsafe_b64encode(b'{"sub":"1234567890","name":"John Doe"}').decode().rstrip("=")
    text = f"{head}.{body}.{'s' * 43} and {in_base64(f'{head}.{body}.' + 's' * 43)}"
    assert redacted(text) == text


@given(
    st.text()
    | st.lists(st.sampled_from(["sk", "-", "polar", "eyJ", ".", "\n", "\\n", " ", "abc", "polar-"])).map("".join)
)
def test_clean_text_is_unchanged(text: str) -> None:
    if PREFIX not in text:
        assert redacted(text) == text


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    """Settings with a secret of each kind, which the process covers."""
    ensure_keys_file(tmp_path / "keys.json")
    add_key(tmp_path / "keys.json")
    (tmp_path / "control.token").write_text("the-control-token-1\n")
    (tmp_path / "webhook.secret").write_text("# old\nwhsec_" + in_base64("w" * 30 + "??>>") + "\n")
    (tmp_path / "password").write_text('kafka\'s "pass/word" & <more>\n')
    (tmp_path / "engine").write_text("engine-api-key-1")
    (tmp_path / "logins").mkdir()
    (tmp_path / "logins" / "deciding.password").write_text("password-of-another-role")
    engines = {"a": EngineSettings(urls=("http://localhost",), api_key_file=tmp_path / "engine")}
    found = Settings(data=tmp_path, kafka_sasl_password_file=tmp_path / "password", engines=engines)
    redaction.cover(found)
    yield found
    redaction.cover(Settings(data=tmp_path / "none"))


def secrets_of(settings: Settings) -> list[str]:
    files = ("control.token", "password", "engine", "logins/deciding.password")
    webhook = settings.webhook_secret_path.read_text().split("whsec_")[1].strip()
    return [
        *read_keys_file(settings.keys_path).values(),
        webhook,
        *((settings.data / f).read_text().strip() for f in files),
    ]


FORMS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "JSON": lambda text: json.dumps(text)[1:-1],
    "URL": lambda text: quote(text, safe=""),
    "HTML": html.escape,
    "base64": lambda text: in_base64(text, "x"),
}


@pytest.mark.parametrize("spell", FORMS.values(), ids=FORMS)
def test_each_secret_of_the_fleet_is_found_in_each_spelling(settings: Settings, spell: Callable[[str], str]) -> None:
    for secret in secrets_of(settings):
        kept = redacted(f"before {spell(secret)} after")
        assert SECRET_SHOWN in kept, (secret, kept)
        assert secret not in kept
        assert len(kept) <= len(f"before {SECRET_SHOWN} after") + 6, kept  # base64: what it shares with its neighbours


def test_a_printed_keys_file_stays_json(settings: Settings) -> None:
    printed = json.loads(redacted_bytes(settings.keys_path.read_bytes()))
    assert set(printed.values()) == {SECRET_SHOWN}


def test_a_secret_that_is_new_is_found(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "LOOK_S", 0.0)
    add_key(settings.keys_path)
    assert set(json.loads(redacted(settings.keys_path.read_text())).values()) == {SECRET_SHOWN}
    settings.keys_path.unlink()
    assert redacted("the-control-token-1") == SECRET_SHOWN


def test_the_prefix_alone_is_a_word() -> None:
    assert redacted("only `sk-polar-…` is accepted") == "only `sk-polar-…` is accepted"


def test_a_short_password_changes_no_words(settings: Settings) -> None:
    (settings.data / "password").write_text("kafka")
    redaction.cover(settings)
    assert redacted("a kafka topic") == "a kafka topic"


def test_of_a_wrapped_secret_half_is_replaced(settings: Settings) -> None:
    for secret in read_keys_file(settings.keys_path).values():
        assert secret[22:] not in redacted(f"{secret[:9]}\n{secret[9:]}")
        assert secret[:21] not in redacted(f"{secret[:30]}\n{secret[30:]}")


HOSTILE = {
    "prefixes": PREFIX,
    "prefixes on lines": "sk-polar-eyJ\n",
    "headers": "eyJhbGciOiJIUzI1NiIsImtpZCI6I",
    "payloads on lines": "eyJzZXNzaW9uX2lkIjoi\n",
    "dots": "sk-polar-eyJhbGciOiJIUzI1NiIsImtpZCI6Ia.eyJzZXNzaW9uX2lkIjoi.",
    "a word a line": "polar-word\n",
    "backslashes": "sk-polar-a" + "\\" * 1000,
    "blanks": "sk-polar-a" + " " * 1000,
    "base64": in_base64(PREFIX * 3) + "\n",
    "keys": wrapped(KEY, 64, "\n") + "\n",
    "empty lines": "sk-polar-" + "\n" * 1000,
    "escaped prefixes": "\nsk%2dpolar%2d",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_costs_linear_time(text: str) -> None:
    """A megabyte needs 0.7 s of processor time at most; a quadratic search would need hours."""
    data = (text * (1_000_000 // len(text))).encode()
    before = time.process_time()
    redacted_bytes(data)
    assert time.process_time() - before < 10
