"""A control API that a test plays, on a port of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.serving import Requests, serving_by_path
from topics.environment.settings import Settings

OPENED = {"session_id": "t.0", "key": "sk", "expires_at": "2026-11-21T17:50:15Z", "env": {"OPENAI_API_KEY": "sk"}}


class Api:
    """The answer to every request, or to all but a close and the model API's list of models, and the requests so far."""

    answer: tuple[int, object] = (201, b"")
    closing: tuple[int, object] | None = None
    models: tuple[int, object] | None = None
    asked: Requests


@contextmanager
def played(folder: Path) -> Iterator[Settings]:
    """The settings that lead to it."""
    (folder / "token").write_text("secret\n")
    Api.closing = Api.models = None

    def answered(path: str, _: object) -> tuple[int, object]:
        if path.endswith("/close"):
            return Api.closing or Api.answer
        return (path.startswith("/v1/models/") and Api.models) or Api.answer

    with serving_by_path(answered) as (url, Api.asked):
        yield Settings(data=folder, control_url=f"{url}/", control_token_file=folder / "token")


def answer(status: int, body: object) -> None:
    Api.answer = status, body
