"""Converts conversations to token ids with the chat template, and back.

Invariant, unless a drift is enabled: token ids of a conversation are a prefix of those of its continuation. The ids of some turns with a
generation prompt, followed by the ids of an answer, begin the ids of any conversation that continues with this answer. This holds since
every text lies between special tokens and is encoded separately, and since the same template renders answers and history.
"""

from __future__ import annotations  # `array[int]` is no expression before Python 3.12

import json
import re
from array import array
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from jinja2 import StrictUndefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from polar.scripted.answer import AnswerParser, as_turn, joined
from polar.scripted.conversation import Turn
from polar.scripted.drift import Drift, as_history, as_sampled
from polar.scripted.tokenizer import SPECIALS, Tokenizer

TEMPLATE_FILE: Final = Path(__file__).with_name("chat_template.jinja")
TOOLS_HEADING: Final = "# Tools\n\nTo call a tool, write "
"""The beginning of the template's list of tools, which follows the next empty line, one tool per line."""
_SPECIAL: Final = re.compile("(" + "|".join(map(re.escape, SPECIALS)) + ")")


class ChatTemplate:
    """Renders turns and tools with `chat_template.jinja` and encodes them with the tokenizer."""

    def __init__(self, tokenizer: Tokenizer, drifts: frozenset[Drift] = frozenset()) -> None:
        environment = ImmutableSandboxedEnvironment(finalize=_shield, undefined=StrictUndefined, autoescape=False)
        environment.filters["json"] = partial(json.dumps, ensure_ascii=False)
        self._template = environment.from_string(TEMPLATE_FILE.read_text("utf-8"))
        self._tokenizer = tokenizer
        self._drifts = drifts
        self._generation_prompt = self.encode([])

    def encode(
        self, turns: Sequence[Turn], tools: Sequence[Any] = (), *, add_generation_prompt: bool = True
    ) -> array[int]:
        """The prompt's token ids (int32); `tools` are the JSON values of the request."""
        history = [as_history(turn, self._drifts) for turn in turns]
        return self._encode(history, tools, add_generation_prompt=add_generation_prompt)

    def encode_answer(self, turn: Turn) -> array[int]:
        """The ids that a model samples for an assistant turn, including the end of turn."""
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
    """Escape `<` in a value: every special token in a rendering then comes from the template."""
    return str(value).replace("\0", "\0n").replace("<", "\0l")


def _unshield(text: str) -> str:
    return text.replace("\0l", "<").replace("\0n", "\0")


def conversation(ids: Sequence[int], tokenizer: Tokenizer, parser: AnswerParser) -> tuple[list[Turn], list[Any]]:
    """The inverse of `ChatTemplate.encode`: a prompt's complete turns, and its tools as the JSON values that were declared."""
    begin, head, end = (tokenizer.special_ids[name] for name in ("<|im_start|>", "<|im_sep|>", "<|im_end|>"))
    turns: list[Turn] = []
    start, text_start = None, None
    for at, token_id in enumerate(ids):
        if token_id == begin:
            start, text_start = at + 1, None
        elif token_id == head:
            text_start = at + 1
        elif token_id == end and start is not None and text_start is not None:
            role, ids_of_text = tokenizer.decode(ids[start : text_start - 1]), ids[text_start:at]
            turn = (
                as_turn(joined(parser.deltas(ids_of_text)))
                if role == "assistant"
                else Turn(role, tokenizer.decode(ids_of_text))
            )
            turns.append(turn)
            start = None
    if not turns:
        return [], []
    text, _, listed = turns[0].text.partition(TOOLS_HEADING)
    tools = [json.loads(line) for line in listed.partition("\n\n")[2].splitlines()]
    if tools:
        turns[0] = replace(turns[0], text=text.rstrip("\n"))
    return (turns if turns[0].text or not tools else turns[1:]), tools
