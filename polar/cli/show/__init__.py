"""`polar show` prints what happened in one session: a `Story` of `polar/show/`, which reads Kafka alone.

`page.py` prints, and a module for each section says what: for people. `--format json` prints the document of `polar/show/document.py`.
"""

from polar.cli.show.command import show

__all__ = ["show"]
