"""Ids that are lifted out of JSON are those that the JSON decoder would have read; what it would refuse is left to it."""

import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.engines import ids as lifting
from proxy.engines.ids import SHORT, lift, numbers, without
from topics.types.tokens import unpack_ids

FIELD = "prompt_token_ids"


@pytest.fixture(autouse=True, scope="module")
def any_length() -> Iterator[None]:
    """Short arrays are read like long ones here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lifting, "SHORT", 0)
        yield


def spelled(ids: list[int], **fields: object) -> bytes:
    return json.dumps({"id": "x", FIELD: ids} | fields, separators=(",", ":")).encode()


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1))
def test_ids_come_out_and_the_rest_stays(ids: list[int]) -> None:
    rest, lifted = lift(spelled(ids, model="m"), FIELD)
    assert lifted is not None
    assert unpack_ids(lifted).tolist() == ids
    assert json.loads(rest) == {"id": "x", FIELD: [], "model": "m"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-1",
        "1,-2",
        "2147483648",
        "1,99999999999999999999999",
        "1.5",
        "1e3",
        "1,,2",
        ",1",
        "1,",
        "1, 2",
        '"1"',
        "null",
        "[1]",
    ],
)
def test_what_is_not_ids_alone_is_left_to_the_decoder(text: str) -> None:
    body = b'{"%b":[%b]}' % (FIELD.encode(), text.encode())
    assert lift(body, FIELD) == (body, None)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b'{"prompt_token_ids":null}',
        b'{"prompt_token_ids":[1',
        b'{"prompt_token_ids":[1],"prompt_token_ids":[2]}',
    ],
)
def test_an_object_without_one_such_array_is_left_as_it_is(body: bytes) -> None:
    assert lift(body, FIELD) == (body, None)


def test_a_text_that_quotes_the_field_is_a_text() -> None:
    body = spelled([5], content='the field is "prompt_token_ids":[1,2], it says')
    rest, lifted = lift(body, FIELD)
    assert lifted is not None
    assert unpack_ids(lifted).tolist() == [5]
    assert json.loads(rest)["content"] == 'the field is "prompt_token_ids":[1,2], it says'


def test_a_short_array_is_left_to_the_decoder_and_a_long_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifting, "SHORT", SHORT)
    assert lift(spelled([1] * (SHORT // 4)), FIELD)[1] is None
    lifted = lift(spelled([1] * SHORT), FIELD)[1]
    assert lifted is not None
    assert len(lifted) == 4 * SHORT


@given(st.lists(st.integers(0, 2**31 - 1), max_size=5), st.lists(st.integers(0, 2**31 - 1), max_size=5))
def test_an_array_is_dropped_only_where_it_is_written_as_the_other_is(sent: list[int], read: list[int]) -> None:
    request, body = spelled(sent), spelled(read, model="m")
    rest = json.loads(without(body, FIELD, numbers(request, FIELD)))
    assert rest == {"id": "x", FIELD: [] if sent == read else read, "model": "m"}


@pytest.mark.parametrize("body", [b"", b"{}", b'{"prompt_token_ids":null}', b'{"prompt_token_ids":[1', b'{"a":"[1]"}'])
def test_an_object_without_the_array_has_no_numbers_and_none_is_dropped(body: bytes) -> None:
    assert without(body, FIELD, b"1") == body
    assert without(b'{"prompt_token_ids":[1]}', FIELD, numbers(body, FIELD)) == b'{"prompt_token_ids":[1]}'
