"""How the docs' consoles are read and compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.up.console import Step, differs, steps

pytestmark = pytest.mark.pure


def test_commands_and_what_they_print_are_read_with_their_places(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        'Words.\n\n```console\n$ polar status\na  1\n\n$ polar sql "SELECT 1\n> FROM b"\n```\n\n```sh\n$ no\n```\n'
    )
    assert steps(page, tmp_path) == [
        Step("page.md:4", "polar status", ["a  1", ""]),
        Step("page.md:7", 'polar sql "SELECT 1\nFROM b"', []),
    ]


@pytest.mark.parametrize(
    ("said", "printed"),
    [
        (["task  12"], "task     7\n"),
        (["intervals-477e57.0  COMPLETED  1"], "intervals-abcdef.3  COMPLETED  0.5"),
        (["first", "…", "last"], "first\nmany\nlines\nlast"),
        (["took … s"], "took about 8.5 s"),
        (["──────"], ""),
        (["rows"], "polar: reading trajectories: 0 of 12\nrows"),
        ([], "anything"),
    ],
)
def test_another_run_of_the_same_has_the_same_shape(said: list[str], printed: str) -> None:
    assert differs(said, printed) is None


@pytest.mark.parametrize(
    ("said", "printed"),
    [
        (["a COMPLETED"], "a FAILED"),
        (["one"], "one\ntwo"),
        (["one", "two"], "one"),
        (["first", "…", "last"], "first\nmany"),
        (["a b"], ""),
    ],
)
def test_what_is_not_so_is_found(said: list[str], printed: str) -> None:
    assert differs(said, printed) is not None
