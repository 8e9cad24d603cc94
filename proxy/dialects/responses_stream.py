"""The events of a streamed response: each item is added, sent piece by piece, and done. Together they hold what the body holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from proxy.dialects.codec import event

Event = dict[str, Any]
PIECES = {
    "function_call": ("arguments", "response.function_call_arguments"),
    "custom_tool_call": ("input", "response.custom_tool_call_input"),
}
"""The streamed field of a call's item, and the prefix of its events' names; calls of other tools are sent whole."""


def stream(begun: Event, items: Sequence[Event], ended: Event) -> bytes:
    """All events of a response; `begun` is the response before its first item, `ended` after the last."""
    events: list[Event] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
    ]
    for index, item in enumerate(items):
        events += _of_item(item, index)
    events.append({"type": f"response.{ended['status']}", "response": ended})
    return b"".join(event(each | {"sequence_number": at}, each["type"]) for at, each in enumerate(events))


def _of_item(item: Event, index: int) -> Iterator[Event]:
    place = {"item_id": item["id"], "output_index": index}
    empty: Event = {}
    pieces: Iterator[Event] = iter(())
    match item["type"]:
        case "reasoning":
            empty, pieces = {"summary": []}, _reasoning(item, place)
        case "message":
            empty, pieces = {"content": []}, _message(item, place)
        case kind if kind in PIECES:
            field, name = PIECES[kind]
            empty, pieces = {field: ""}, _text(name, field, item[field], place)
    status = {"status": "in_progress"} if "status" in item else {}
    yield {"type": "response.output_item.added", "output_index": index, "item": item | empty | status}
    yield from pieces
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _text(name: str, field: str, text: str, place: Event) -> Iterator[Event]:
    if text:
        yield {"type": f"{name}.delta", "delta": text} | place
    yield {"type": f"{name}.done", field: text} | place


def _reasoning(item: Event, place: Event) -> Iterator[Event]:
    for at, part in enumerate(item["summary"]):
        here = place | {"summary_index": at}
        yield {"type": "response.reasoning_summary_part.added", "part": part | {"text": ""}} | here
        yield from _text("response.reasoning_summary_text", "text", part["text"], here)
        yield {"type": "response.reasoning_summary_part.done", "part": part} | here


def _message(item: Event, place: Event) -> Iterator[Event]:
    for at, part in enumerate(item["content"]):
        here = place | {"content_index": at}
        yield {"type": "response.content_part.added", "part": part | {"text": ""}} | here
        yield from _text("response.output_text", "text", part["text"], here | {"logprobs": []})
        yield {"type": "response.content_part.done", "part": part} | here
