"""What a dataset accepts: each rule for itself, and what holds for any sessions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.export.sessions import Finished
from polar.export.sft.acceptance import Acceptance, Refusal, Rules, in_order, refused_unread
from polar.export.sft.examples import Example

GREEN = frozenset({"agent_log", "evaluation_output"})
FINISHED = Finished("t.0", "t", 0, "COMPLETED", 1.0, 1, 100, 40, 90, "a/b", GREEN)
ROW = Example(
    "t.0", "t", "t.0/c", "a/b", 1.0, [{"role": "user", "content": "go"}], [], np.arange(3, dtype=np.int32),
    np.arange(3, dtype=np.int32), None, has_media=False,
)  # fmt: skip


@pytest.mark.parametrize(
    ("session", "rules", "reason"),
    [
        ({}, Rules(), None),
        ({"reward": None}, Rules(min_reward=-1), Refusal.UNREWARDED),
        ({"reward": float("nan")}, Rules(min_reward=-1), Refusal.REWARD),
        ({"reward": 0.99}, Rules(), Refusal.REWARD),
        ({"reward": 0.5}, Rules(min_reward=0.5), None),
        ({"artifacts": frozenset()}, Rules(), None),
        ({"artifacts": frozenset()}, Rules(tests_green=True), Refusal.TESTS),
        ({}, Rules(tests_green=True), None),
        ({"artifacts": GREEN | {"evaluation_report"}}, Rules(tests_green=True), Refusal.TESTS),
        ({"reward": 0.0}, Rules(min_reward=0, tests_green=True), Refusal.TESTS),
        ({"artifacts": {"tests.evaluation_output"}}, Rules(tests_green=True), None),
        (
            {"artifacts": {"tests.evaluation_output", "hidden.evaluation_report"}},
            Rules(tests_green=True),
            Refusal.TESTS,
        ),
        ({"trainable_tokens": 0}, Rules(), Refusal.UNTRAINED),
        ({}, Rules(max_tokens=90), None),
        ({}, Rules(max_tokens=89), Refusal.TOO_LONG),
        ({"reward": None, "trainable_tokens": 0}, Rules(), Refusal.UNREWARDED),
    ],
)
def test_what_is_refused_unread(session: dict[str, Any], rules: Rules, reason: Refusal | None) -> None:
    assert refused_unread(replace(FINISHED, **session), rules) is reason


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([ROW], Refusal.DUPLICATE),
        ([replace(ROW, trace_id="other", reward=0.5)], Refusal.DUPLICATE),
        ([replace(ROW, tools=[{"type": "function"}])], None),
        ([ROW, ROW], None),
        ([replace(ROW, gap="gone")], Refusal.INCOMPLETE),
        ([replace(ROW, has_media=True)], Refusal.MEDIA),
    ],
    ids=["equal", "other names", "other tools", "more rows", "gap", "image"],
)
def test_what_is_refused_by_its_content(rows: Sequence[Example], reason: Refusal | None) -> None:
    accepting = Acceptance(Rules())
    assert accepting.refused("t", [ROW]) is None
    assert accepting.refused("t", rows) is reason


def test_keys_in_another_order_are_equal_messages() -> None:
    accepting = Acceptance(Rules())
    turned = replace(ROW, messages=[{"content": "go", "role": "user"}])
    assert [accepting.refused("t", [row]) for row in (ROW, turned)] == [None, Refusal.DUPLICATE]


SESSIONS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from([None, 0.0, 0.5, 1.0]), st.integers(0, 3)), max_size=20
)
"""Task, reward, and the number of a conversation."""


@given(SESSIONS, st.sampled_from([0.0, 0.5, 1.0]), st.one_of(st.none(), st.integers(1, 3)), st.randoms())
def test_any_sessions(
    drawn: list[tuple[str, float | None, int]], least: float, per_task: int | None, random: Any
) -> None:
    samples = {task: count() for task in "abc"}
    rules = Rules(min_reward=least, per_task=per_task)
    said: dict[str, int] = {}
    finished: list[Finished] = []
    for task, reward, conversation in drawn:
        sample = next(samples[task])
        finished.append(
            replace(FINISHED, session_id=f"{task}.{sample}", task_id=task, sample_index=sample, reward=reward)
        )
        said[finished[-1].session_id] = conversation

    def accepted(sessions: Sequence[Finished]) -> list[Finished]:
        accepting = Acceptance(rules)
        candidates = in_order(one for one in sessions if refused_unread(one, rules) is None)
        return [one for one in candidates if accepting.refused(one.task_id, [row(one)]) is None]

    def row(one: Finished) -> Example:
        return replace(ROW, messages=[{"role": "user", "content": str(said[one.session_id])}])

    chosen = accepted(finished)
    assert accepted(random.sample(finished, len(finished))) == chosen, "it depends on the order of reading"
    assert all(one.reward is not None and one.reward >= least for one in chosen)
    conversations = Counter(said[one.session_id] for one in chosen)
    assert set(conversations.values()) <= {1}
    counts = Counter(one.task_id for one in chosen)
    assert per_task is None or all(number <= per_task for number in counts.values())
    # Nothing is left out without a reason.
    for one in finished:
        if one not in chosen and one.reward is not None and one.reward >= least:
            assert said[one.session_id] in conversations or counts[one.task_id] == per_task
            assert all(
                (best.reward or 0) >= one.reward or said[one.session_id] in conversations
                for best in chosen
                if best.task_id == one.task_id
            )
