"""Messages and pages advise no command that could install somebody else's package."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("analytics", "benchmarks", "compose", "consumers", "docs", "examples", "polar", "proxy", "topics")
PLACES = ("*.md", *(f"{folder}/**/*.{kind}" for folder in FOLDERS for kind in ("py", "md", "yml", "sh")))
FROM_AN_INDEX = re.compile(r"(?:pip|uv|pipx) [^`\n]*\binstall\b[^`\n]*[ '\"=](?:polar|polar-rollouts)(?![\w/.-])")


def test_nobody_is_told_to_install_polar_from_an_index() -> None:
    """No index has it from us, so a package of that name could be anyone's."""
    told = [
        f"{path.relative_to(ROOT)}: {found[0]}"
        for place in PLACES
        for path in ROOT.glob(place)
        for found in FROM_AN_INDEX.finditer(path.read_text())
    ]
    assert told == []


@pytest.mark.parametrize(
    "advice", ["pip install 'polar-rollouts[npm]'", "pip install polar", "uv pip install polar-rollouts"]
)
def test_such_advice_would_be_found(advice: str) -> None:
    assert FROM_AN_INDEX.search(f"it is missing: {advice}")
