"""A claim's answers that its harness has received whole, until it asks the same question again.

A question is what one thread asks: messages and tools. A harness that asks it again without counting a retry saw the answers and wants
another: it rejects them. Bounded: the oldest questions are forgotten. So is everything when a claim is read back from its log, which
doesn't tell what was delivered. A forgotten answer is never called rejected.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping

from proxy.session.history import Transcript
from topics.calls.threads import Thread, thread_of

QUESTIONS = 256
"""Questions kept of a claim: a harness that rejects an answer asks again at once, while its other threads ask theirs."""

Question = tuple[bytes, bytes, Thread | None]


def question_of(transcript: Transcript, lineage: Mapping[str, str] | None) -> Question:
    """The question of a request. Sampling settings aren't part of it: a harness may raise the temperature to get another answer."""
    return transcript.messages.link, transcript.tools_digest, thread_of(lineage)


class SeenAnswers:
    """One claim's answers that its harness has seen."""

    def __init__(self) -> None:
        self._answers: OrderedDict[Question, list[tuple[str, float]]] = OrderedDict()
        """Call id and time of delivery of the answers to each question."""
        self._count = 0
        """Answers to all questions."""

    @property
    def size(self) -> int:
        """Estimated bytes in memory."""
        return 600 * len(self._answers) + 200 * self._count

    def add(self, question: Question, call_ids: Iterable[str], at: float) -> None:
        """Adds the answers to one request. `at`: when they were delivered whole, in Unix seconds."""
        added = [(call_id, at) for call_id in call_ids]
        self._answers.setdefault(question, []).extend(added)
        self._count += len(added)
        if len(self._answers) > QUESTIONS:
            _, forgotten = self._answers.popitem(last=False)
            self._count -= len(forgotten)

    def asked_again(self, question: Question, at: float) -> list[str]:
        """Ids of the answers that were delivered before the question was received again. Each is returned once. `at`: Unix seconds."""
        answers = self._answers.pop(question, [])
        if under_way := [answer for answer in answers if answer[1] > at]:
            self._answers[question] = under_way
        delivered = [call_id for call_id, delivered_at in answers if delivered_at <= at]
        self._count -= len(delivered)
        return delivered
