"""`polar why` says what a session or a task waits for, or why it ended as it did, and what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polar.cli import session_ids
from polar.cli.exits import Exit
from polar.cli.options import Data, Format, Output
from polar.cli.output import one_line, print_json, say
from topics.environment import settings
from topics.types.session import Phase

if TYPE_CHECKING:
    from polar.diagnosis.facts import Facts
    from polar.diagnosis.table import Finding

NAMED = 5
"""Most sessions that are named with a finding of a task."""


def why(
    name: Annotated[str, typer.Argument(metavar=session_ids.FIELD, help=session_ids.HELP)],
    output: Output = Format.TABLE,
    data: Data = None,
) -> None:
    """Say what a session or a task waits for, or why it ended as it did, and the way out.

    Exits with 3 if Kafka can't be read, and with 2 if no coordinator knows the task and nobody refused it.
    """
    from polar.diagnosis import reader
    from polar.diagnosis.table import diagnose

    target = session_ids.parse(name)
    found = asyncio.run(reader.read(settings.load(data), target.task_id, target.sample))
    for facts in found:
        if facts.task is not None:
            target.check(facts.task)
    diagnosed = [(facts, diagnose(facts)) for facts in found]
    if output is Format.JSON:
        print_json([_document(facts, findings) for facts, findings in diagnosed])
    else:
        _print(diagnosed)
    if (code := _exit(found)) is not None:
        raise typer.Exit(code)


def _document(facts: Facts, findings: Sequence[Finding]) -> dict[str, Any]:
    session = facts.session
    return {
        "name": facts.name,
        "phase": None if session is None else session.phase.value,
        "status": None if session is None or session.status is None else session.status.value,
        "attempt": None if session is None else session.attempt,
        "causes": [asdict(finding) for finding in findings],
    }


def _print(diagnosed: Sequence[tuple[Facts, list[Finding]]]) -> None:
    """Sessions with equal findings together: a task may have a thousand. Completed sessions of different rewards stay apart."""
    together: dict[tuple[str, ...], list[tuple[Facts, list[Finding]]]] = {}
    for facts, findings in diagnosed:
        together.setdefault((_state(facts), *map(_alike, findings)), []).append((facts, findings))
    for group in together.values():
        facts, findings = group[0]
        names = ", ".join(each.name for each, _ in group[:NAMED])
        more = f" and {len(group) - NAMED} more" if len(group) > NAMED else ""
        say(f"{names}{more}  {_state(facts)}".rstrip())
        for finding in findings:
            say(f"  {one_line(finding.sentence)}")
            say(f"  → {one_line(finding.way_out)}")
        if any(_sentences(each) != _sentences(findings) for _, each in group):
            say(f"  Details are those of {facts.name}; `polar why SESSION` gives another's.")


def _sentences(findings: Sequence[Finding]) -> list[str]:
    return [finding.sentence for finding in findings]


def _alike(finding: Finding) -> str:
    """Equal for findings that one sentence may stand for. Two sentences have the reward."""
    from polar.diagnosis.causes import Cause

    return finding.sentence if finding.cause in (Cause.COMPLETED, Cause.CALLS_UNREAD) else finding.cause


def _state(facts: Facts) -> str:
    session = facts.session
    if session is None:
        return ""
    return session.status.value if session.phase is Phase.ENDED and session.status else session.phase.value


def _exit(found: Sequence[Facts]) -> Exit | None:
    if any(facts.system.kafka is not None for facts in found):
        return Exit.NOT_READY
    unknown = [facts for facts in found if facts.task is None and not facts.letters]
    return Exit.BAD_INPUT if unknown else None
