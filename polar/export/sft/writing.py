"""Writes a dataset's folder: a file for each split, then the card.

Files are written as drafts and renamed when all are whole, the card last: a folder without a card is no whole dataset. An interrupted
export leaves drafts alone, and the same command writes the folder anew; of the same sessions it makes the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from analytics.queries.query import Reader
from polar.export import sessions
from polar.export.drafts import DRAFT, draft
from polar.export.sessions import Finished
from polar.export.sft import acceptance, splits
from polar.export.sft.acceptance import Acceptance, Rules
from polar.export.sft.card import card
from polar.export.sft.examples import examples
from polar.export.sft.formats import RowFile, opened
from polar.export.sft.layout import Layout
from polar.export.sft.report import Report, SplitCount
from polar.export.sft.splits import Shares
from topics.types.errors import InputError

CARD = "README.md"


def export(
    reader: Reader,
    finished: Sequence[Finished],
    folder: Path,
    layout: Layout,
    rules: Rules,
    shares: Shares,
    seed: int,
    on_progress: Callable[[int, int], None] = lambda *_: None,
) -> Report:
    """Write the dataset of these sessions; `on_progress` gets the number of sessions read and their total.

    Raises InputError for a folder that holds anything else, OSError if a file can't be written, and as `Reader.ask`.
    """
    files = {split: folder / f"{split}.{layout.suffix}" for split in shares}
    _prepare(folder, [path.name for path in files.values()])
    report = Report(splits={split: SplitCount() for split in shares})
    candidates = []
    for one in finished:
        if (reason := acceptance.refused_unread(one, rules)) is None:
            candidates.append(one)
        else:
            report.refuse(one, reason)
    split_of = splits.assign({one.task_id: one.repository for one in finished}, shares, seed)
    writers: dict[str, RowFile] = {}
    try:
        for split, path in files.items():
            writers[split] = opened(draft(path), layout)
        accepting = Acceptance(rules)
        ordered = acceptance.in_order(candidates)
        for number, (one, session) in enumerate(zip(ordered, sessions.read(reader, ordered), strict=True), 1):
            rows = examples(one, session)
            if (reason := accepting.refused(one.task_id, rows)) is None:
                split = split_of[one.task_id]
                report.accept(one, split, rows)
                for row in rows:
                    writers[split].add(row)
            else:
                report.refuse(one, reason)
            on_progress(number, len(ordered))
    finally:
        for writer in writers.values():
            writer.close()
    (folder / CARD).unlink(missing_ok=True)
    for path in files.values():
        draft(path).replace(path)
    draft(folder / CARD).write_text(card(report, rules, layout, seed))
    draft(folder / CARD).replace(folder / CARD)
    return report


def _prepare(folder: Path, names: Sequence[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    own = {name + end for name in (*names, CARD) for end in ("", DRAFT)}
    if others := sorted({path.name for path in folder.iterdir()} - own):
        reason = f"it holds {others[0]}, which this export doesn't write; name a new folder"
        raise InputError("--out", str(folder), reason)
