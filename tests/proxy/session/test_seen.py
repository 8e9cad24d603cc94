"""Answers that a harness has seen: which of them a question that is asked again rejects."""

from __future__ import annotations

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
