"""The blobs of routed experts and sampling masks: what is written is read, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from topics.types.replay import ReplayError, RoutedExperts, decode_experts, decode_mask, encode, mask_of

EXPERTS = st.sampled_from(["uint8", "uint16", "int32"]).flatmap(
    lambda dtype: arrays(dtype, array_shapes(min_dims=3, max_dims=3, min_side=0, max_side=4))
)
SUPPORTS = st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=4), max_size=6)


@given(EXPERTS, st.just((0, None)) | st.tuples(st.integers(1, 2**40), st.text(min_size=1)))
def test_experts_are_read_as_they_were_written(experts: Any, first: tuple[int, str | None]) -> None:
    read = decode_experts(encode(RoutedExperts(experts, *first)))
    assert (read.start, read.base) == first
    assert (read.experts.dtype, read.experts.shape) == (experts.dtype, experts.shape)
    assert np.array_equal(read.experts, experts)


@given(SUPPORTS)
def test_a_mask_is_read_as_it_was_written(supports: list[list[int]]) -> None:
    read = decode_mask(encode(mask_of(supports)))
    assert [read.at(token).tolist() for token in range(len(read))] == supports


@given(EXPERTS, SUPPORTS, st.data())
def test_bytes_that_are_cut_or_longer_are_no_blob(experts: Any, supports: list[list[int]], data: st.DataObject) -> None:
    for blob, decode in ((encode(RoutedExperts(experts)), decode_experts), (encode(mask_of(supports)), decode_mask)):
        end = data.draw(st.integers(0, len(blob) - 1))
        for changed in (blob[:end], blob + b"x"):
            with pytest.raises(ReplayError):
                decode(changed)


def test_the_form_is_the_documented_one() -> None:
    """A reader in another language depends on it."""
    experts = np.array([[[1, 2]], [[3, 4]]], dtype=np.uint16)
    assert encode(RoutedExperts(experts, 5, "c1")) == (
        b'polar replay 1\n{"kind":"routed_experts","arrays":[["uint16",[2,1,2]]],"start":5,"base":"c1"}\n'
        b"\x01\x00\x02\x00\x03\x00\x04\x00"
    )
    assert encode(mask_of([[7], [7, 9]])) == (
        b'polar replay 1\n{"kind":"sampling_mask","arrays":[["int32",[3]],["int32",[3]]]}\n'
        b"\x00\x00\x00\x00\x01\x00\x00\x00\x03\x00\x00\x00\x07\x00\x00\x00\x07\x00\x00\x00\x09\x00\x00\x00"
    )


@pytest.mark.parametrize(
    ("blob", "message"),
    [
        (b"polar replay 2\n", "expected the form 'polar replay 1'"),
        (b'polar replay 1\n{"kind":"sampling_mask","arrays":[]}\n', "expected routed_experts, got sampling_mask"),
        (b'polar replay 1\n{"kind":"routed_experts","arrays":[["float32",[0,1,1]]]}\n', "an array of float32"),
        (b'polar replay 1\n{"kind":"routed_experts","arrays":[["uint8",[0]]]}\n', "expected one array"),
        (b'polar replay 1\n{"kind":"routed_experts","arrays":[["uint8",[0,1,1]]],"start":3}\n', "from token 3 on"),
    ],
)
def test_what_is_wrong_is_named(blob: bytes, message: str) -> None:
    with pytest.raises(ReplayError, match=message):
        decode_experts(blob)


def test_offsets_that_do_not_ascend_are_refused() -> None:
    blob = encode(mask_of([[7], [7, 9]])).replace(b"\x01\x00\x00\x00\x03", b"\x04\x00\x00\x00\x03")
    with pytest.raises(ReplayError, match="don't ascend"):
        decode_mask(blob)
