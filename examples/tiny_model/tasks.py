"""The work: "The test fails: KEY must be N. Fix it.", in a folder of small Python files of which one line is wrong.

Invariant: a fifth of the (key, value) pairs is held out: `TRAINED` and `HELD_OUT` share none, and nothing that a model is trained on
asks for a held-out pair.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

KEYS = (
    "timeout", "retries", "width", "height", "depth", "margin", "batch", "workers",
    "port", "limit", "level", "seconds", "threads", "pages", "rounds", "weight",
)  # fmt: skip
"""No key is part of another, so that searching for one finds no other's line."""
FILES = ("app.py", "client.py", "config.py", "engine.py", "main.py", "server.py", "tools.py", "views.py")
VALUES = (2, 3, 5, 8, 12, 16, 20, 24, 30, 36, 40, 48, 50, 64, 75, 90)
FILES_EACH = 3
LINES_EACH = 2
SPLIT_SEED = 7

Pair = tuple[str, int]


def _split() -> tuple[tuple[Pair, ...], tuple[Pair, ...]]:
    pairs = [(key, value) for key in KEYS for value in VALUES]
    random.Random(SPLIT_SEED).shuffle(pairs)
    held_out = len(pairs) // 5
    return tuple(pairs[held_out:]), tuple(pairs[:held_out])


TRAINED, HELD_OUT = _split()


@dataclass(frozen=True)
class Task:
    """One line to change."""

    key: str
    value: int
    """What it must become."""
    old: int
    path: str
    """The file that it stands in."""
    files: dict[str, str]
    """The folder before: text by name."""

    @property
    def request(self) -> str:
        """What the model is asked."""
        return f"The test fails: {self.key} must be {self.value}. Fix it."

    @property
    def goal(self) -> dict[str, str]:
        """The folder as it must become."""
        text = self.files[self.path].replace(line(self.key, self.old), line(self.key, self.value))
        return {**self.files, self.path: text}


def line(key: str, value: int) -> str:
    """How a value stands in a file."""
    return f"{key} = {value}"


def draw(rng: random.Random, pairs: Sequence[Pair] = TRAINED) -> Task:
    """A task for one of the pairs: three files of two lines, all keys different."""
    key, value = rng.choice(pairs)
    others = rng.sample([other for other in KEYS if other != key], FILES_EACH * LINES_EACH - 1)
    values = {other: rng.choice(VALUES) for other in others}
    values[key] = rng.choice([other for other in VALUES if other != value])
    keys = list(values)
    rng.shuffle(keys)
    names = sorted(rng.sample(FILES, FILES_EACH))
    held = {name: keys[LINES_EACH * at : LINES_EACH * (at + 1)] for at, name in enumerate(names)}
    files = {name: "".join(f"{line(each, values[each])}\n" for each in inside) for name, inside in held.items()}
    path = next(name for name, inside in held.items() if key in inside)
    return Task(key, value, values[key], path, files)
