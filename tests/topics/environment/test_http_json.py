"""A real server on loopback answers: every status is an answer, every failure one error."""

from __future__ import annotations

import pytest

from tests.serving import serving
from topics.environment.http_json import Answer, NoAnswerError, send


@pytest.mark.parametrize("status", [200, 302, 404, 503])
def test_an_answer_of_any_status_is_returned(status: int) -> None:
    with serving(lambda _: (status, {"b": 2}, {"Location": "/elsewhere"})) as (url, requests):
        answer = send(f"{url}/path", {"a": [1]}, token="secret", timeout_s=10)
    assert (answer.status, answer.json()) == (status, {"b": 2})
    assert (requests.methods, requests) == (["POST"], [("/path", "Bearer secret", {"a": [1]})])


def test_the_method_follows_the_payload_unless_named() -> None:
    with serving(lambda _: (302, {}, {"Location": "/elsewhere"})) as (url, requests):
        assert send(url, timeout_s=10) == Answer(302, b"{}")
        assert send(url, method="HEAD", timeout_s=10) == Answer(302, b"")
    assert requests.methods == ["GET", "HEAD"]
    assert {(token, body) for _, token, body in requests} == {(None, None)}


@pytest.mark.parametrize("through_proxy", [False, True])
def test_the_environments_proxy_is_used_only_on_request(monkeypatch: pytest.MonkeyPatch, through_proxy: bool) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with serving(lambda _: (200, {})) as (url, _):
        if through_proxy:
            with pytest.raises(NoAnswerError, match="refused"):
                send(url, timeout_s=10, through_proxy=True)
        else:
            assert send(url, timeout_s=10).status == 200


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("http://127.0.0.1:1", "refused"),
        ("no-scheme", "unknown url type"),
        ("http://127.0.0.1:port", "port"),
        (None, "breaks off"),
    ],
)
def test_a_failure_is_one_error_with_its_reason(address: str | None, reason: str) -> None:
    with (
        serving(lambda _: (200, b"{", {"Content-Length": "2"})) as (url, _),
        pytest.raises(NoAnswerError, match=reason),
    ):
        send(address or url, timeout_s=10)


def test_a_body_that_is_no_json_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="Expecting value"):
        Answer(200, b"<html>").json()
