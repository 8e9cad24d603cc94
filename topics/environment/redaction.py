"""Redaction: text that Polar keeps, logs or sends to a model has no session key and no secret of the fleet.

A session key is found by its form, so any session's key is replaced, and so is one that was cut off. Known spellings: with or without
its prefix, wrapped over lines (also as `\\n` in JSON, or as a string over several lines), with escaped separators (URL, JSON, HTML), and
base64. A secret of the fleet is found by its value, as it is, escaped or in base64: `cover` names the files that hold
them. Of a long one that is wrapped, at least half is replaced.

Time is linear in the text: a search for fixed strings comes first, and what is matched after an anchor is never scanned again.
Invariant: text without an anchor and without a secret is returned unchanged.
"""

from __future__ import annotations

import base64
import html
import json
import re
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from urllib.parse import quote

from topics.environment.settings import LOGINS, Settings

PREFIX = "sk-polar-"
"""Makes keys recognisable for redaction and for people."""
KEY_SHOWN = "[a session's key]"
"""Replacement for keys in stored text."""
SECRET_SHOWN = "[a secret of the fleet]"  # noqa: S105 - the replacement
SECRET_CHARACTERS = 12
"""Shorter secrets (a Kafka password of few letters) are not replaced: they could be parts of ordinary words."""
HALF_CHARACTERS = 16
"""Shorter halves of secrets are not replaced by themselves."""
LOOK_S = 1.0
"""Between two looks at the files of secrets."""

_PIECES = 2000
"""Most lines and escapes of one wrapped key."""
_HEADER = b"eyJhbGciOiJIUzI1NiIsImtpZCI6I"
"""First part of a key behind its prefix: base64 of `{"alg":"HS256","kid":"`."""
_PAYLOAD = b"eyJzZXNzaW9uX2lkIjoi"
"""Second part: base64 of `{"session_id":"`."""
_WRAP = (
    rb"""[ \t"',>|#*\\]{0,16}(?:(?<=[ "'])\+[ \t]{0,8})?=?"""
    rb"""(?:\r?\n|\\+r\\+n|\\+n|\\+u000[aA]|%0[aA]|&#(?:10|[xX][aA]);)(?:[ \t"',>|#*]|\\+["nt]){0,16}"""
)
"""The end of a line, perhaps with quotes, indentation or a mark of continuation around it."""
_DASH = rb"%2[dD]|\\+u002[dD]|&#0*45;|&#[xX]0*2[dD];|&hyphen;|&dash;|\\+-"
_DOT = rb"%2[eE]|\\+u002[eE]|&#0*46;|&#[xX]0*2[eE];|&period;|\\+\."
_LOW = rb"%5[fF]|\\+u005[fF]|&#0*95;|&#[xX]0*5[fF];|&lowbar;|\\+_"
_SPECIAL = re.compile(
    rb"(?P<plain>[A-Za-z0-9_./-]++)|(?=[%%\\&])(?:(?P<dash>%s)|(?P<dot>%s)|(?P<low>%s))|(?P<wrap>%s)"
    % (_DASH, _DOT, _LOW, _WRAP)
)
"""Escapes and line ends. `plain` are runs of characters that begin neither: a search that tries each of them is four times slower."""
_MEANING = {"dash": b"-", "dot": b".", "low": b"_", "wrap": b""}


