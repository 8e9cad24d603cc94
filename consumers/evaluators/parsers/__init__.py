"""Names and statuses of tests, from what a test runner printed. One module for each form of output; `FORMS` names them.

The tested code prints into the same output, so it can shape all of it: reading takes linear time, raises nothing, and keeps a bounded
number of names of bounded length.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from consumers.evaluators.junit import SEVERITY
from consumers.evaluators.parsers import (
    cargo,
    go,
    jest,
    pytest,
    r2e,
    swebench,
    swebench_languages,
    tap,
    unittest,
    vitest,
)
from consumers.evaluators.parsers.output import NAME_LIMIT, Found

__all__ = ["FORMS", "NAMES_LIMIT", "NAME_LIMIT", "PYTEST", "SWEBENCH_FORMS", "statuses"]

PYTEST: Final = "pytest"
FORMS: Mapping[str, Callable[[str], Found]] = {
    PYTEST: pytest.read,
    "unittest": unittest.read,
    "go": go.read,
    "cargo": cargo.read,
    "jest": jest.read,
    "vitest": vitest.read,
    "tap": tap.read,
    "r2e": r2e.read,
}
SWEBENCH_FORMS: Mapping[str, Callable[[str], Found]] = {**swebench.FORMS, **swebench_languages.FORMS}
"""The parsers of SWE-bench, which only the evaluator `swebench` has."""
NAMES_LIMIT = 100_000
"""Names of tests kept from an output, besides the expected ones."""
_LAST_COUNTS = {PYTEST, "r2e", *SWEBENCH_FORMS}


def statuses(output: str, expected: Collection[str] = (), form: str = PYTEST) -> dict[str, str]:
    """Test name to status: of every expected name, and of NAMES_LIMIT others.

    Of a name that comes more than once the worst status counts, so that another test of the same name hides no failure. From pytest's
    output the last status counts: it prints a test that is run again each time. The same holds for R2E-Gym and SWE-bench, whose lists of
    tests were made so.
    """
    found: dict[str, str] = {}
    room = NAMES_LIMIT
    read = FORMS.get(form) or SWEBENCH_FORMS[form]
    for name, status in read(output):
        if name not in expected:
            name = name[:NAME_LIMIT]
            if name not in found and not room:
                continue
            room -= name not in found
        before = found.get(name)
        is_kept = form not in _LAST_COUNTS and before is not None and SEVERITY.index(before) > SEVERITY.index(status)
        found[name] = before if is_kept and before else status
    return found
