"""The text of token ids, from the proxy's control API, which asks the engine: a tokenizer is nothing that this machine must have.

`POST {control_url}/v1/detokenize {token_ids: [[int]]} -> {texts: [str]}`, behind the control token. It is a convenience: whatever goes
wrong comes back as `NoText` with the reason, and ids are shown instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from topics.environment import http_json
from topics.environment.settings import Settings
from topics.types.errors import NotReady
from topics.types.tokens import Ids

BATCH = 32_768
"""Tokens a request, about 200 kB of JSON."""
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
    token = _token(settings)
    url = f"{settings.control_url.rstrip('/')}/v1/detokenize"
    texts: list[str] = []
    for batch in _batches(sequences):
        texts += _asked(url, token, batch)
    return texts


def _token(settings: Settings) -> str | None:
    if settings.control_token_file is None:
        return None
    from polar.sessions import control_token

    try:
        return control_token(settings.control_token_file)
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


def _asked(url: str, token: str | None, batch: list[Ids]) -> list[str]:
    payload = {"token_ids": [ids.tolist() for ids in batch]}
    try:
        answer = http_json.send(url, payload, token=token, timeout_s=DEADLINE_S)
        if answer.status >= 300:
            raise NoText(f"{url} answered {answer.status}: {_said(answer.body)}")
        texts = msgspec.json.decode(answer.body, type=_Texts).texts
    except (http_json.NoAnswerError, ValueError) as error:
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
