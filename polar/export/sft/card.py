"""A dataset's card: README.md beside the data, with the header that tells `datasets` which file is which split.

Pure. It has no time and no place, so equal exports have equal cards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from polar.export.sft.acceptance import Refusal, Rules
from polar.export.sft.layout import Layout
from polar.export.sft.report import Report

NO_REPOSITORY = "(none)"
NAMES = {"session_id": "string", "task_id": "string", "trace_id": "string", "repository": "string", "reward": "float64"}
MESSAGES: Mapping[str, str | list[str]] = {"messages": ["json"], "tools": ["json"], **NAMES}
TOKENS: Mapping[str, str | list[str]] = {"input_ids": ["int32"], "labels": ["int32"], **NAMES}
"""Columns with their types in `datasets`, a list's in brackets. Messages and tools have many forms, so their type is `json`; without it
`datasets` would take the form of the first rows for that of all."""
MESSAGES_DOC = "`messages` and `tools` are those of the trace's last call, with its answer, in the form of OpenAI's Chat Completions."
TOKENS_DOC = "`input_ids` are the trace's tokens, as read and sampled by the engine. `labels` has -100 for each token that isn't trained."
REASONS = {
    Refusal.UNREWARDED: "no reward",
    Refusal.REWARD: "reward below the minimum",
    Refusal.TESTS: "a named test differed, no command ran, or the reward is 0",
    Refusal.UNTRAINED: "no token is trained",
    Refusal.TOO_LONG: "a trace is too long",
    Refusal.INCOMPLETE: "a record of its messages is missing",
    Refusal.MEDIA: "images or sounds",
    Refusal.DUPLICATE: "equal conversations as an accepted session",
    Refusal.CAP: "its task has enough accepted sessions",
}
"""The meaning of each refusal, for people."""


def card(report: Report, rules: Rules, layout: Layout, seed: int) -> str:
    """The whole card."""
    return "\n".join(_lines(report, rules, layout, seed)) + "\n"


def acceptance(report: Report) -> list[tuple[str, int, int, str]]:
    """Repository, accepted and attempted sessions, and the share; the last row is the sum."""
    rows = [
        _acceptance(name or NO_REPOSITORY, report.accepted[name], report.attempted[name])
        for name in report.repositories
    ]
    return [*rows, _acceptance("total", report.accepted.total(), report.attempted.total())]


def _acceptance(name: str, accepted: int, attempted: int) -> tuple[str, int, int, str]:
    return name, accepted, attempted, f"{accepted / attempted:.1%}" if attempted else "-"


def _lines(report: Report, rules: Rules, layout: Layout, seed: int) -> Iterator[str]:
    accepted, attempted = report.accepted.total(), report.attempted.total()
    yield from ("---", "configs:", "- config_name: default", "  data_files:")
    for split in report.splits:
        yield from (f"  - split: {split}", f"    path: {split}.{layout.suffix}")
    yield from ("dataset_info:", "  features:")
    for name, kind in (MESSAGES if layout is Layout.MESSAGES else TOKENS).items():
        yield f"  - name: {name}"
        yield f"    list: {kind[0]}" if isinstance(kind, list) else f"    dtype: {kind}"
    yield from ("---", "", "# Accepted sessions of coding agents", "")
    tasks = f"{report.accepted_tasks:,} of {len(report.attempted_tasks):,} tasks have one"
    yield f"{accepted:,} of {attempted:,} sessions were accepted; {tasks}."
    yield "Written by `polar export sft`; a row is a trace of an accepted session that trains some of its tokens."
    yield MESSAGES_DOC if layout is Layout.MESSAGES else TOKENS_DOC
    yield "Rows are sorted by task, then by reward, highest first, then by sample."
    yield from ("", "## Rules", "", *(f"- {rule}" for rule in _rules(rules, report)))
    yield from ("", "## Acceptance", "")
    yield from _table(("repository", "accepted", "attempted", "share"), acceptance(report))
    if report.refused:
        yield from ("", "## Refused sessions", "")
        yield from _table(
            ("reason", "", "sessions"),
            ((f"`{one}`", REASONS[one], report.refused[one]) for one in Refusal if report.refused[one]),
        )
    yield from ("", "## Splits", "")
    yield f"A task is in one split. Each repository's tasks are divided in the same proportion, at random with the seed {seed}."
    yield ""
    yield from _table(
        ("split", "tasks", "sessions", "rows", "tokens", "trained tokens"),
        (
            (name, len(one.tasks), one.sessions, one.rows, one.tokens, one.trained_tokens)
            for name, one in report.splits.items()
        ),
    )


def _rules(rules: Rules, report: Report) -> Iterator[str]:
    yield f"The reward is at least {rules.min_reward:g}."
    if rules.tests_green:
        yield "An evaluator's command ran, no test that the task names differs from what it expects, and the reward isn't 0."
        yield (
            "Only `test_on_output` and `swebench` report tests that differ. "
            f"Accepted sessions with another reward than 1, which such tests alone don't give: {report.otherwise_rewarded:,}."
        )
    if rules.max_tokens is not None:
        yield f"No trace has more than {rules.max_tokens:,} tokens."
    if rules.per_task is not None:
        yield f"A task has at most {rules.per_task:,} accepted sessions: those with the highest reward, then the first."
    yield "No two sessions have equal conversations."


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    yield _row(columns)
    yield "|" + "---|" * len(columns)
    yield from map(_row, rows)


def _row(cells: Sequence[object]) -> str:
    shown = (f"{cell:,}" if isinstance(cell, int) else _text(str(cell)) for cell in cells)
    return f"| {' | '.join(shown)} |"


def _text(cell: str) -> str:
    """Text of a task in one cell."""
    return " ".join(cell.replace("|", "\\|").split())
