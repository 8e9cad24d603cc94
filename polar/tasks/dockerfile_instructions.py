"""The instructions of a Dockerfile, as the package dockerfile-parse reads them, and the forms of their values."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from topics.types.errors import NotReadyError, install_command

DIRECTIVE = re.compile(r"#\s*([a-zA-Z]+)\s*=\s*(.+?)\s*")
SYNTAX = re.compile(r"(docker\.io/)?docker/dockerfile([:@].*)?")
FLAG = re.compile(r"--([^\s=]*)(?:=(\S*))?(?:\s+|$)")
HEREDOC = re.compile(r"(^|\s)\d*<<-?[^<\s]")
"""Also within quotes, where Docker sees none: then the instruction is refused without need."""


class DockerfileError(ValueError):
    """What isn't translated: its line, its instruction, and why."""

    def __init__(self, line: int, name: str, reason: str) -> None:
        super().__init__(f"line {line}: {name}: {reason}")


@dataclass(frozen=True)
class Instruction:
    """One instruction, without continuations of lines and comments."""

    name: str
    """In capitals."""
    value: str
    line: int
    """Of its beginning; the first line is 1."""

    def error(self, reason: str) -> DockerfileError:
        return DockerfileError(self.line, self.name, reason)

    def flags(self) -> tuple[dict[str, str], str]:
        """The flags at its beginning, and what follows them. Raises DockerfileError for a quoted one."""
        flags, rest = {}, self.value
        while found := FLAG.match(rest):
            name, value = found[1], found[2] or ""
            if not name or any(quote in value for quote in "'\"\\"):
                raise self.error(f"the flag {found[0].strip()} isn't translated")
            flags[name], rest = value, rest[found.end() :]
        return flags, rest


def instructions(text: str) -> list[Instruction]:
    """Raises DockerfileError, and NotReadyError without the package."""
    try:
        from dockerfile_parse import DockerfileParser
    except ImportError:
        raise NotReadyError(
            f"tasks with a Dockerfile need the package dockerfile-parse; install it: {install_command('tasks')}"
        ) from None
    # Docker skips empty lines, also where a line is continued; the package would end the instruction there.
    lines = [(number, line) for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1) if line.strip()]
    _check(lines)
    # The last one ends an instruction that is still continued.
    content = "".join(f"{line}\n" for _, line in lines) + "\n"
    parsed = DockerfileParser(fileobj=io.BytesIO(content.encode())).structure
    found: list[Instruction] = []
    covered: set[int] = set()
    for one in parsed:
        covered.update(range(one["startline"], one["endline"] + 1))
        if not one["content"].lstrip().startswith("#"):
            found.append(Instruction(one["instruction"], one["value"].strip(), lines[one["startline"]][0]))
    left = [Instruction(line.strip(), "", number) for index, (number, line) in enumerate(lines) if index not in covered]
    return sorted([*found, *left], key=lambda one: one.line)


def _check(lines: list[tuple[int, str]]) -> None:
    for number, line in lines:
        if "\0" in line:
            raise DockerfileError(number, line.split("\0")[0], "holds a zero byte")
        if not line.lstrip().startswith("#") and line.rstrip().endswith("\\\\"):
            raise DockerfileError(number, line.split()[0], "ends with two backslashes, which parsers read differently")
    for number, name, value in _directives(lines):
        if name == "escape":
            raise DockerfileError(number, "# escape", "another escape character isn't translated; leave it out")
        if name == "syntax" and not SYNTAX.fullmatch(value):
            raise DockerfileError(number, "# syntax", f"{value} may give the file another meaning; leave it out")


def _directives(lines: list[tuple[int, str]]) -> Iterator[tuple[int, str, str]]:
    """Comments at the beginning that say how to read the file."""
    for number, line in lines:
        if not line.lstrip().startswith("#"):
            return
        if found := DIRECTIVE.fullmatch(line.strip()):
            yield number, found[1].lower(), found[2]


def words_in_json(text: str) -> list[str] | None:
    """The JSON form of a value; None if it has another form, as Docker sees it."""
    if not text.startswith("["):
        return None
    try:
        found = json.loads(text)
    except ValueError:
        return None
    is_list = isinstance(found, list) and all(isinstance(word, str) for word in found)
    return found if is_list else None


def words(text: str) -> list[str]:
    """The words of a value, with their quotes and escapes."""
    from dockerfile_parse.util import WordSplitter

    return list(WordSplitter(text).split(dequote=False))
