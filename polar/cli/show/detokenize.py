"""Text of token ids, from the engine through the proxy's control API, so this machine needs no tokenizer.

`POST {control_url}/v1/detokenize {token_ids: [[int]]} -> {texts: [str]}`, with the control token. Every failure is a `DetokenizeError`, and
the caller shows ids instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from topics.environment import http_json
from topics.environment.settings import Settings
from topics.types.errors import NotReadyError
from topics.types.tokens import Ids

BATCH = 32_768
"""Tokens a request, about 200 kB of JSON."""
DEADLINE_S = 15.0


class DetokenizeError(Exception):
    """The ids can't be shown as text. The message says why, and what to do."""


class _Texts(msgspec.Struct):
    texts: list[str]


class _Error(msgspec.Struct):
    message: str


class _Refused(msgspec.Struct):
    error: _Error


def detokenize(settings: Settings, sequences: Sequence[Ids]) -> list[str]:
    """A text for each sequence of ids. Raises DetokenizeError."""
    if settings.control_url is None:
        raise DetokenizeError("POLAR_CONTROL_URL isn't set")
    token = _token(settings)
    url = f"{settings.control_url.rstrip('/')}/v1/detokenize"
    texts: list[str] = []
    for batch in _batches(sequences):
        texts += _texts_of(url, token, batch)
    return texts


def _token(settings: Settings) -> str | None:
    if settings.control_token_file is None:
        return None
    from polar.sessions import control_token

    try:
        return control_token(settings.control_token_file)
    except NotReadyError as error:
        raise DetokenizeError(str(error)) from None


def _batches(sequences: Sequence[Ids]) -> Iterator[list[Ids]]:
    batch: list[Ids] = []
    for ids in sequences:
        if batch and sum(map(len, batch)) + len(ids) > BATCH:
            yield batch
            batch = []
        batch.append(ids)
    if batch:
        yield batch


def _texts_of(url: str, token: str | None, batch: list[Ids]) -> list[str]:
    payload = {"token_ids": [ids.tolist() for ids in batch]}
    try:
        answer = http_json.send(url, payload, token=token, timeout_s=DEADLINE_S)
        if answer.status >= 300:
            raise DetokenizeError(f"{url} answered {answer.status}: {_error_message(answer.body)}")
        texts = msgspec.json.decode(answer.body, type=_Texts).texts
    except (http_json.NoAnswerError, ValueError) as error:
        raise DetokenizeError(f"{url} doesn't answer as it should: {error}") from None
    if len(texts) != len(batch):
        raise DetokenizeError(f"{url} gave {len(texts)} texts for {len(batch)}")
    return texts


def _error_message(body: bytes) -> str:
    """The message of the control API's error, or the body of another server's answer."""
    try:
        return msgspec.json.decode(body, type=_Refused).error.message
    except msgspec.DecodeError:
        return body.decode(errors="replace").strip()[:300]
