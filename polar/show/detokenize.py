"""Text of token ids, from the engine through the proxy's control API, so this machine needs no tokenizer.

`POST {control_url}/v1/detokenize {token_ids: [[int]]} -> {texts: [str]}`, with the control token. Every failure is a `NotReadyError`, and
the caller shows ids instead.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import msgspec

from topics.environment import http_json
from topics.environment.settings import Settings
from topics.types.errors import NotReadyError
from topics.types.tokens import Ids

BATCH = 32_768
"""Tokens a request, about 200 kB of JSON."""
DEADLINE_S = 15.0


class _Texts(msgspec.Struct):
    texts: list[str]


def detokenize(settings: Settings, sequences: Sequence[Ids]) -> list[str]:
    """A text for each sequence of ids. Raises NotReadyError."""
    from polar.sessions import control_token

    if settings.control_url is None:
        raise NotReadyError("POLAR_CONTROL_URL isn't set")
    token = None if settings.control_token_file is None else control_token(settings.control_token_file)
    url = f"{settings.control_url.rstrip('/')}/v1/detokenize"
    texts: list[str] = []
    for batch in _batches(sequences):
        texts += _texts_of(url, token, batch)
    return texts


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
            raise NotReadyError(f"{url} answered {answer.status}: {_error_message(answer.body)}")
        texts = msgspec.json.decode(answer.body, type=_Texts).texts
    except (http_json.NoAnswerError, ValueError) as error:
        raise NotReadyError(f"{url} doesn't answer as it should: {error}") from None
    if len(texts) != len(batch):
        raise NotReadyError(f"{url} gave {len(texts)} texts for {len(batch)}")
    return texts


def _error_message(body: bytes) -> str:
    """The message of the control API's error, or the body of another server's answer."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return body.decode(errors="replace").strip()[:300]
