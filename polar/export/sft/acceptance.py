"""Which sessions a dataset takes.

Pure. A session is accepted whole or not at all, and a refused one has exactly one reason: the first that holds, in the order of `Refusal`.
Accepted sessions depend on the sessions and the rules alone, not on the format.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from polar.export.sessions import Finished
from polar.export.sft.examples import Example

RAN = "evaluation_output"
"""The artifact of an evaluator that ran a command; in a composite, with the part's name and a dot before it."""
DIFFERED = "evaluation_report"
"""The artifact of an evaluator whose named tests weren't all as expected."""


class Refusal(StrEnum):
    """Why a session isn't in the dataset."""

    UNREWARDED = "unrewarded"
    """No evaluator gave a reward."""
    REWARD = "reward"
    """Its reward is below `min_reward`."""
    TESTS = "tests"
    """A named test wasn't as expected, no evaluator ran a command, or the reward is 0."""
    UNTRAINED = "untrained"
    """None of its tokens is trained; `masked_tokens` of the view `trajectories` has the reasons."""
    TOO_LONG = "too_long"
    """A trace has more than `max_tokens` tokens."""
    INCOMPLETE = "incomplete"
    """The lake lacks a record that its messages need."""
    MEDIA = "media"
    """It has images or sounds, which neither tokens nor text hold."""
    DUPLICATE = "duplicate"
    """An accepted session has equal conversations: equal messages and tools in all rows."""
    CAP = "cap"
    """Its task has `per_task` accepted sessions already."""


@dataclass(frozen=True)
class Rules:
    """The conditions of acceptance."""

    min_reward: float = 1.0
    tests_green: bool = False
    """Only sessions whose evaluators ran a command and reported no test that differs. Evaluators without such reports count as green."""
    max_tokens: int | None = None
    """None: any length."""
    per_task: int | None = None
    """None: any number."""


def refused_unread(one: Finished, rules: Rules) -> Refusal | None:
    """Why a session is refused by what is known without its content; None: it may be accepted."""
    if one.reward is None:
        return Refusal.UNREWARDED
    if not one.reward >= rules.min_reward:
        return Refusal.REWARD
    if rules.tests_green and not _is_green(one):
        return Refusal.TESTS
    if one.trainable_tokens == 0:
        return Refusal.UNTRAINED
    if rules.max_tokens is not None and one.longest_trace > rules.max_tokens:
        return Refusal.TOO_LONG
    return None


def in_order(candidates: Iterable[Finished]) -> list[Finished]:
    """Candidates by task id; of a task, those with the highest reward first, then by sample index. `per_task` takes the first ones."""
    return sorted(candidates, key=lambda one: (one.task_id, -(one.reward or 0.0), one.sample_index))


class Acceptance:
    """Decides on the candidates of an export, in the order of `in_order`."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._accepted: Counter[str] = Counter()
        """Sessions by task."""
        self._conversations: set[bytes] = set()
        """Digests of the accepted sessions' conversations."""

    def refused(self, task_id: str, rows: Sequence[Example]) -> Refusal | None:
        """Why a session with these rows is refused; None: it is accepted."""
        if any(row.gap is not None for row in rows):
            return Refusal.INCOMPLETE
        if any(row.has_media for row in rows):
            return Refusal.MEDIA
        if (conversations := _digest(rows)) in self._conversations:
            return Refusal.DUPLICATE
        if self._accepted[task_id] == self._rules.per_task:
            return Refusal.CAP
        self._accepted[task_id] += 1
        self._conversations.add(conversations)
        return None


def _is_green(one: Finished) -> bool:
    # A reward of 0 with an output and no report: the agent's files broke the preparation, so no test ran; or a script failed.
    kinds = {name.rpartition(".")[2] for name in one.artifacts}
    return bool(one.reward) and RAN in kinds and DIFFERED not in kinds


def _digest(rows: Sequence[Example]) -> bytes:
    spelled = msgspec.json.encode([(row.messages, row.tools) for row in rows], order="deterministic")
    return hashlib.blake2b(spelled, digest_size=16).digest()
