"""What a checkpoint says was trained: exactly the rows that were, whatever was read ahead, and after a resume too."""

from __future__ import annotations

from collections import Counter

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from polar.trainer.handed_out import HandedOut, Progress


def give(out: HandedOut, *numbers: int) -> None:
    for number in numbers:
        out.give(number)


def test_rows_that_were_only_read_do_not_count() -> None:
    out = HandedOut(Progress({"at": 0}))
    assert out.add(0, 2, {"at": 1}) == 0
    give(out, 0, 0)
    out.batched([0, 0])
    assert out.progress() == Progress({"at": 0})
    out.trained()
    assert out.progress() == Progress({"at": 1}, groups=1)


def test_a_group_that_was_trained_in_part_goes_on_with_its_next_row() -> None:
    out = HandedOut(Progress({"at": 0}))
    out.add(0, 3, {"at": 1})
    out.add(1, 3, {"at": 2})
    give(out, 0, 0, 0, 1)
    out.batched([0, 1, 0, 0])
    out.trained()
    assert out.progress() == Progress({"at": 1}, {1: 1}, 1)
    resumed = HandedOut(out.progress())
    assert resumed.add(7, 1, {"at": 3}) == 0
    assert resumed.progress() == Progress({"at": 1}, {1: 1}, 1)
    assert resumed.add(1, 3, {"at": 4}) == 1
    assert resumed.progress() == Progress({"at": 1}, {1: 1}, 1)


def test_a_group_whose_last_rows_are_left_out_is_passed_with_the_next_one() -> None:
    out = HandedOut(Progress({"at": 0}))
    out.add(0, 3, {"at": 1})
    out.add(1, 0, {"at": 2})
    out.add(2, 1, {"at": 3})
    for batch in ([0], [2]):
        give(out, *batch)
        out.batched(batch)
        out.trained()
    assert out.progress() == Progress({"at": 3}, groups=2)


def test_a_row_left_out_before_a_trained_one_does_not_shift_the_rows_after_it() -> None:
    out = HandedOut(Progress({"at": 0}))
    out.add(0, 3, {"at": 1})
    out.leave_out(0)
    assert out.progress() == Progress({"at": 0})
    out.give(0)
    out.batched([0])
    out.leave_out(0)
    out.trained()
    assert out.progress() == Progress({"at": 0}, {0: 2})
    assert HandedOut(out.progress()).add(0, 3, {"at": 1}) == 2


@given(st.lists(st.integers(0, 4), min_size=1, max_size=8), st.data())
def test_whenever_a_process_is_killed_each_row_is_trained_once(sizes: list[int], data: st.DataObject) -> None:
    """A state is the number of groups read; a resumed process reads the others in any order. Some rows are too long, wherever they are."""
    every = [(number, at) for number, size in enumerate(sizes) for at in range(size)]
    too_long = data.draw(st.sets(st.sampled_from(every))) if every else set()
    trained: Counter[tuple[int, int]] = Counter()
    saved = msgspec.to_builtins(Progress({"read": []}), str_keys=True)
    for process in range(4):
        progress = msgspec.convert(saved, Progress, str_keys=True)
        out, read = HandedOut(progress), list(progress.state["read"])
        remaining = data.draw(st.permutations([number for number in range(len(sizes)) if number not in read]))
        rows: list[tuple[int, int]] = []
        for number in remaining:
            read = [*read, number]
            for at in range(out.add(number, sizes[number], {"read": read}), sizes[number]):
                if (number, at) in too_long:
                    out.leave_out(number)
                else:
                    out.give(number)
                    rows.append((number, at))
        width = data.draw(st.integers(1, 3))
        batches = [rows[at : at + width] for at in range(0, len(rows), width)]
        for batch in batches:
            out.batched([number for number, _ in batch])
        kill_at = len(batches) if process == 3 else data.draw(st.integers(0, len(batches)))
        for batch in batches[:kill_at]:
            out.trained()
            trained.update(batch)
        saved = msgspec.to_builtins(out.progress(), str_keys=True)
    assert trained == Counter(row for row in every if row not in too_long)
