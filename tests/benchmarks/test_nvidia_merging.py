"""The baseline does what its description says, so that the comparison is with that."""

from __future__ import annotations

from benchmarks.nvidia_merging import Asked, Merged, merged

END = 9


def asked(prompt: list[int], response: list[int]) -> Asked:
    return Asked(prompt, response, [-1.0] * len(response))


def trained(trace: Merged) -> list[int]:
    return [token for token, mask in zip(trace.response_ids, trace.loss_mask, strict=True) if mask]


def test_a_growing_conversation_is_one_trace_with_what_stands_between_masked() -> None:
    (trace,) = merged([asked([1, 2], [3, END]), asked([1, 2, 3, END, 4], [5, END])])
    assert (trace.prompt_ids, trace.response_ids, trace.loss_mask) == ([1, 2], [3, END, 4, 5, END], [1, 1, 0, 1, 1])


def test_a_retry_of_the_very_same_prompt_drops_all_that_follows() -> None:
    (trace,) = merged([asked([1, 2], [3, END]), asked([1, 2], [4, END]), asked([1, 2, 4, END, 5], [6, END])])
    assert trained(trace) == [3, END]


def test_another_beginning_is_another_chain() -> None:
    assert [trained(trace) for trace in merged([asked([1, 2], [3, END]), asked([7], [8, END])])] == [[3, END], [8, END]]
