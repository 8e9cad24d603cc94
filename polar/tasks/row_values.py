"""Values of a row's fields in the form that a TaskRequest has them."""

from __future__ import annotations

import json
import re
from typing import Any

from consumers.evaluators import test_patch
from consumers.evaluators.parsers import SWEBENCH_FORMS, r2e
from polar.tasks.row_rules import HIDDEN

SHOWN_CHARS = 200
"""A longer value isn't in a report."""


def tests(value: Any) -> list[str]:
    """Names of tests, from a list or its JSON text. Raises ValueError."""
    found = json.loads(value) if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise ValueError("must be a list of names of tests, or such a list as JSON text")
    return found


def parser(name: Any) -> str:
    if name not in SWEBENCH_FORMS:
        raise ValueError(f"not a parser that Polar has; it has {', '.join(SWEBENCH_FORMS)}")
    return str(name)


def expected(value: Any) -> dict[str, str]:
    """R2E-Gym's expected statuses, with the names that its comparison makes. Raises ValueError."""
    found = json.loads(value) if isinstance(value, str) else value
    if not isinstance(found, dict):
        raise ValueError("must be statuses by names of tests")  # noqa: TRY004
    return {r2e.name_of(re.sub(r"\x1b\[\d+m", "", name)): str(status) for name, status in found.items()}


def issue(text: Any) -> Any:
    """What stands between R2E-Gym's marks, as its agents get it."""
    found = re.search(r"\[ISSUE\](.*)\[/ISSUE\]", text, re.DOTALL) if isinstance(text, str) else None
    return found[1].strip() if found else text


def paths(patch: Any) -> tuple[str, ...]:
    try:
        return test_patch.paths_of(patch) if isinstance(patch, str) else ()
    except ValueError:
        return ()


def shown(name: str, value: Any) -> Any:
    """The value of a finding; none of what is long or hidden."""
    return None if name in HIDDEN or len(str(value)) > SHOWN_CHARS else value


def size(value: Any) -> int:
    """Bytes of a value's JSON."""
    return len(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
