"""`polar show`: what happened in one session, read from Kafka alone.

`reading.py` finds the session's records, `assembly.py` makes a `Story` of them (`story.py`, plain data), and the rest draws it: for
people (`page.py` and its sections) or for programs (`document.py`).
"""

from polar.cli.show.command import show

__all__ = ["show"]
