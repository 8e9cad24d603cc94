"""docs/protocol.md and docs/architecture.md point at what exists, and every citation of a rule has its rule."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROTOCOL = (ROOT / "docs" / "protocol.md").read_text()
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
HEADING = re.compile(r"^### (\d+)\. ", re.MULTILINE)
CITATION = re.compile(r"protocol (\d+(?:(?:, |–| and )\d+)*)")
"""`protocol 4`, `protocol 2, 18`, `protocol 1–5`."""
PATH = re.compile(
    r"`((?:topics|proxy|consumers|analytics|polar|tests|docs|compose|examples|benchmarks)/[\w./]*)(?:::(\w+))?`"
)
FOLDERS = ("analytics", "benchmarks", "compose", "consumers", "docs", "examples", "polar", "proxy", "tests", "topics")


def rules() -> dict[int, str]:
    """The text of each rule, by number."""
    parts = HEADING.split(PROTOCOL)
    return {int(number): text for number, text in zip(parts[1::2], parts[2::2], strict=True)}


def cited(text: str) -> Iterator[int]:
    """The numbers of the rules that a text cites; a range cites both of its ends."""
    for citation in CITATION.findall(text):
        yield from map(int, re.findall(r"\d+", citation))


def citations() -> Iterator[tuple[str, int]]:
    """(file, rule) of every citation in the tree."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".py", ".md", ".yaml", ".sh"} and path != Path(__file__):
                yield from ((str(path.relative_to(ROOT)), number) for number in cited(path.read_text()))


def test_the_rules_are_numbered_without_a_gap() -> None:
    assert list(rules()) == list(range(1, len(rules()) + 1))


def test_every_cited_rule_exists() -> None:
    found = list(citations())
    assert len({path for path, _ in found}) > 40, "the citations are read"
    assert [(path, number) for path, number in found if number not in rules()] == []


def test_citations_are_recognised() -> None:
    assert list(cited("as in protocol 3; (protocol 18, 20), protocol 1–5")) == [3, 18, 20, 1, 5]


@pytest.mark.parametrize("number", rules())
def test_each_rule_names_the_module_that_keeps_it_and_the_test_that_shows_it(number: int) -> None:
    paths = [path for path, _ in PATH.findall(rules()[number])]
    assert any(not path.startswith(("tests/", "docs/")) for path in paths)
    assert any(path.startswith("tests/") for path in paths)


@pytest.mark.parametrize("page", [PROTOCOL, ARCHITECTURE], ids=["protocol", "architecture"])
def test_every_path_on_the_page_exists(page: str) -> None:
    found = PATH.findall(page)
    assert found
    assert [path for path, _ in found if not (ROOT / path).exists()] == []
    assert [f"{path}::{name}" for path, name in found if name and not defines(ROOT / path, name)] == []


def defines(path: Path, name: str) -> bool:
    """Whether a module defines a function or class of that name at its top level."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return any(isinstance(node, kinds) and node.name == name for node in ast.parse(path.read_text()).body)
