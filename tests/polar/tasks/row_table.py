"""The table of rows' fields in docs/task_sets.md."""

from __future__ import annotations

from collections.abc import Iterator

from polar.tasks.harbor_rules import Outcome
from polar.tasks.row_rules import FIELDS


def table() -> Iterator[str]:
    """A line for each field and rule, with the formats that have it."""
    yield "| field | formats | outcome | becomes, or why | template's field in its place |"
    yield "|---|---|---|---|---|"
    formats: dict[tuple[str, str], list[str]] = {}
    for row_format, rules in FIELDS.items():
        for name, rule in rules.items():
            becomes = f"`{rule.becomes}`" if rule.outcome is Outcome.CARRIED else rule.becomes
            replaced_by = ", ".join(f"`{field}`" for field in rule.replaced_by)
            formats.setdefault((name, f"{rule.outcome} | {becomes} | {replaced_by}"), []).append(row_format.value)
    for (name, end), found in formats.items():
        yield f"| `{name}` | {', '.join(found)} | {end} |"
