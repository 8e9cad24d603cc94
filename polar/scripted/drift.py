"""Drift: ways in which a history that is rendered anew is not what was sampled, each as servers of real models have it.

Without drift the scripted engine's conversations only grow (`template`). What is sampled stays right whatever drifts: only the way in which
answers stand in a later prompt changes, and how their text is cut into tokens.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum

from polar.scripted.conversation import Call, Turn
from polar.scripted.tokenizer import Tokenizer

SPLIT_EVERY = 5
"""Tokens of an answer of which one is sampled in pieces."""


class Drift(StrEnum):
    """One way."""

    REASONING = "reasoning"
    """The template leaves out what earlier answers thought."""
    ARGUMENTS = "arguments"
    """The template writes the arguments of earlier tool calls anew: keys sorted, blanks after colons and commas."""
    SPLITS = "splits"
    """The model samples some words in other pieces than its tokenizer cuts them into."""


def as_history(turn: Turn, drifts: frozenset[Drift]) -> Turn:
    """An earlier turn as the template has it."""
    if turn.role != "assistant":
        return turn
    if Drift.REASONING in drifts:
        turn = replace(turn, reasoning="")
    if Drift.ARGUMENTS in drifts:
        turn = replace(turn, calls=tuple(Call(call.name, _anew(call.arguments)) for call in turn.calls))
    return turn


def as_sampled(ids: Sequence[int], drifts: frozenset[Drift], tokenizer: Tokenizer) -> array[int]:
    """An answer's tokens as the model samples them."""
    if Drift.SPLITS not in drifts:
        return array("i", ids)
    sampled = array("i")
    for position, token_id in enumerate(ids):
        pieces = tokenizer.pieces_of(token_id) if position % SPLIT_EVERY == 0 else [token_id]
        sampled.extend(pieces)
    return sampled


def _anew(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), ensure_ascii=False, sort_keys=True)
    except ValueError:
        return arguments
