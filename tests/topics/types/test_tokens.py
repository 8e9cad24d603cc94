"""Token ids and logprobs as bytes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.types.tokens import common_prefix, count, pack_ids, pack_logprobs, unpack_ids, unpack_logprobs

IDS = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=50)


@given(IDS)
def test_ids_come_back(ids: list[int]) -> None:
    packed = pack_ids(ids)
    assert unpack_ids(packed).tolist() == ids
    assert count(packed) == len(ids)


@given(st.lists(st.floats(width=32, allow_nan=False), max_size=50))
def test_logprobs_come_back_to_the_bit(logprobs: list[float]) -> None:
    packed = pack_logprobs(logprobs)
    assert unpack_logprobs(packed).tolist() == logprobs
    assert pack_logprobs(unpack_logprobs(packed)) == packed


def test_the_bytes_are_little_endian() -> None:
    assert pack_ids([1, -2]) == b"\x01\0\0\0\xfe\xff\xff\xff"
    assert pack_logprobs([-1.0]) == b"\0\0\x80\xbf"


def test_ids_outside_int32_and_partial_values_are_refused() -> None:
    with pytest.raises(OverflowError):
        pack_ids([2**31])
    with pytest.raises(ValueError, match="multiple"):
        unpack_ids(b"12345")
    with pytest.raises(ValueError, match="multiple"):
        unpack_logprobs(b"123")


@given(st.lists(st.integers(0, 2), max_size=12), st.lists(st.integers(0, 2), max_size=12))
def test_the_common_prefix_is_the_longest(a: list[int], b: list[int]) -> None:
    shared = common_prefix(np.array(a, dtype=np.int32), np.array(b, dtype=np.int32))
    assert a[:shared] == b[:shared]
    assert shared in (len(a), len(b)) or a[shared] != b[shared]
