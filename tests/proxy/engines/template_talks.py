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
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from itertools import count
from typing import Any, Protocol

import msgspec
import numpy as np

from proxy.chat import ChatRequest, FunctionCall, Message, RepeatedAnswer, ToolCall
from proxy.engines.continuing import Continuing
from proxy.errors import EngineError
from tests.proxy.engines.chat_templates import FAMILIES, Family, Server
from topics.types.tokens import Ids, common_prefix

replace = msgspec.structs.replace
ANSWERS, TALKS = 30, 3
"""Answers of a conversation, and conversations of a model in the table."""
REWRITTEN, COMPACTED, REMINDED = 0.1, 0.15, 0.15
"""Chances, after each answer; the second is the sum of the first two."""
ANSWER = "Zebra41"
"""A word that no conversation has."""
MARK = re.compile("q[0-9]+q")
WORDS = ("Yes", "It is done", "Look\n\nhere", "naïve ✓", "1", "{}", "a  b", "`x`", "The twin says 1")
ENDINGS = ("", ".", "!", " ", ".\n", ")", '"')
BLANKS = ("", "", " ", "\n", "\n\n", "  \n", "\t")
PATHS = ("a.py", "", 'it\'s "quoted"', "line\nline\n", "naïve ✓", '}"}', " 1 ", "The twin says no")
SPACED = ((", ", ": "), (",", ":"), (" , ", " : "))


@dataclass
class Tally:
    """Prompts that repeat an answer unchanged."""

    continued: int = 0
    """They repeat all tokens of the answer's call."""
    restored: int = 0
    """Of those continued: prompts that the template itself would have written otherwise."""
    branched: int = 0
    """They are the template's rendering, which has other tokens."""
    cut_calls: int = 0
    """Of those branched: prompts after an answer that a limit cut behind a call, where nothing can be continued."""
    wrong: list[str] = field(default_factory=list)

    @property
    def prompts(self) -> int:
        """All of them."""
        return self.continued + self.branched + len(self.wrong)

    @property
    def rate(self) -> float:
        """Share of prompts that continue the answer."""
        return self.continued / self.prompts

    def __add__(self, other: Tally) -> Tally:
        """Both together."""
        return Tally(**{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)})


@dataclass(frozen=True)
class Said:
    """An answer: its message as parsers return it, and all tokens of its call."""

    position: int
    message: Message
    tokens: Ids
    is_ended: bool


class Renderer(Protocol):
    """A model's template and tokenizer."""

    family: Family

    def text(self, messages: Sequence[Message]) -> str: ...
    async def render(self, request: ChatRequest) -> Ids: ...
    def ids(self, text: str) -> Ids: ...
    def spelled(self, ids: Ids) -> str: ...


