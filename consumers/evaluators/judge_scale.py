"""The answers that a judge may give, their rewards, and the strict reading of one.

An answer is a JSON object with `reasoning` and `answer`, by a schema that the engine's grammar keeps. What comes back is checked again,
since not every engine keeps it. Nothing is searched for in a text, so no quotation of the agent's is ever taken for the judge's answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TEXT_LIMIT = 2000
"""Characters of an unreadable answer that its error and artifact repeat."""


class UnreadableAnswerError(ValueError):
    """It isn't one of the answers; the message says why, as the end of a sentence."""


@dataclass(frozen=True)
class Answer:
    """A judge's answer."""

    answer: int | str
    reward: float
    """From 0 to 1."""
    reasoning: str


@dataclass(frozen=True)
class Scale:
    """The possible answers and their rewards."""

    rewards: Mapping[int | str, float]

    @classmethod
    def of_range(cls, lowest: int, highest: int) -> Scale:
        """Whole numbers; the lowest is worth 0, the highest 1."""
        return cls({number: (number - lowest) / (highest - lowest) for number in range(lowest, highest + 1)})

    @property
    def schema(self) -> dict[str, Any]:
        """JSON schema of an answer. The reasoning comes first, so that it can shape the answer."""
        return {
            "type": "object",
            "properties": {"reasoning": {"type": "string"}, "answer": {"enum": list(self.rewards)}},
            "required": ["reasoning", "answer"],
            "additionalProperties": False,
        }

    @property
    def words(self) -> str:
        """The answers, for the judge."""
        listed: Sequence[int | str] = list(self.rewards)
        if isinstance(listed[0], int):
            return f"a whole number from {listed[0]} (worst) to {listed[-1]} (best)"
        return f"one of {', '.join(json.dumps(answer, ensure_ascii=False) for answer in listed)}"

    def read(self, message: Mapping[str, Any], finish_reason: object) -> Answer:
        """The answer in a message of the engine's. Raises UnreadableAnswerError."""
        if refusal := message.get("refusal"):
            raise UnreadableAnswerError(f"is a refusal: {str(refusal)[:TEXT_LIMIT]!r}")
        if finish_reason == "length":
            raise UnreadableAnswerError("was cut at max_tokens")
        text = message.get("content")
        try:
            found = json.loads(text) if isinstance(text, str) else None
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict) or set(found) != {"reasoning", "answer"}:
            raise UnreadableAnswerError(f"is no JSON object with `reasoning` and `answer`: {str(text)[:TEXT_LIMIT]!r}")
        answer, reasoning = found["answer"], found["reasoning"]
        if type(answer) not in (int, str) or answer not in self.rewards or not isinstance(reasoning, str):
            raise UnreadableAnswerError(f"isn't {self.words}: {str(answer)[:TEXT_LIMIT]!r}")
        return Answer(answer, self.rewards[answer], reasoning)
