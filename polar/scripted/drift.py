"""Drift: ways in which a rendered history differs from the sampled tokens, as observed on servers of real models.

Without drift, a conversation's prompt is a prefix of its continuation's (`template`). Drift changes how answers are rendered in later
prompts, and into which tokens an answer's text is cut.
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
"""One of this many tokens of an answer is sampled in pieces."""


class Drift(StrEnum):
    REASONING = "reasoning"
    """The template leaves out the reasoning of earlier answers."""
    ARGUMENTS = "arguments"
    """The template serialises the arguments of earlier tool calls again: sorted keys, blanks after colons and commas."""
    SPLITS = "splits"
    """The model samples some words as other tokens than the tokenizer's."""


def as_history(turn: Turn, drifts: frozenset[Drift]) -> Turn:
    """An earlier turn as the template renders it."""
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
