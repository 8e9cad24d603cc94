"""Server-sent events by the rules of the HTML standard, which is all that a client goes by: a line break within an event ends its field."""

from __future__ import annotations

import json
import re
from typing import Any


def events_of(stream: bytes) -> list[tuple[str | None, str]]:
    """Name and data of each event. Fails where anything stands that is no field."""
    *events, rest = stream.decode().split("\n\n")
    assert rest == "", "the last event ends"
    found = []
    for event in events:
        fields: list[tuple[str, str]] = []
        for line in re.split(r"\r\n|\r|\n", event):
            name, _, value = line.partition(": ")
            assert name in ("event", "data"), line
            fields.append((name, value))
        names = [value for name, value in fields if name == "event"]
        found.append((names[0] if names else None, "\n".join(value for name, value in fields if name == "data")))
    return found


def payloads_of(stream: bytes) -> list[Any]:
    """What the events hold, without OpenAI's last word."""
    return [json.loads(data) for _, data in events_of(stream) if data != "[DONE]"]
