"""What `polar.sessions` makes of a control API's answers, which the test gives."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from polar import sessions
from tests.polar.control_api import OPENED, Api, answer, played
from topics.environment.settings import Settings
from topics.types.errors import InputError, NotReadyError


@pytest.fixture
def found(tmp_path: Path) -> Iterator[Settings]:
    with played(tmp_path) as settings:
        yield settings


def test_an_open_says_only_what_was_asked_for_and_a_block_closes_it_with_its_reward(found: Settings) -> None:
    answer(201, OPENED)
    with sessions.Session.open(settings=found, task_id="t", ttl_s=60) as session:
        answer(202, {"session_id": "t.0"})
        session.reward = 0.25
    assert Api.asked == [
        ("/v1/sessions", "Bearer secret", {"task_id": "t", "ttl_s": 60, "mode": "train"}),
        ("/v1/sessions/t.0/close", "Bearer secret", {"reward": 0.25}),
    ]
    assert session.ended is None, "no Kafka is known here"
    session.close()
    assert len(Api.asked) == 2, "a closed session isn't closed again"
    assert "sk" not in repr(session)


def test_what_a_block_raises_comes_before_what_its_close_raises(found: Settings) -> None:
    answer(201, OPENED)
    session = sessions.Session.open(settings=found)
    answer(409, {"error": {"code": "ended", "field": "session_id", "message": "t.0 has ended already"}})
    with pytest.raises(ZeroDivisionError), session:
        _ = 1 / 0


def test_a_refusal_tells_code_field_and_reason(found: Settings) -> None:
    answer(409, {"error": {"code": "taken", "field": "task_id", "message": "all are taken"}})
    with pytest.raises(sessions.SessionRefusedError, match="task_id: all are taken") as refused:
        sessions.Session.open(settings=found, task_id="t")
    assert (refused.value.code, refused.value.field, refused.value.reason) == ("taken", "task_id", "all are taken")


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (503, {"error": {"code": "unanswered", "message": "no coordinator answers"}}, "no coordinator answers"),
        (401, {"error": {"code": "unauthenticated", "message": "x"}}, "doesn't accept this control token"),
        (404, b"<html>", "is no control API of Polar's: it answered 404"),
        (200, b"<html>", "doesn't answer: "),
        (200, {"hello": "there"}, "is no control API of Polar's"),
        (200, [], "is no control API of Polar's"),
    ],
)
def test_an_api_that_can_not_serve_or_is_none_is_not_ready(
    found: Settings, status: int, body: object, words: str
) -> None:
    answer(status, body)
    with pytest.raises(NotReadyError, match=words):
        sessions.Session.open(settings=found)


def test_nothing_there_is_not_ready(found: Settings, tmp_path: Path) -> None:
    for changed, words in (
        ({"control_url": None}, "no control API"),
        ({"control_url": "http://127.0.0.1:9"}, "doesn't answer"),
        ({"control_url": "nowhere"}, "doesn't answer"),
        ({"control_token_file": tmp_path / "none"}, "the control token can't be read"),
    ):
        with pytest.raises(NotReadyError, match=words):
            sessions.Session.open(settings=found.model_copy(update=changed))


def test_a_token_that_no_header_can_hold_is_not_ready_and_not_repeated(found: Settings, tmp_path: Path) -> None:
    for written in (b"\xff\xfe", b"a-secret\nanother", "a-secret-\u2603".encode()):
        (tmp_path / "odd").write_bytes(written)
        with pytest.raises(NotReadyError) as raised:
            sessions.Session.open(settings=found.model_copy(update={"control_token_file": tmp_path / "odd"}))
        assert "a-secret" not in str(raised.value)


def test_a_reward_that_is_no_number_is_not_sent(found: Settings) -> None:
    for reward in (float("nan"), float("inf")):
        with pytest.raises(InputError, match="reward: a reward is a finite number"):
            sessions.close_session(found, "t.0", reward)
    assert not Api.asked


def test_a_block_with_a_reward_that_is_no_number_closes_its_session_without_one(found: Settings) -> None:
    answer(201, OPENED)
    session = sessions.Session.open(settings=found)
    answer(202, {"session_id": "t.0"})
    with pytest.raises(InputError, match="reward: a reward is a finite number"), session:
        session.reward = float("nan")
    path, body = Api.asked[-1][0], Api.asked[-1][-1]
    assert (path, body, session.is_closed) == ("/v1/sessions/t.0/close", {}, True)


def test_clients_have_the_session_s_url_and_key_and_end_with_it(found: Settings) -> None:
    answer(201, OPENED | {"env": {"OPENAI_BASE_URL": f"{found.control_url}v1"}})
    with sessions.Session.open(settings=found) as session:
        client = session.openai()
        assert (str(client.base_url), client.api_key) == (f"{found.control_url}v1/", "sk")
        answer(202, {})
    assert client.is_closed()


async def test_a_session_that_is_closed_in_a_loop_closes_the_clients_of_the_loop(found: Settings) -> None:
    answer(201, OPENED | {"env": {"OPENAI_BASE_URL": f"{found.control_url}v1"}})
    session = await asyncio.to_thread(sessions.Session.open, settings=found)
    client = session.async_openai()
    answer(409, {"error": {"code": "ended", "field": "session_id", "message": "t.0 has ended already"}})
    with pytest.raises(sessions.SessionRefusedError):
        await session.aclose()
    assert client.is_closed()


def test_a_missing_package_is_named(found: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    answer(201, OPENED)
    with pytest.raises(NotReadyError, match="needs the package openai: pip install openai"):
        sessions.Session.open(settings=found).openai()
