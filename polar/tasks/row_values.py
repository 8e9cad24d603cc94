"""Values of a row's fields in the form that a TaskRequest has them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from consumers.evaluators import test_patch
from consumers.evaluators.parsers import FORMS, SWEBENCH_FORMS, r2e
from polar.tasks.harbor_mapping import SHOWN_CHARS
from polar.tasks.row_rules import HIDDEN

BY_INSTANCE: Mapping[str, Mapping[str, str]] = {
    "parse_log_immutable_js": {"2006": "parse_log_jest", "2005": "parse_log_jest_json"},
    "parse_log_jekyll": {
        **dict.fromkeys(("9141", "8047", "8167"), "parse_log_minitest"),
        **dict.fromkeys(("8761", "8771"), "parse_log_cucumber"),
    },
}
"""Parsers of swebench that are others by the number of the row's pull request (swebench 5.0.2, harness/log_parsers)."""
UNREAD = {
    "parse_log_doctest": "SWE-bench reads an XML document out of what these tests print, which Polar doesn't",
    **dict.fromkeys(BY_INSTANCE, "swebench itself knows no parser for this instance"),
}
"""Reasons for missing parsers, shown in the error."""


def tests(value: Any) -> list[str]:
    """Names of tests, from a list or its JSON text. Raises ValueError."""
    found = json.loads(value) if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise ValueError("must be a list of names of tests, or such a list as JSON text")
    return found


def parser(name: Any, instance_id: Any) -> str:
    """The parser of a row's test output. Raises ValueError for one that Polar hasn't got."""
    number = str(instance_id).rpartition("-")[2]
    found = BY_INSTANCE[name].get(number, name) if name in BY_INSTANCE else name
    if found not in SWEBENCH_FORMS:
        raise ValueError(
            f"{UNREAD.get(name, 'SWE-bench reads the output of these tests with a parser of its own that Polar lacks')}; give the template "
            f"evaluator.config.test_command and a parser of {', '.join(FORMS)}, or leave the row out (--where)"
        )
    return str(found)


def expected(value: Any) -> dict[str, str]:
    """R2E-Gym's expected statuses, with the names that its comparison makes. Raises ValueError."""
    found = json.loads(value) if isinstance(value, str) else value
    if not isinstance(found, dict):
        raise ValueError("must be statuses by names of tests")  # noqa: TRY004
    return {r2e.name_of(re.sub(r"\x1b\[\d+m", "", name)): str(status) for name, status in found.items()}


def issue(text: Any) -> Any:
    """The issue between R2E-Gym's marks; R2E-Gym's agents get only this part."""
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
