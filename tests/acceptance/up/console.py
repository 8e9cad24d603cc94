"""Console blocks of the docs: ```console, a line `$ command` each, what it prints below it. Read here, run by test_docs.

What is printed is compared by shape: any number stands for any other, any word with a digit in it too, white space and table rules
don't count. A line `…` stands for any lines, `…` within a line for any text.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(r"^```console\n(.*?)^```", re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r"-?\b([0-9a-f]{6}\b|[A-Za-z_]*\d\w*)(\.\d+)?")
"""Or an id: of six hex digits one in 350 has none that is a digit."""
RULES = re.compile(r"[─━│┃┏┓┗┛┡┩╇╷╵└┘├┤┬┴┼╞╡╪═]+")
PROGRESS = re.compile("polar: reading .*: # of #")
"""Shown where reading takes more than a second: a page need not say so."""
ANYTHING = "…"
MARK = "END-OF-COMMAND"


@dataclass(frozen=True)
class Step:
    """One command of a page, and what it is said to print."""

    place: str
    """`docs/sql.md:12`."""
    command: str
    printed: list[str]


def steps(page: Path, root: Path) -> list[Step]:
    """All commands of a page, in its order."""
    text = page.read_text()
    found: list[Step] = []
    for block in BLOCK.finditer(text):
        line = text.count("\n", 0, block.start()) + 2
        for number, words in enumerate(block[1].splitlines(), line):
            if words.startswith("$ "):
                found.append(Step(f"{page.relative_to(root)}:{number}", words.removeprefix("$ "), []))
            elif words.startswith("> ") and not found[-1].printed:
                found[-1] = Step(found[-1].place, f"{found[-1].command}\n{words.removeprefix('> ')}", [])
            else:
                found[-1].printed.append(words)
    return found


def walk(page: Sequence[Step], *, folder: Path, environment: Mapping[str, str], deadline_s: float) -> list[str]:
    """Run a page's commands in one shell, since an `eval` is for the commands after it; what isn't as the page says, by place."""
    done = subprocess.run(
        ["bash"],
        input="".join(f"{step.command}\necho; echo {MARK}\n" for step in page),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=deadline_s,
        cwd=folder,
        env=environment,
    )
    *printed, _ = done.stdout.split(f"{MARK}\n")
    differences = ((step.place, differs(step.printed, output)) for step, output in zip(page, printed, strict=True))
    return [f"{place}: {difference}" for place, difference in differences if difference is not None]


def differs(said: list[str], printed: str) -> str | None:
    """Why what was printed isn't what a page says; None where it is. A page that says nothing of a command's output allows any."""
    if not said:
        return None
    wanted = [shape(line) for line in said]
    got = [shape(line) for line in printed.splitlines()]
    wanted, got = [line for line in wanted if line], [line for line in got if line and not PROGRESS.fullmatch(line)]
    if _matches(wanted, got):
        return None
    return "the page says:\n" + "\n".join(wanted) + "\nand there came:\n" + "\n".join(got)


def shape(line: str) -> str:
    """A line with its numbers and its spacing taken out."""
    return " ".join(NUMBER.sub("#", RULES.sub(" ", line)).split())


def _matches(wanted: list[str], got: list[str]) -> bool:
    if not wanted:
        return not got
    if wanted[0] == ANYTHING:
        return any(_matches(wanted[1:], got[skipped:]) for skipped in range(len(got) + 1))
    if not got:
        return False
    pattern = ".*".join(map(re.escape, wanted[0].split(ANYTHING)))
    return re.fullmatch(pattern, got[0]) is not None and _matches(wanted[1:], got[1:])
