"""Conversations to token ids: the chat template, rendered and encoded piece by piece.

Invariant, but where a drift was asked for: a conversation only grows. Rendering some turns, an answer of the assistant and
what follows it gives the ids of the turns with a generation prompt, then the ids of the answer, then the rest. It holds
since every text lies between special tokens and is encoded by itself, and since answers are rendered by the template that
renders history.
"""

from __future__ import annotations  # `array[int]` is no expression before Python 3.12

import json
import re
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from jinja2 import StrictUndefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from polar.scripted.conversation import Turn
from polar.scripted.drift import Drift, as_history, as_sampled
from polar.scripted.tokenizer import SPECIALS, Tokenizer

TEMPLATE_FILE: Final = Path(__file__).with_name("chat_template.jinja")
_SPECIAL: Final = re.compile("(" + "|".join(map(re.escape, SPECIALS)) + ")")


class ChatTemplate:
    """Renders turns and tools with `chat_template.jinja` and encodes them with the tokenizer."""

    def __init__(self, tokenizer: Tokenizer, drifts: frozenset[Drift] = frozenset()) -> None:
        environment = ImmutableSandboxedEnvironment(finalize=_shield, undefined=StrictUndefined, autoescape=False)
        environment.filters["json"] = _to_json
        self._template = environment.from_string(TEMPLATE_FILE.read_text("utf-8"))
        self._tokenizer = tokenizer
        self._drifts = drifts
        self._generation_prompt = self.encode([])

    def encode(
        self, turns: Sequence[Turn], tools: Sequence[Any] = (), *, add_generation_prompt: bool = True
    ) -> array[int]:
        """Prompt token ids (int32) of a conversation; `tools` are JSON values in the request's form."""
        history = [as_history(turn, self._drifts) for turn in turns]
        return self._encode(history, tools, add_generation_prompt=add_generation_prompt)

    def encode_answer(self, turn: Turn) -> array[int]:
        """The ids that a model samples to say an assistant turn, the end of turn included."""
        ids = self._encode([turn], (), add_generation_prompt=False)[len(self._generation_prompt) :]
        return as_sampled(ids, self._drifts, self._tokenizer)

    def _encode(self, turns: Sequence[Turn], tools: Sequence[Any], *, add_generation_prompt: bool) -> array[int]:
        rendered = self._template.render(turns=turns, tools=tools, add_generation_prompt=add_generation_prompt)
        ids = array("i")
        for position, piece in enumerate(_SPECIAL.split(rendered)):
            if position % 2:
                ids.append(self._tokenizer.special_ids[piece])
            elif piece:
                ids.extend(self._tokenizer.encode(_unshield(piece)))
        return ids


def _shield(value: object) -> str:
    """Makes an expression's text free of `<`, so that every special token in a rendering is the template's own."""
    return str(value).replace("\0", "\0n").replace("<", "\0l")


def _unshield(text: str) -> str:
    return text.replace("\0l", "<").replace("\0n", "\0")


def _to_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
