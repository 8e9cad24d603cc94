"""Parses sampled token ids into reasoning, text and tool calls, and finds stop strings.

The format is that of Hermes models: `<think>…</think>`, text, end `<tool_call>`, newline, a JSON object with `name` and `arguments`,
newline, `</tool_call>`; a newline separates calls. The parser works on ids, so text that only looks like a special token stays text. It
computes what each token adds; the body and the stream of an answer are both made from these deltas and can't disagree.

As in vLLM, an incomplete or malformed call is text, including its markers. An answer ends with the token that completes a stop string; that
token is sampled and counted, but the stop string isn't shown.
"""

import codecs
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from polar.scripted.conversation import Call, Turn
from polar.scripted.tokenizer import Tokenizer

_CALL: Final = re.compile(
    r'(?P<head>\n\{"name": (?P<name>"(?:[^"\\]|\\.)*"), "arguments": )(?P<arguments>.*)\}\n', re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Delta:
    """The text that one token, or several adjacent ones, add to the assistant's message."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[tuple[int, Call], ...] = ()
    """(index, piece of a call): the first piece has the call's name, later ones an empty name; arguments are concatenated."""


@dataclass(frozen=True, slots=True)
class _Run:
    """Ordinary tokens `[start, stop)` of an answer, between two special tokens."""

    start: int
    stop: int
    text: str
    before: str
    after: str
    """Names of the adjacent special tokens; empty at the answer's beginning and at a cut end."""

    @property
    def call(self) -> re.Match[str] | None:
        """The match of a complete call between its markers."""
        if self.before == "<tool_call>" and self.after == "</tool_call>":
            return _CALL.fullmatch(self.text)
        return None


class AnswerParser:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special_names = {token_id: name for name, token_id in tokenizer.special_ids.items()}

    def deltas(self, token_ids: Sequence[int]) -> list[Delta]:
        """The delta of each token; as long as `token_ids`."""
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
        """The number of reasoning tokens, without the markers."""
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
        """For each token of a run: its piece of `shown`, which begins after `skipped` characters of the run's text, and whether the
        skipped part ends within the token. A character belongs to the last token of its bytes."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        at = -skipped
        for position in range(run.start, run.stop):
            token = self._tokenizer.bytes_of(token_ids[position])
            end = at + len(decoder.decode(token, final=position == run.stop - 1))
            yield shown[max(at, 0) : max(end, 0)], at < 0 <= end
            at = end


def joined(deltas: Iterable[Delta]) -> Delta:
    """The deltas of several tokens as one; the pieces of each call are concatenated."""
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
    """The assistant turn of a complete answer's delta."""
    return Turn("assistant", delta.text, delta.reasoning, tuple(call for _, call in delta.calls))


def stop_in(deltas: Sequence[Delta], stops: Sequence[str]) -> tuple[int, str] | None:
    """The number of tokens until the text contains a stop string, and that string; None if it never does."""
    text = ""
    for position, delta in enumerate(deltas):
        text += delta.text
        stop = next((stop for stop in stops if stop in text), None)
        if stop is not None:
            return position + 1, stop
    return None


def text_before(deltas: Sequence[Delta], stop: str) -> list[Delta]:
    """As many deltas, without the text from `stop` on."""
    remaining = "".join(delta.text for delta in deltas).find(stop)
    shown = []
    for delta in deltas:
        piece = delta.text[: max(remaining, 0)]
        remaining -= len(piece)
        shown.append(replace(delta, text=piece))
    return shown
