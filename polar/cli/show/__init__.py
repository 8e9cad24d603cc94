"""`polar show` shows what happened in one session. It reads Kafka alone.

`reading.py` finds the session's records, and `assembly.py` makes a `Story` of them (plain data, `story.py`). The other modules print it,
for people (`page.py` and its sections) or for programs (`document.py`).
"""

from polar.cli.show.command import show

__all__ = ["show"]