def _in_base64(text: bytes) -> list[bytes]:
    """The characters that `text` surely has in base64, for each of its three positions."""
    found = []
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + text).rstrip(b"=")
        found.append(encoded[-(-before * 8 // 6) : (before + len(text)) * 8 // 6])
    return found


_BASE64 = {
    anchor: -(-before * 8 // 6) for text in (PREFIX.encode(), _HEADER) for before, anchor in enumerate(_in_base64(text))
}
"""Anchors in base64, each with the number of characters of its group that stand before it."""
_CLUES = (b"polar-", b"polar%2", b"polar\\", b"polar&", _HEADER, _PAYLOAD, *_BASE64)
"""Every text with a key has one of these."""
_RUN = re.compile(
    rb"(?P<text>sk(?:-|%(dash)s)polar(?:-|%(dash)s)|%(header)s|%(payload)s)"
    rb"(?:[A-Za-z0-9_.-]++|(?=[%%\\&])(?:%(dash)s|%(dot)s|%(low)s)|%(wrap)s){0,%(pieces)d}+"
    rb"|(?P<base64>%(base64)s)(?:[A-Za-z0-9+/_-]++|%(wrap)s){0,%(pieces)d}+={0,2}"
    % {
        b"dash": _DASH,
        b"dot": _DOT,
        b"low": _LOW,
        b"wrap": _WRAP,
        b"header": _HEADER,
        b"payload": _PAYLOAD,
        b"pieces": _PIECES,
        b"base64": b"|".join(_BASE64),
    }
)
"""An anchor, and all that could belong to its key."""
_WHOLE = re.compile(
    rb"(?:sk-polar-)?+(?:%(header)s[A-Za-z0-9_-]*+\.?+)?+%(payload)s[A-Za-z0-9_-]*+(?P<whole>\.[A-Za-z0-9_-]{43})?+"
    rb"|(?:sk-polar-)?+%(header)s[A-Za-z0-9_-]*+\.?+" % {b"header": _HEADER, b"payload": _PAYLOAD}
)
"""A key up to the end of its HS256 signature of 43 characters. What has no end also matches, so that it is scanned once."""
_PART = re.compile(
    rb"sk(?:-|%(dash)s)polar(?:-|%(dash)s)(?=[A-Za-z0-9_.-])|(?:%(header)s[A-Za-z0-9_-]{0,120}+(?:\.|%(dot)s))?%(payload)s"
    % {b"dash": _DASH, b"dot": _DOT, b"header": _HEADER, b"payload": _PAYLOAD}
)
"""The beginning of a key that was cut off."""
_KEYS = 20
"""A run of more keys is replaced as a whole, because hostile text would cost much time."""
_TAIL = re.compile(rb"(?:[A-Za-z0-9_.-]++|%s|%s|%s)*+" % (_DASH, _DOT, _LOW))
_BASE64_TAIL = re.compile(rb"[A-Za-z0-9+/_-]*+={0,2}")


def redacted(text: str) -> str:
    """`text` without keys and secrets, including other sessions' keys and truncated ones."""
    data = text.encode(errors="surrogatepass")
    found = redacted_bytes(data)
    return text if found is data else found.decode(errors="surrogatepass")


def redacted_bytes(data: bytes) -> bytes:
    """`data` without keys and secrets; JSON stays valid. Unchanged data is the same object."""
    if any(clue in data for clue in _CLUES):
        data = _RUN.sub(_without_keys, data)
    return _covered.without_secrets(data)


def cover(settings: Settings) -> None:
    """From now on this process also replaces the secrets that lie in the files of `settings`. They may change."""
    _covered.files = {
        settings.keys_path: _keys_in,
        settings.webhook_secret_path: _lines_in,
        settings.data / "control.token": _lines_in,
        **{file: _lines_in for file in (settings.control_token_file, settings.kafka_sasl_password_file) if file},
        **{engine.api_key_file: _lines_in for engine in settings.engines.values() if engine.api_key_file},
        **dict.fromkeys((settings.data / LOGINS).glob("*.password"), _lines_in),
    }
    _covered.values = [settings.kafka_sasl_password] if settings.kafka_sasl_password else []
    _covered.look()


def _without_keys(match: re.Match[bytes]) -> bytes:
    run = match[0]
    if run.count(b"polar") + run.count(_PAYLOAD) + run.count(_HEADER) > 3 * _KEYS:
        return KEY_SHOWN.encode()
    spans = _base64_spans(run, _BASE64[match["base64"]]) if match["base64"] else _text_spans(run)
    kept, at = [], 0
    for start, end in spans:
        kept += [run[at:start], KEY_SHOWN.encode()]
        at = end
    return b"".join([*kept, run[at:]])


def _text_spans(run: bytes) -> Iterator[tuple[int, int]]:
    """Where keys stand in a run that may be wrapped or escaped."""
    plain = _Plain(run)
    whole = {
        plain.place(found.start()): plain.end(found.end()) for found in _WHOLE.finditer(plain.text) if found["whole"]
    }
    starts = sorted({*whole, *(found.start() for found in _PART.finditer(run))})
    at = 0
    for start in starts:
        if start >= at:
            at = _tail(_TAIL, run, whole.get(start, start))
            yield start, at


def _base64_spans(run: bytes, before: int) -> Iterator[tuple[int, int]]:
    """Where the key stands that a run of base64 begins with."""
    plain = _Plain(run)
    text = b"A" * before + plain.text.rstrip(b"=").translate(bytes.maketrans(b"-_", b"+/"))
    decoded = base64.b64decode((text + b"AAA")[: (len(text) + 3) // 4 * 4])
    if found := next((found for found in _WHOLE.finditer(decoded) if found["whole"]), None):
        yield 0, plain.end(min(-(-found.end() * 8 // 6) - before, len(plain.text)))
    elif b"polar-" in decoded[:12] or _PAYLOAD in decoded:
        yield 0, _tail(_BASE64_TAIL, run, 0)


def _tail(pattern: re.Pattern[bytes], run: bytes, at: int) -> int:
    found = pattern.match(run, at)
    return at if found is None else found.end()


class _Plain:
    """A run without its line ends and with its escapes replaced, and the places of its characters in the run."""

    def __init__(self, run: bytes) -> None:
        pieces: list[tuple[bytes, int, int]] = []
        at = 0
        for found in _SPECIAL.finditer(run):
            if found.lastgroup == "plain":
                continue
            start, end = found.span()
            if start > at:
                pieces.append((run[at:start], at, start))
            if meaning := _MEANING[found.lastgroup or "wrap"]:
                pieces.append((meaning, start, end))
            at = end
        if at < len(run):
            pieces.append((run[at:], at, len(run)))
        self._pieces = pieces
        self._starts = list(accumulate((len(text) for text, _, _ in self._pieces), initial=0))
        self.text = b"".join(text for text, _, _ in self._pieces)

    def place(self, at: int) -> int:
        """The place in the run where character `at` begins."""
        index = bisect_right(self._starts, at) - 1
        return self._pieces[index][1] + at - self._starts[index]

    def end(self, at: int) -> int:
        """The place in the run where the character before `at` ends."""
        index = bisect_right(self._starts, at - 1) - 1
        text, start, end = self._pieces[index]
        return end if at == self._starts[index] + len(text) else start + at - self._starts[index]


class _Covered:
    """The fleet's secrets that lie on this host, as patterns."""

    def __init__(self) -> None:
        self.files: dict[Path, Callable[[str], list[str]]] = {}
        self.values: list[str] = []
        self._found: set[str] = set()
        self._clues: list[bytes] = []
        self._pattern: re.Pattern[bytes] | None = None
        self._looked_at = 0.0

    def without_secrets(self, data: bytes) -> bytes:
        if self.files and time.monotonic() - self._looked_at > LOOK_S:
            self.look()
        pattern = self._pattern
        if pattern is None or not any(clue in data for clue in self._clues):
            return data
        return pattern.sub(SECRET_SHOWN.encode(), data)

    def look(self) -> None:
        """Read the files. One that can't be read now keeps no secret from being replaced that another one holds."""
        self._looked_at = time.monotonic()
        found = set(self.values)
        for file, read in self.files.items():
            with suppress(OSError, ValueError):
                found.update(read(file.read_text()))
        found = {secret for secret in found if len(secret) >= SECRET_CHARACTERS}
        if found == self._found:
            return
        spelled = {part for secret in found for form in _spellings(secret) for part in (form, *_halves(form))}
        # The longest first: a spelling may contain another one.
        ordered = sorted(spelled, key=len, reverse=True)
        self._clues = [form for form in ordered if not any(other in form for other in ordered if other != form)]
        self._pattern = re.compile(b"|".join(map(re.escape, ordered))) if ordered else None
        self._found = found


_covered = _Covered()


def _spellings(secret: str) -> list[bytes]:
    """A secret as it is, in JSON, in a URL, in HTML and in base64."""
    escaped = json.dumps(secret)[1:-1]
    texts = (secret, escaped, escaped.replace("/", "\\/"), quote(secret, safe=""), html.escape(secret))
    return [*(text.encode() for text in texts), *_in_base64(secret.encode())]


def _halves(form: bytes) -> list[bytes]:
    """Both halves of a long secret: one of them is whole if the secret is wrapped over two lines."""
    middle = len(form) // 2
    return [form[:middle], form[middle:]] if middle >= HALF_CHARACTERS else []


def _keys_in(text: str) -> list[str]:
    return [str(value) for value in json.loads(text).values()]


def _lines_in(text: str) -> list[str]:
    return [line.strip().removeprefix("whsec_") for line in text.splitlines()]
