"""Conversations to imitate: whole sessions, most of them bad, and short snippets in which every word to be said is to be copied.

The bad ones are what reinforcement learning has to choose from: it can only make likelier what the model has been shown. The snippets
cover each place that copies (the key to search for; file, line and new value of an edit), since a model that was only shown whole
sessions looks up wrong keys, sees "no match", and goes astray.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from examples.tiny_model.tasks import FILES, KEYS, VALUES, Task, draw, line

Message = dict[str, Any]
"""Of OpenAI's chat; arguments are objects, as chat templates get them."""

DONE = "Done."
PASSED, FAILED, EDITED, NO_TEXT, NO_FILE, NO_MATCH = (
    "passed",
    "failed",
    "edited",
    "no such text",
    "no such file",
    "no match",
)
TURNS = 6
"""Answers that a session may have."""
MIX = {"good": 15, "unverified": 10, "wrong_value": 25, "blind": 20, "lazy": 12, "browsing": 10, "malformed": 8}
"""Sessions of each kind in a hundred; their mean reward is about 0.2."""
GREP_SNIPPETS = 0.4
"""Share of the snippets that show the search, the others show the edit."""


class Session:
    """A conversation about a task as it is written: each call is answered as the agent of `examples/grpo_tiny` would."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.messages: list[Message] = [{"role": "user", "content": task.request}]
        self._files = dict(task.files)

    def grep(self, key: str) -> None:
        found = [
            f"{name}:{number}:{text}"
            for name, content in sorted(self._files.items())
            for number, text in enumerate(content.splitlines(), 1)
            if key in text
        ]
        self._call("grep", {"key": key}, "\n".join(found) or NO_MATCH)

    def edit(self, path: str, old: str, new: str) -> None:
        content = self._files.get(path)
        result = NO_FILE if content is None else EDITED if old in content else NO_TEXT
        if content is not None:
            self._files[path] = content.replace(old, new, 1)
        self._call("edit", {"path": path, "old": old, "new": new}, result)

    def test(self) -> None:
        passes = line(self.task.key, self.task.value) in self._files[self.task.path].splitlines()
        self._call("run", {"command": "make test"}, PASSED if passes else FAILED)

    def say(self, text: str) -> None:
        self.messages.append({"role": "assistant", "content": text})

    def _call(self, name: str, arguments: dict[str, str], result: str) -> None:
        call = {"type": "function", "function": {"name": name, "arguments": arguments}}
        self.messages += [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": result},
        ]


def good(session: Session, _: random.Random) -> None:
    """Search, edit, test, end."""
    _fixed(session, session.task.value)
    session.test()
    session.say(DONE)


def unverified(session: Session, _: random.Random) -> None:
    """The same without the test."""
    _fixed(session, session.task.value)
    session.say(DONE)


def wrong_value(session: Session, rng: random.Random) -> None:
    """Another value than the one asked for; the test fails, and it ends."""
    _fixed(session, rng.choice([value for value in VALUES if value not in (session.task.value, session.task.old)]))
    session.test()
    session.say(DONE)


def blind(session: Session, rng: random.Random) -> None:
    """An edit of a line that it never looked at."""
    task = session.task
    session.edit(rng.choice(FILES), line(task.key, rng.choice(VALUES)), line(task.key, task.value))
    if rng.random() < 0.5:
        session.test()
    session.say(DONE)


def lazy(session: Session, rng: random.Random) -> None:
    """Nothing, or the test alone."""
    if rng.random() < 0.5:
        session.test()
    session.say(DONE)


def browsing(session: Session, rng: random.Random) -> None:
    """Searches for this and that, until it gives up or its turns are spent."""
    session.grep(session.task.key)
    for _ in range(rng.randint(1, TURNS - 1)):
        session.grep(rng.choice(KEYS))
    if len(session.messages) < 2 * TURNS:
        session.say(DONE)


def malformed(session: Session, rng: random.Random) -> None:
    """A call, the first or second, that no parser takes: the session ends there."""
    task = session.task
    call = ("grep", {"key": task.key})
    if rng.random() < 0.5:
        session.grep(task.key)
        new = line(task.key, task.value)
        call = ("edit", {"path": task.path, "old": line(task.key, task.old), "new": new})
    text = json.dumps({"name": call[0], "arguments": call[1]})
    broken = rng.choice([text[:-1], text[:-2], text.replace('": {"', '": {', 1), text.replace('"arguments": ', "", 1)])
    session.say(f"<tool_call>\n{broken}\n</tool_call>")


KINDS: dict[str, Callable[[Session, random.Random], None]] = {
    kind.__name__: kind for kind in (good, unverified, wrong_value, blind, lazy, browsing, malformed)
}


def demonstration(rng: random.Random, kind: str | None = None) -> list[Message]:
    """A session of the given kind, or of one drawn from `MIX`."""
    session = Session(draw(rng))
    KINDS[kind or rng.choices(list(MIX), list(MIX.values()))[0]](session, rng)
    return session.messages


def snippet(rng: random.Random) -> list[Message]:
    """A request with the search for its key, or a request with the line that a search found and the right edit."""
    session = Session(draw(rng))
    if rng.random() < GREP_SNIPPETS:
        session.grep(session.task.key)
        return session.messages[:2]
    _fixed(session, session.task.value)
    request, _, found, edit, _ = session.messages
    return [request, found, edit]


def _fixed(session: Session, value: int) -> None:
    task = session.task
    session.grep(task.key)
    session.edit(task.path, line(task.key, task.old), line(task.key, value))
