"""The text of token ids, from the proxy's control API, which asks the engine: a tokenizer is nothing that this machine must have.

`POST {control_url}/v1/detokenize {token_ids: [[int]]} -> {texts: [str]}`, behind the control token. It is a convenience: whatever goes
wrong comes back as `NoText` with the reason, and ids are shown instead.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from http.client import HTTPException

import msgspec

from topics.environment.settings import Settings
from topics.types.errors import NotReady
from topics.types.tokens import Ids

BATCH = 32_768
"""Tokens a request, about 200 kB of JSON."""
ANSWER_BYTES = 64 * 1024 * 1024
SAID_BYTES = 4096
"""Of an error's body."""
DEADLINE_S = 15.0


class NoText(Exception):  # noqa: N818 - named for what is so
    """The ids can't be told as text; the message says why, and what to do."""


class _Texts(msgspec.Struct):
    texts: list[str]


class _Error(msgspec.Struct):
    message: str


class _Refused(msgspec.Struct):
    error: _Error


def detokenize(settings: Settings, sequences: Sequence[Ids]) -> list[str]:
    """A text for each sequence of ids. Raises NoText."""
    if settings.control_url is None:
        raise NoText("POLAR_CONTROL_URL isn't set")
    headers = {"Content-Type": "application/json", **_authorization(settings)}
    url = f"{settings.control_url.rstrip('/')}/v1/detokenize"
    texts: list[str] = []
    for batch in _batches(sequences):
        texts += _asked(url, headers, batch)
    return texts


def _authorization(settings: Settings) -> dict[str, str]:
    if settings.control_token_file is None:
        return {}
    from polar.sessions import control_token

    try:
        return {"Authorization": f"Bearer {control_token(settings.control_token_file)}"}
    except NotReady as error:
        raise NoText(str(error)) from None


def _batches(sequences: Sequence[Ids]) -> Iterator[list[Ids]]:
    batch: list[Ids] = []
    for ids in sequences:
        if batch and sum(map(len, batch)) + len(ids) > BATCH:
            yield batch
            batch = []
        batch.append(ids)
    if batch:
        yield batch


def _asked(url: str, headers: dict[str, str], batch: list[Ids]) -> list[str]:
    body = msgspec.json.encode({"token_ids": [ids.tolist() for ids in batch]})
    # The control port is on loopback, or named outright: a proxy of the environment has no part in it.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        request = urllib.request.Request(url, body, headers)  # noqa: S310 - the operator's own URL
        with opener.open(request, timeout=DEADLINE_S) as response:
            texts = msgspec.json.decode(response.read(ANSWER_BYTES), type=_Texts).texts
    except urllib.error.HTTPError as error:
        raise NoText(f"{url} answered {error.code}: {_said(error.read(SAID_BYTES))}") from None
    except (OSError, HTTPException, ValueError) as error:
        raise NoText(f"{url} doesn't answer as it should: {error}") from None
    if len(texts) != len(batch):
        raise NoText(f"{url} gave {len(texts)} texts for {len(batch)}")
    return texts


def _said(body: bytes) -> str:
    """The message of the control API's error; of another's, what it wrote."""
    try:
        return msgspec.json.decode(body, type=_Refused).error.message
    except msgspec.DecodeError:
        return body.decode(errors="replace").strip()[:300]