class Talk:
    """One conversation."""

    def __init__(self, server: Renderer, seed: int) -> None:
        self.server = server
        self.random = random.Random(f"{server.family.name} {seed}")
        self.marks = count(1)
        self.messages = [Message("system", self._words()), Message("user", self._words())][seed % 2 :]
        self.answers: list[Said] = []
        """Those that the harness repeats unchanged, after the messages that they answered."""
        self.tally = Tally()
        self._continuing = Continuing(server.render)

    async def run(self, answers: int = ANSWERS) -> Tally:
        """Ask for so many answers."""
        for _ in range(answers):
            said = self._answered(await self._prompt())
            self.messages.append(said.message)
            self.answers.append(said)
            self._reply(said.message)
            chance = self.random.random()
            if chance < REWRITTEN:
                self.messages[said.position] = replace(said.message, content=f"Rewritten q{next(self.marks)}q")
                self.answers.pop()
            elif chance < COMPACTED:
                self.messages = [Message("user", f"So far: {self._words()}")]
                self.answers.clear()
        await self._prompt()
        return self.tally

    async def _prompt(self) -> Ids:
        """The next prompt, compared with what it must be."""
        said = self.answers[-1] if self.answers else None
        continued = None if said is None else RepeatedAnswer(said.position, said.tokens, said.is_ended)
        request = ChatRequest(list(self.messages), continued=continued)
        rendered = await self.server.render(request)
        prompt = (await self._continuing.prompt(request, rendered)).ids
        is_rendered = np.array_equal(prompt, rendered)
        if said is None:
            assert is_rendered
        elif common_prefix(said.tokens, prompt) < len(said.tokens):
            self.tally.branched += is_rendered
            self.tally.cut_calls += bool(said.message.tool_calls) and not said.is_ended
            if not is_rendered:
                self.tally.wrong.append(f"neither continues nor is rendered: {self.server.spelled(prompt)!r}")
        elif is_rendered or np.array_equal(prompt[len(said.tokens) :], self._after(said)):
            self.tally.continued += 1
            self.tally.restored += not is_rendered
        else:
            after, proper = (self.server.spelled(ids) for ids in (prompt[len(said.tokens) :], self._after(said)))
            self.tally.wrong.append(f"after {said.message}: {after!r}, not {proper!r}")
        return prompt

    def _after(self, said: Said) -> Ids:
        """What the template writes after the answer's own tokens; empty if that can't be said."""
        family, turn, later = self.server.family, said.message, self.messages[said.position + 1 :]
        nothing = self.server.ids("")
        if turn.tool_calls and family.writes_calls:
            *calls, last = turn.tool_calls
            arguments = json.dumps({"path": ANSWER})
            marked = replace(
                turn, tool_calls=[*calls, replace(last, function=replace(last.function, arguments=arguments))]
            )
        else:
            marked = replace(turn, content=ANSWER)
        _, *tails = self.server.text([*self.messages[: said.position], marked, *later]).split(ANSWER)
        if len(tails) != 1 or any(mark in tails[0] for mark in _marks(marked)):
            return nothing  # dropped, repeated, or another part of the answer is written behind these words
        head, end, rest = tails[0].partition(family.end_of(turn)) if said.is_ended else (tails[0], "", "")
        if not end:  # the template ends the turn with a token of its own
            return nothing if turn.tool_calls else self.server.ids(tails[0])
        is_another = any(mark in head for message in later for mark in _marks(message))
        return nothing if is_another else self.server.ids(rest)

    def _answered(self, prompt: Ids) -> Said:
        """A new answer."""
        pick, family = self.random, self.server.family
        has_calls = family.has_tool_role and pick.random() < 0.6
        content = self._words() if pick.random() < (0.4 if has_calls else 0.95) else None
        reasoning = self._words() if pick.random() < 0.5 else None
        calls = self._calls(pick.randint(1, family.calls_at_once)) if has_calls else []
        message = Message("assistant", content, reasoning, calls)
        is_ended = pick.random() < 0.9
        sampled = self._as_written(message, prompt) if is_ended and pick.random() < 0.4 else None
        if sampled is None:
            text = self._as_sampled(message)
            at = pick.randrange(len(text))
            end = family.end_of(message) if is_ended else ""
            sampled = np.concatenate([self.server.ids(part) for part in (text[:at], text[at:], end)])
        return Said(len(self.messages), message, np.concatenate((prompt, sampled)), is_ended)

    def _as_sampled(self, message: Message) -> str:
        """The answer's text, with blanks that parsers strip."""
        blank = self.random.choice(BLANKS)
        thought = f"<think>\n{message.reasoning}\n</think>{blank}" if message.reasoning else blank
        calls = "".join(
            f'{blank}<tool_call>\n{{"name": "{name}",  "arguments": {arguments}}}\n</tool_call>'
            for name, arguments in ((call.function.name, call.function.arguments) for call in message.tool_calls)
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

    def _reply(self, answer: Message) -> None:
        """The harness's next messages: results of tools or a question, and sometimes a reminder before or after them."""
        pick = self.random
        replies = [Message("tool", self._result(), tool_call_id=call.id) for call in answer.tool_calls]
        replies = replies or [Message("user", self._words())]
        if pick.random() < REMINDED:
            reminder = Message(pick.choice(["user", "system"]), self._words())
            with_it = [reminder, *replies] if pick.random() < 0.5 else [*replies, reminder]
            replies = with_it if self._accepts(with_it) else replies
        self.messages += replies

    def _accepts(self, replies: list[Message]) -> bool:
        try:
            self.server.text([*self.messages, *replies, Message("assistant", "a"), Message("user", "u")])
        except EngineError:
            return False
        return True

    def _result(self) -> str:
        return self.random.choice(
            [self._words(), self._words(), f"q{next(self.marks)}q\n\n", json.dumps([self._words()]), ""]
        )

    def _calls(self, number: int) -> list[ToolCall]:
        pick = self.random
        calls = []
        for _ in range(number):
            path = f"q{next(self.marks)}q{pick.choice(PATHS)}"
            values: dict[str, Any] = {"path": path, "lines": pick.choice([[1, 2], {}, None, 1.0, True])}
            arguments = {name: values[name] for name in pick.sample(sorted(values), pick.randint(0, 2))}
            text = json.dumps(arguments, separators=pick.choice(SPACED), ensure_ascii=pick.random() < 0.5)
            text = text if pick.random() < 0.95 else text[:-1]
            calls.append(ToolCall(f"call{next(self.marks):05d}", FunctionCall(pick.choice(["look", "edit"]), text)))
        return calls

    def _words(self) -> str:
        """A sentence with a mark that no other has."""
        return f"{self.random.choice(WORDS)} q{next(self.marks)}q{self.random.choice(ENDINGS)}"


def _marks(message: Message) -> list[str]:
    """The marks of a message's texts."""
    return MARK.findall(str(message))


def outcome(server: Renderer, talks: int) -> Tally:
    """So many conversations of a model."""
    return sum((asyncio.run(Talk(server, seed).run()) for seed in range(talks)), Tally())


def table() -> str:
    """The table of docs/vllm.md."""
    lines = [
        "| template | prompts | continued | of these restored | branched | of these after a cut call | wrong |",
        "|---|---|---|---|---|---|---|",
    ]
    for family in FAMILIES:
        found = outcome(Server(family), TALKS)
        counts = (found.restored, found.branched, found.cut_calls, len(found.wrong))
        lines.append(
            f"| {family.name} | {found.prompts} | {found.continued} ({found.rate:.0%}) | {' | '.join(map(str, counts))} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
