"""Patterns of ids and names, which become parts of topic names, groups and keys. User input is checked on entry, machine input by its
first reader (`topics.events.flaw`)."""

from __future__ import annotations

TASK_ID = "[A-Za-z0-9][A-Za-z0-9_-]{0,127}"
NAME = "[a-z0-9][a-z0-9-]{0,62}"
"""Names of pools and outputs."""
RUN = TASK_ID
"""Names of runs."""
LABEL = r"[^\x00-\x1f\x7f-\x9f\u2028\u2029]{1,128}"
"""Labels of opened sessions: one line of text."""
SAMPLES_LIMIT = 1024
