"""Token ids back to the conversation that they are the prompt of: what a server which is asked by tokens knows of what was said.

The inverse of the chat template: turns lie between special tokens, and the tools that are on offer after their heading in the first one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from polar.scripted.answer import AnswerParser, as_turn, joined
from polar.scripted.conversation import Turn
from polar.scripted.tokenizer import Tokenizer

TOOLS: Final = "# Tools\n\nTo call a tool, write "
"""With which the template begins its list of tools, one a line after the next empty one."""


def conversation(ids: Sequence[int], tokenizer: Tokenizer, parser: AnswerParser) -> tuple[list[Turn], list[Any]]:
    """The turns of a prompt, without the one that it begins at its end, and its tools, JSON values as they were declared."""
    begin, head, end = (tokenizer.special_ids[name] for name in ("<|im_start|>", "<|im_sep|>", "<|im_end|>"))
    turns: list[Turn] = []
    start, said = None, None
    for at, token_id in enumerate(ids):
        if token_id == begin:
            start, said = at + 1, None
        elif token_id == head:
            said = at + 1
        elif token_id == end and start is not None and said is not None:
            role, told = tokenizer.decode(ids[start : said - 1]), ids[said:at]
            turn = as_turn(joined(parser.deltas(told))) if role == "assistant" else Turn(role, tokenizer.decode(told))
            turns.append(turn)
            start = None
    if not turns:
        return [], []
    text, _, listed = turns[0].text.partition(TOOLS)
    tools = [json.loads(line) for line in listed.partition("\n\n")[2].splitlines()]
    if tools:
        turns[0] = replace(turns[0], text=text.rstrip("\n"))
    return (turns if turns[0].text or not tools else turns[1:]), tools
