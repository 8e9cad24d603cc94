"""Long conversations that drift, on chat templates of real models, and an oracle that says what each prompt must be.

A model answers with tokens that its template wouldn't write: words cut otherwise, blanks and line ends that parsers strip, reasoning that
templates remove, arguments spelled otherwise, answers that a limit cuts. A harness adds reminders, rewrites its last answer and compacts
its history. The oracle works on text and knows each model's end tokens from its makers, the code under test works on tokens and finds them
out: a prompt that continues an answer is right if it repeats the answer's tokens and goes on with what the template writes after it.

python -m tests.proxy.engines.template_talks prints the table of docs/vllm.md.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

import msgspec
import numpy as np

from proxy.chat import ChatRequest, FunctionCall, Message, RepeatedAnswer, ToolCall
from proxy.engines.continuing import Continuing
from proxy.errors import EngineError
from tests.proxy.engines.chat_templates import FAMILIES, Family, Server
from topics.types.tokens import Ids, common_prefix

ANSWERS = 30
ANSWER = "Zebra41"
"""A word that no conversation has."""
MARK = re.compile("q[0-9]+q")
WORDS = ("Yes", "It is done", "Look\n\nhere", "naïve ✓", "1", "{}", "a  b", "`x`", "The twin says")
ENDINGS = ("", ".", "!", " ", ".\n", ")", '"')
BLANKS = ("", "", " ", "\n", "\n\n", "  \n", "\t")
Outcome = Literal["continued", "branched", "wrong"]


@dataclass
class Tally:
    """Prompts that followed an answer which the harness repeated unchanged, by outcome."""

    continued: int = 0
    restored: int = 0
    """Of those continued: prompts that the template itself would have written otherwise."""
    branched: int = 0
    wrong: list[str] = field(default_factory=list)

    @property
    def prompts(self) -> int:
        """All of them."""
        return self.continued + self.branched + len(self.wrong)

    @property
    def rate(self) -> float:
        """Share of prompts that continue the newest answer."""
        return self.continued / self.prompts


@dataclass(frozen=True)
class Said:
    """An answer: its message as parsers return it, and all tokens of its call."""

    message: Message
    tokens: Ids
    is_ended: bool


class Talk:
    """One conversation."""

    def __init__(self, server: Server, seed: int) -> None:
        self.server = server
        self.random = random.Random(f"{server.family.name} {seed}")
        self.marks = count(1)
        self.messages = [Message("system", self._words()), Message("user", self._words())]
        self.tally = Tally()
        self._continuing = Continuing(server.render)

    async def run(self, answers: int = ANSWERS) -> Tally:
        """Ask for so many answers."""
        said: Said | None = None
        position = 0
        for _ in range(answers):
            prompt = await self._prompt(said, position)
            said = self._answered(prompt)
            position = len(self.messages)
            self.messages.append(said.message)
            self._go_on(said.message)
            if self.random.random() < 0.1:  # rewritten: the answer isn't the one that was sampled
                self.messages[position] = msgspec.structs.replace(said.message, content=f"Rewritten {next(self.marks)}")
                said = None
            elif self.random.random() < 0.05:  # compacted
                self.messages = [self.messages[0], Message("user", f"So far: {self._words()}")]
                said = None
        await self._prompt(said, position)
        return self.tally

    async def _prompt(self, said: Said | None, position: int) -> Ids:
        continued = None if said is None else RepeatedAnswer(position, said.tokens, said.is_ended)
        request = ChatRequest(list(self.messages), continued=continued)
        rendered = await self.server.render(request)
        prompt = await self._continuing.prompt(request, rendered)
        if said is None:
            assert prompt.ids.tolist() == rendered.tolist()
            return prompt.ids
        if common_prefix(said.tokens, prompt.ids) < len(said.tokens):
            self.tally.branched += 1
            if prompt.ids.tolist() != rendered.tolist():
                self.tally.wrong.append(f"neither continues nor is rendered: {self.server.spelled(prompt.ids)!r}")
            return prompt.ids
        after = prompt.ids[len(said.tokens) :]
        expected = rendered[len(said.tokens) :] if not prompt.realigned else self._after(said, position)
        if expected is None or expected.tolist() != after.tolist():
            proper = None if expected is None else self.server.spelled(expected)
            self.tally.wrong.append(f"{said.message}: {self.server.spelled(after)!r}, not {proper!r}")
        else:
            self.tally.continued += 1
            self.tally.restored += bool(prompt.realigned)
        return prompt.ids

    def _after(self, said: Said, position: int) -> Ids | None:
        """What the template writes after the answer's own tokens; None if nothing can be said."""
        family, turn = self.server.family, said.message
        replace = msgspec.structs.replace
        if turn.tool_calls and family.writes_calls:
            *calls, last = turn.tool_calls
            call = replace(last, function=replace(last.function, arguments=json.dumps({"path": ANSWER})))
            marked = replace(turn, tool_calls=[*calls, call])
        else:
            marked = replace(turn, content=ANSWER)
        text = self.server.text([*self.messages[:position], marked, *self.messages[position + 1 :]])
        _, *tails = text.split(ANSWER)
        if len(tails) != 1:
            return None
        tail, end = tails[0], family.end_of(turn)
        if any(mark in tail for mark in _marks(marked)):
            return None  # another part of the answer is written behind these words
        if not said.is_ended:
            return self.server.ids(tail)
        if end not in tail:
            return self.server.ids(tail) if not turn.tool_calls else None
        head, _, rest = tail.partition(end)
        if any(mark in head for message in self.messages[position + 1 :] for mark in _marks(message)):
            return None  # this end is another turn's
        return self.server.ids(rest)

    def _answered(self, prompt: Ids) -> Said:
        """A new answer."""
        pick, family = self.random, self.server.family
        reasoning = self._words() if pick.random() < 0.5 else None
        calls = pick.random() < 0.6 and family.has_tool_role
        content = None if calls and pick.random() < 0.6 else self._words()
        message = Message("assistant", content, reasoning)
        if calls:
            message = msgspec.structs.replace(message, tool_calls=self._calls(pick.randint(1, family.calls_at_once)))
        is_ended = pick.random() < 0.85 or bool(calls and pick.random() < 0.5)
        written = self._as_written(message, prompt) if is_ended and pick.random() < 0.4 else None
        if written is None:
            text = self._as_sampled(message)
            at = pick.randrange(len(text))
            ids = [self.server.ids(text[:at]), self.server.ids(text[at:])]
            written = np.concatenate([*ids, self.server.ids(family.end_of(message) if is_ended else "")])
        return Said(message, np.concatenate((prompt, written)), is_ended)

    def _as_sampled(self, message: Message) -> str:
        """The answer's text, with blanks that parsers strip."""
        blank = self.random.choice(BLANKS)
        thought = f"<think>\n{message.reasoning}\n</think>{blank}" if message.reasoning else blank
        calls = "".join(
            f'{self.random.choice(BLANKS)}<tool_call>\n{{"name": "{call.function.name}",  "arguments": {call.function.arguments}}}\n</tool_call>'
            for call in message.tool_calls
        )
        return f"{thought}{message.content or ''}{blank}{calls}" or " "

    def _as_written(self, message: Message, prompt: Ids) -> Ids | None:
        """The answer's tokens as the template writes them; None if it writes another conversation then."""
        family = self.server.family
        reply = (
            [Message("tool", "r", tool_call_id=call.id) for call in message.tool_calls]
            if message.tool_calls
            else [Message("user", "u")]
        )
        try:
            ids = self.server.ids(self.server.text([*self.messages, message, *reply]))
        except EngineError:
            return None
        if common_prefix(prompt, ids) < len(prompt):
            return None
        answer = ids[len(prompt) :]
        ends = np.flatnonzero(answer == self.server.ids(family.end_of(message))[0])
        return answer[: ends[0] + 1] if len(ends) else None

    def _go_on(self, answer: Message) -> None:
        """The harness's next messages."""
        pick = self.random
        for call in answer.tool_calls:
            result = pick.choice([self._words(), f"q{next(self.marks)}q\n\n", json.dumps({"found": self._words()})])
            self.messages.append(Message("tool", result, tool_call_id=call.id, name=call.function.name))
        if not answer.tool_calls:
            self.messages.append(Message("user", self._words()))
        if pick.random() < 0.1 and self._accepts(reminder := Message("user", self._words())):
            self.messages.append(reminder)

    def _accepts(self, message: Message) -> bool:
        try:
            self.server.text([*self.messages, message])
        except EngineError:
            return False
        return True

    def _calls(self, number: int) -> list[ToolCall]:
        pick = self.random
        values = ["a.py", "", "it's \"quoted\"", "line\nline\n", "naïve ✓", "}\"}", " 1 "]
        spaced = [(", ", ": "), (",", ":"), (" , ", " : ")]
        calls = []
        for _ in range(number):
            arguments = {"path": f"q{next(self.marks)}q{pick.choice(values)}", "lines": pick.choice([[1, 2], {}, None, 1.0, True])}
            kept = dict(pick.sample(sorted(arguments.items()), pick.randint(1, 2)))
            kept.setdefault("path", f"q{next(self.marks)}q")
            text = json.dumps(kept, separators=pick.choice(spaced), ensure_ascii=pick.random() < 0.5)
            calls.append(ToolCall(f"call{next(self.marks):05d}", FunctionCall(pick.choice(["look", "edit"]), text)))
        return calls

    def _words(self) -> str:
        """A sentence with a mark that no other has."""
        return f"{self.random.choice(WORDS)} q{next(self.marks)}q{self.random.choice(ENDINGS)}"


def _marks(message: Message) -> list[str]:
    """The marks of a message's texts."""
    return MARK.findall(str(message))


def outcome(family: Family, seed: int = 0, answers: int = ANSWERS) -> Tally:
    """One conversation of a model."""
    return asyncio.run(Talk(Server(family), seed).run(answers))


def main() -> None:
    """Print the table."""
    print("| template | prompts | continued | of these restored | branched | wrong |")
    print("|---|---|---|---|---|---|")
    for family in FAMILIES:
        found = outcome(family)
        print(
            f"| {family.name} | {found.prompts} | {found.continued} ({found.rate:.0%}) | {found.restored} | {found.branched} | {len(found.wrong)} |"
        )


if __name__ == "__main__":
    main()
