"""Counts of an export: for the dataset's card and for the screen.

Pure. Invariant: `attempted` is `accepted` plus all refusals, in all and for each repository.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from polar.export.sessions import Finished
from polar.export.sft.acceptance import Refusal
from polar.export.sft.examples import Example


@dataclass
class SplitCount:
    """The contents of one split, counted."""

    sessions: int = 0
    rows: int = 0
    tokens: int = 0
    trained_tokens: int = 0
    tasks: set[str] = field(default_factory=set)


@dataclass
class Report:
    """Counts of sessions, unless a name says otherwise."""

    attempted: Counter[str | None] = field(default_factory=Counter)
    """By repository; None: the task has none."""
    accepted: Counter[str | None] = field(default_factory=Counter)
    refused: Counter[Refusal] = field(default_factory=Counter)
    splits: dict[str, SplitCount] = field(default_factory=dict)
    attempted_tasks: set[str] = field(default_factory=set)
    otherwise_rewarded: int = 0
    """Accepted sessions whose reward isn't 1."""

    def refuse(self, one: Finished, reason: Refusal) -> None:
        self._attempt(one)
        self.refused[reason] += 1

    def accept(self, one: Finished, split: str, rows: list[Example]) -> None:
        self._attempt(one)
        self.accepted[one.repository] += 1
        self.otherwise_rewarded += one.reward != 1
        count = self.splits[split]
        count.sessions += 1
        count.rows += len(rows)
        count.tokens += sum(len(row.token_ids) for row in rows)
        count.trained_tokens += sum(row.trained_tokens for row in rows)
        count.tasks.add(one.task_id)

    @property
    def repositories(self) -> list[str | None]:
        """Those with most attempted sessions first, then by name."""
        return sorted(self.attempted, key=lambda name: (-self.attempted[name], name or ""))

    @property
    def accepted_tasks(self) -> int:
        """Tasks with an accepted session."""
        return sum(len(count.tasks) for count in self.splits.values())

    def _attempt(self, one: Finished) -> None:
        self.attempted[one.repository] += 1
        self.attempted_tasks.add(one.task_id)
