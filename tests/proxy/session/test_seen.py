"""Answers that a harness has seen: which of them a question that is asked again rejects."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from proxy.chat import Function, Message, Tool
from proxy.session.history import transcript
from proxy.session.seen import Question, SeenAnswers, question_of
from topics.calls.delta import Spelled


def question(text: str = "hi", tools: tuple[str, ...] = (), **lineage: str) -> Question:
    asked = transcript(Spelled([Message("user", text)]), [Tool(Function(name)) for name in tools])
    return question_of(asked, lineage or None)


def test_a_question_that_is_asked_again_rejects_the_answers_that_were_seen_and_each_once() -> None:
    seen = SeenAnswers()
    assert seen.asked_again(question(), 1.0) == []
    seen.add(question(), ["a", "a.1"], 2.0)
    assert seen.asked_again(question(), 2.0) == ["a", "a.1"]
    assert seen.asked_again(question(), 3.0) == []
    seen.add(question(), ["b"], 4.0)
    assert seen.asked_again(question(), 5.0) == ["b"]


def test_a_question_that_was_received_before_an_answer_was_delivered_doesn_t_reject_it() -> None:
    seen = SeenAnswers()
    seen.add(question(), ["a"], 2.0)
    seen.add(question(), ["b"], 4.0)
    assert seen.asked_again(question(), 3.0) == ["a"]
    assert seen.asked_again(question(), 5.0) == ["b"]


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        (question(), True),
        (question(retry="0", window="w:2"), True),
        (question("ho"), False),
        (question(tools=("bash",)), False),
        (question(agent="1"), False),
    ],
)
def test_a_question_is_its_messages_its_tools_and_its_thread(other: Question, is_same: bool) -> None:
    assert (other == question()) == is_same


def test_only_the_newest_questions_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.session.seen.QUESTIONS", 2)
    seen = SeenAnswers()
    for number in range(3):
        seen.add(question(str(number)), [f"c{number}"], float(number))
    assert [seen.asked_again(question(str(number)), 9.0) for number in range(3)] == [[], ["c1"], ["c2"]]


@pytest.mark.parametrize("choices", [1, 128])
def test_their_memory_is_known_whatever_the_number_of_choices(choices: int) -> None:
    """Python's own count, within a third, as of a whole claim."""
    gc.collect()
    tracemalloc.start()
    try:
        began, _ = tracemalloc.get_traced_memory()
        seen = SeenAnswers()
        for number in range(300):
            call_ids = [f"chatcmpl-{number:032x}.{choice}" for choice in range(choices)]
            seen.add(question(f"{number}", agent=f"agent {number}"), call_ids, float(number))
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0] - began
    finally:
        tracemalloc.stop()
    assert 0.75 < seen.size / taken < 1.34
    for number in range(300):
        seen.asked_again(question(f"{number}", agent=f"agent {number}"), 999.0)
    assert seen.size == 0
