"""Signatures of the Standard Webhooks specification, and the file of secrets."""

from __future__ import annotations

import base64
import json
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.webhooks import WebhookSignatureError, verify_webhook
from topics.environment.webhook_signing import ensure_secret_file, new_secret, read_secrets, sign
from topics.types.errors import NotReadyError

BODY = b'{"type":"group.finished","data":{"task_id":"t1"}}'
SECRETS = st.binary(min_size=24, max_size=64).map(lambda key: "whsec_" + base64.b64encode(key).decode())
IDS = st.text("abcdefghijklmnopqrstuvwxyzABC0123456789_-.", min_size=1, max_size=60)


def test_the_signature_is_the_specifications() -> None:
    """The example of its reference libraries."""
    message, secret = "msg_p5jXN8AQM9LWM0D4loKWxJek", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    assert sign(message, 1614265330, b'{"test": 2432232314}', [secret]) == {
        "webhook-id": message,
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


@given(SECRETS, SECRETS, IDS, st.dictionaries(st.text(), st.integers()), st.integers(0, 10**11))
def test_a_receiver_that_knows_one_of_the_secrets_is_content_and_any_other_is_not(
    old: str, new: str, webhook_id: str, data: dict[str, int], sent: int
) -> None:
    body = json.dumps(data).encode()
    headers = {name.title(): value for name, value in sign(webhook_id, sent, body, [old, new]).items()}
    for known in (old, new, [new_secret(), new]):
        assert verify_webhook(headers, body, known, now_s=sent + 299) == data
    with pytest.raises(WebhookSignatureError, match="no signature of this secret"):
        verify_webhook(headers, body, new_secret(), now_s=sent)


@given(st.binary(max_size=40), IDS, st.integers(1, 10**10), st.integers(0, 100), st.integers(1, 255))
def test_nothing_signed_can_be_changed(body: bytes, webhook_id: str, sent: int, place: int, flip: int) -> None:
    secret = new_secret()
    headers = sign(webhook_id, sent, body, [secret])
    place %= len(body) + 1
    changed = body[:place] + bytes([(body[place] if place < len(body) else 0) ^ flip]) + body[place + 1 :]
    for wrong_headers, wrong_body in [
        (headers, changed),
        (headers | {"webhook-id": webhook_id + "x"}, body),
        (headers | {"webhook-timestamp": str(sent + 1)}, body),
    ]:
        with pytest.raises(WebhookSignatureError, match="no signature of this secret"):
            verify_webhook(wrong_headers, wrong_body, secret, now_s=sent)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"webhook-id": None}, "no webhook-id header"),
        ({"webhook-signature": None}, "no webhook-signature header"),
        ({"webhook-timestamp": "soon"}, "is no Unix time"),
        ({"webhook-timestamp": "9" * 5000}, "is no Unix time"),
        ({"webhook-timestamp": "٣"}, "is no Unix time"),
        ({"webhook-timestamp": "699"}, "sent 301 s ago"),
        ({"webhook-timestamp": "1301"}, "sent -301 s ago"),
        ({"webhook-signature": ""}, "no signature of this secret"),
        ({"webhook-signature": "v1 v1, v2,abc é,ü v1,ü"}, "no signature of this secret"),
    ],
)
def test_what_is_wrong_with_a_message_is_said(change: dict[str, str | None], said: str) -> None:
    secret = new_secret()
    headers = {**sign("a", 1000, BODY, [secret]), **change}
    with pytest.raises(WebhookSignatureError, match=said):
        verify_webhook({name: value for name, value in headers.items() if value is not None}, BODY, secret, now_s=1000)


def test_a_secret_file_is_made_once_and_readable_to_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "data" / "webhook.secret"
    ensure_secret_file(path)
    (made,) = read_secrets(path)
    ensure_secret_file(path)
    assert read_secrets(path) == [made]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text(f"# since Monday\n{new_secret()}\n\n{made}\n")
    assert read_secrets(path)[1] == made


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "can't be read"),
        ("# none\n", "holds no secret"),
        ("whsec_!!!\n", "and base64"),
        ("whsec_c2hvcnQ=\n", "at least 24 bytes; this one 5"),
        ("\udcff", "can't be read"),
    ],
)
def test_a_bad_secret_file_is_named_and_its_text_is_not(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "webhook.secret"
    if text is not None:
        path.write_text(text, errors="surrogateescape")
    with pytest.raises(NotReadyError, match=said) as refused:
        read_secrets(path)
    assert str(path) in str(refused.value)
    assert "c2hvcnQ" not in str(refused.value)
