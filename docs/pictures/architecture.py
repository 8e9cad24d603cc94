"""Draws docs/pictures/architecture.svg: the three floors, and which part writes and reads which topic.

Run `python docs/pictures/architecture.py > docs/pictures/architecture.svg`. Writers and readers come from the table of access rights,
`topics/contract/acl.py`, so the picture can't differ from them. `tests/test_architecture.py` compares the file with this output.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from topics.contract import acl

NAMESPACE = "polar"
LEFT, COLUMN, ROW, TOP = 190, 92, 30, 200
"""Pixels: width of the topics' names, of a column, height of a topic's lane, and where the lanes begin."""


@dataclass(frozen=True)
class Column:
    """One part of the system: what is drawn above the lanes, and the access role whose rights it has."""

    title: str
    folder: str
    role: str
    floor: str


COLUMNS = (
    Column("submit", "polar/client.py", "submitter", "roof"),
    Column("fanout", "consumers/fanout.py", "fanout", "room"),
    Column("coordinator", "consumers/coordinator/", "coordinator", "room"),
    Column("stages", "consumers/stages/", "run", "room"),
    Column("proxy", "proxy/", "proxy", "room"),
    Column("builder", "consumers/building/", "builder", "room"),
    Column("webhooks", "consumers/webhooks/", "webhooks", "room"),
    Column("analytics", "analytics/", "analytics", "room"),
    Column("trainer", "polar/trainer/, fleet/", "trainer", "roof"),
)
TOPICS = (
    "tasks",
    "events",
    "sessions",
    "stage",
    "control",
    "completions",
    "trajectories",
    "verifications",
    "webhooks",
    "fleet",
    "workers",
    "dead-letters",
)
WIDTH, HEIGHT = LEFT + COLUMN * len(COLUMNS) + 10, TOP + ROW * len(TOPICS) + 20


def operations(role: str, topic: str) -> set[str]:
    """Which of `Read` and `Write` a role may do on a topic; a prefixed right counts for the topics that begin with its name."""
    return {
        operation
        for right in acl.rights(role, NAMESPACE)
        if right.kind == "topic" and right.name.removeprefix(f"{NAMESPACE}.").partition(".")[0] == topic
        for operation in right.operations
        if operation in ("Read", "Write")
    }


def text(x: float, y: float, words: str, style: str = "", anchor: str = "middle") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" class="{style}">{escape(words)}</text>'


def lanes() -> Iterator[str]:
    """A lane for each topic: a filled dot is a writer, a ring a reader, a ringed dot both."""
    for row, topic in enumerate(TOPICS):
        y = TOP + ROW * row + ROW / 2
        yield f'<line class="lane" x1="{LEFT - 8}" x2="{WIDTH - 10}" y1="{y:g}" y2="{y:g}"/>'
        yield text(LEFT - 16, y + 4, f"{NAMESPACE}.{topic}", anchor="end")
        for number, column in enumerate(COLUMNS):
            x = LEFT + COLUMN * number + COLUMN / 2
            found = operations(column.role, topic)
            if found:
                yield f'<line class="drop" x1="{x:g}" x2="{x:g}" y1="{TOP - 8}" y2="{y:g}"/>'
            if "Read" in found:
                yield f'<circle class="reads" cx="{x:g}" cy="{y:g}" r="7"/>'
            if "Write" in found:
                yield f'<circle class="writes" cx="{x:g}" cy="{y:g}" r="3.5"/>'


def parts() -> Iterator[str]:
    """The parts above the lanes, the roof's above the rooms'."""
    for name, y in (("roof", 40), ("rooms", 110), ("ground", TOP - 18)):
        yield text(14, y + 24 if name != "ground" else y, name, "floor", "start")
    for number, column in enumerate(COLUMNS):
        x, y = LEFT + COLUMN * number, 40 if column.floor == "roof" else 110
        yield f'<rect class="{column.floor}" x="{x + 3}" y="{y}" width="{COLUMN - 6}" height="46" rx="5"/>'
        yield text(x + COLUMN / 2, y + 20, column.title, "title")
        yield text(x + COLUMN / 2, y + 36, column.folder.removeprefix("consumers/").removeprefix("polar/"), "small")
        yield f'<line class="drop" x1="{x + COLUMN / 2:g}" x2="{x + COLUMN / 2:g}" y1="{y + 46}" y2="{TOP - 8}"/>'


def picture() -> str:
    """The whole SVG."""
    style = (
        "text{font:12px sans-serif;fill:#5c6670}.title{font-weight:bold}.small{font-size:9.5px}.floor{font-style:italic}"
        ".lane{stroke:#5c6670;stroke-width:1.5}.drop{stroke:#9aa4ae;stroke-opacity:.5}"
        ".room{fill:#dbe9f6}.roof{fill:#f6e7d3}.reads{fill:#fff;stroke:#2b6cb0;stroke-width:2}.writes{fill:#c05621}"
    )
    legend = (
        '<circle class="writes" cx="200" cy="16" r="3.5"/>' + text(212, 20, "writes", anchor="start"),
        '<circle class="reads" cx="272" cy="16" r="7"/>' + text(286, 20, "reads", anchor="start"),
        text(350, 20, "parts never import one another across columns; imports and records go down", anchor="start"),
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"><style>{style}</style>'
    return "\n".join([head, *legend, *parts(), *lanes(), "</svg>"]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(picture())
