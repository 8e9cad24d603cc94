"""Packing: every trained token once, in order, within the bound, the same each time; and what doesn't fit is told."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.trainer.groups import Group
from polar.trainer.packing import TOKEN_ARRAYS, Batch, pack
from polar.trainer.rows import Row, grpo
from tests.polar.trainer.trees import groups
from topics.types.completion import Medium
from topics.types.errors import InputError


def sequences(batch: Batch) -> dict[tuple[str, int], dict[str, list[float]]]:
    """A batch taken apart again."""
    edges = batch.cu_seqlens.tolist()
    return {
        name: {array: getattr(batch, array)[start:end].tolist() for array in TOKEN_ARRAYS}
        for name, start, end in zip(batch.sequences, edges[:-1], edges[1:], strict=True)
    }


def arrays(row: Row) -> dict[str, list[float]]:
    return {name: getattr(row, name).tolist() for name in TOKEN_ARRAYS}


@given(groups(rewards=st.sampled_from([0.0, 1.0])), st.integers(27, 60))
def test_each_row_is_in_one_batch_whole_and_no_batch_is_too_long(group: Group, max_tokens: int) -> None:
    rows = grpo(group)
    batches = pack(rows, max_tokens)
    found = [one for batch in batches for one in sequences(batch).items()]
    assert sorted(name for name, _ in found) == sorted((row.session_id, row.trace) for row in rows)
    assert dict(found) == {(row.session_id, row.trace): arrays(row) for row in rows}
    order = [(row.session_id, row.trace) for row in rows]
    for batch in batches:
        assert 0 < len(batch.token_ids) <= max_tokens
        assert batch.sequences == sorted(batch.sequences, key=order.index)
        assert batch.cu_seqlens.dtype == batch.positions.dtype == batch.token_ids.dtype == np.int32
        lengths = np.diff(batch.cu_seqlens)
        assert batch.positions.tolist() == [at for length in lengths for at in range(length)]
        assert batch.max_seqlen == lengths.max()


@given(groups(rewards=st.sampled_from([0.0, 1.0])), st.integers(27, 60))
def test_no_two_batches_would_fit_into_one(group: Group, max_tokens: int) -> None:
    """So that at most one is less than half full."""
    lengths = sorted(len(batch.token_ids) for batch in pack(grpo(group), max_tokens))
    assert len(lengths) < 2 or lengths[0] + lengths[1] > max_tokens


@given(groups(rewards=st.sampled_from([0.0, 1.0])), st.integers(1, 12), st.sampled_from(["cut", "drop"]))
def test_what_is_cut_or_dropped_is_counted_token_by_token(group: Group, max_tokens: int, too_long: str) -> None:
    rows, counts = grpo(group), Counter[str]()
    batches = pack(rows, max_tokens, too_long=too_long, counts=counts)  # type: ignore[arg-type]  # drawn
    trained = sum(int(row.loss_mask.sum()) for row in rows)
    assert trained - sum(int(batch.loss_mask.sum()) for batch in batches) == counts["cut_token"]
    assert len(rows) - sum(len(batch.sequences) for batch in batches) == counts["too_long_row"]
    assert all(len(batch.token_ids) <= max_tokens and batch.loss_mask.any() for batch in batches)
    assert too_long == "cut" or not counts["cut_row"]


def row(size: int) -> Row:
    ones = np.ones(size, dtype=np.float32)
    ids, mask, versions = np.arange(size, dtype=np.int32), ones.astype(np.uint8), ones.astype(np.int64)
    return Row(f"t.{size}", 0, ids, mask, -ones, ones, ones, versions, versions)


def test_images_stay_with_their_sequence_and_a_cut_leaves_none_in_part() -> None:
    seen = [Medium("a", position=1), Medium("b", position=5)]
    mask = np.array([0, 0, 0, 1, 0, 0, 0, 0, 0, 1], dtype=np.uint8)
    first, second = replace(row(10), loss_mask=mask, media=seen), row(3)
    [batch] = pack([second, first], 13)
    assert batch.media == [[], seen]
    for limit, size, left in ((9, 5, seen[:1]), (5, 5, seen[:1]), (4, 4, seen[:1])):
        [batch] = pack([first], limit, too_long="cut")
        assert (len(batch.token_ids), batch.media) == (size, [left])


def test_a_row_that_is_too_long_is_refused_by_name() -> None:
    with pytest.raises(
        InputError, match=r"max_tokens: t\.9, trace 0, has 9 tokens; allow more, or pass too_long='cut' or 'drop'"
    ):
        pack([row(2), row(9)], 8)
    with pytest.raises(InputError, match="max_tokens: must be 1 or more"):
        pack([], 0)


def test_long_ones_come_first_and_short_ones_fill_the_gaps() -> None:
    batches = pack([row(2), row(7), row(3), row(6)], 9)
    assert [batch.sequences for batch in batches] == [[("t.2", 0), ("t.7", 0)], [("t.3", 0), ("t.6", 0)]]


def test_nothing_packs_into_nothing() -> None:
    assert pack([], 8) == []


def test_tensors_are_the_arrays() -> None:
    """Needs PyTorch, which is no dependency."""
    torch = pytest.importorskip("torch", reason="PyTorch is the trainer's to bring")
    (batch,) = pack([row(2), row(3)], 8)
    tensors = batch.torch()
    assert tensors.keys() == {*TOKEN_ARRAYS, "positions", "cu_seqlens"}
    for name, tensor in tensors.items():
        assert tensor.numpy().tolist() == getattr(batch, name).tolist()
    assert tensors["cu_seqlens"].dtype == torch.int32


def test_without_torch_it_is_said_what_to_install() -> None:
    from importlib.util import find_spec

    from topics.types.errors import NotReadyError

    if find_spec("torch") is not None:
        pytest.skip("PyTorch is here")
    with pytest.raises(NotReadyError, match="pip install torch"):
        pack([row(2)], 8)[0].torch()
