"""What ids and names look like: they become parts of topics' names, of groups' and of keys. People's are held to it where they enter,
machines' by whoever first acts on them (`topics.events.flaw`)."""

from __future__ import annotations

TASK_ID = "[A-Za-z0-9][A-Za-z0-9_-]{0,127}"
NAME = "[a-z0-9][a-z0-9-]{0,62}"
"""Of pools and of outputs."""
SAMPLES_LIMIT = 1024
