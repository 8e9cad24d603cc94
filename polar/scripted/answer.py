"""Sampled token ids to what a chat client sees: the parser of reasoning, text and tool calls.

The form is that of Hermes models: `<think>…</think>`, text, then `<tool_call>` newline, a JSON object with `name` and
`arguments`, newline, `</tool_call>`, calls parted by a newline. The parser works on ids, so text that merely looks like
a special token stays text. It tells for each token what that token adds, and both the body and the stream of an answer
are made of these deltas: they can't disagree.

A call that isn't whole, or isn't of the form, is text, markers and all, as it is with vLLM.
"""

import codecs
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from polar.scripted.conversation import Call, Turn
from polar.scripted.tokenizer import Tokenizer

_CALL: Final = re.compile(
    r'(?P<head>\n\{"name": (?P<name>"(?:[^"\\]|\\.)*"), "arguments": )(?P<arguments>.*)\}\n', re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Delta:
    """What one token, or some in a row, add to the assistant's message."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[tuple[int, Call], ...] = ()
    """(index, piece of a call): a call's first piece has its name, later ones an empty name; arguments add up."""


@dataclass(frozen=True, slots=True)
class _Run:
    """Ids `start` to `stop` of an answer, all ordinary tokens, between two special ones."""

    start: int
    stop: int
    text: str
    before: str
    after: str
    """Names of the special tokens on either side; empty where the answer begins or is cut off."""

    @property
    def call(self) -> re.Match[str] | None:
        """The call that the run spells, if it stands whole between its markers."""
        if self.before == "<tool_call>" and self.after == "</tool_call>":
            return _CALL.fullmatch(self.text)
        return None


class AnswerParser:
    """Parses sampled ids with the tokenizer that they are of."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special_names = {token_id: name for name, token_id in tokenizer.special_ids.items()}

    def deltas(self, token_ids: Sequence[int]) -> list[Delta]:
        """For each token what it adds to the message, in order; as long as `token_ids`."""
        deltas = [Delta()] * len(token_ids)
        calls = 0
        runs = list(self._runs(token_ids))
        for run, following in pairwise([*runs, None]):
            assert run is not None
            call = run.call
            if call is not None:
                name = json.loads(call["name"])
                pieces = self._pieces(token_ids, run, len(call["head"]), call["arguments"])
                for position, (piece, opens) in enumerate(pieces, run.start):
                    if opens or piece:
                        deltas[position] = Delta(calls=((calls, Call(name if opens else "", piece)),))
                calls += 1
                continue
            is_reasoning = run.before == "<think>"
            joins_call = following is not None and following.call is not None and not is_reasoning
            shown = run.text.removesuffix("\n") if joins_call else run.text
            for position, (piece, _) in enumerate(self._pieces(token_ids, run, 0, shown), run.start):
                deltas[position] = Delta(reasoning=piece) if is_reasoning else Delta(text=piece)
            if run.before == "<tool_call>":
                deltas[run.start - 1] = Delta(text=run.before)
                if run.after == "</tool_call>":
                    deltas[run.stop] = Delta(text=run.after)
        return deltas

    def reasoning_tokens(self, token_ids: Sequence[int]) -> int:
        """How many of the ids are reasoning, its markers not counted."""
        return sum(run.stop - run.start for run in self._runs(token_ids) if run.before == "<think>")

    def _runs(self, token_ids: Sequence[int]) -> Iterator[_Run]:
        before, start = "", 0
        for position, token_id in enumerate(token_ids):
            name = self._special_names.get(token_id)
            if name is not None:
                yield _Run(start, position, self._tokenizer.decode(token_ids[start:position]), before, name)
                before, start = name, position + 1
        yield _Run(start, len(token_ids), self._tokenizer.decode(token_ids[start:]), before, "")

    def _pieces(self, token_ids: Sequence[int], run: _Run, skipped: int, shown: str) -> Iterator[tuple[str, bool]]:
        """For each token of a run its piece of `shown`, which begins `skipped` characters into the run's text, and
        whether it is the token with which the skipped part ends. A character goes with the last token of its bytes."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        at = -skipped
        for position in range(run.start, run.stop):
            token = self._tokenizer.bytes_of(token_ids[position])
            then = at + len(decoder.decode(token, final=position == run.stop - 1))
            yield shown[max(at, 0) : max(then, 0)], at < 0 <= then
            at = then


def joined(deltas: Iterable[Delta]) -> Delta:
    """Several tokens' deltas as one: the pieces of each call added up."""
    deltas = list(deltas)
    calls: dict[int, Call] = {}
    for index, piece in (entry for delta in deltas for entry in delta.calls):
        known = calls.get(index, Call("", ""))
        calls[index] = Call(known.name or piece.name, known.arguments + piece.arguments)
    return Delta(
        "".join(delta.text for delta in deltas),
        "".join(delta.reasoning for delta in deltas),
        tuple(calls.items()),
    )


def as_turn(delta: Delta) -> Turn:
    """The assistant turn that a whole answer's delta makes."""
    return Turn("assistant", delta.text, delta.reasoning, tuple(call for _, call in delta.calls))
