"""Random sessions with messages: those of `tests/faithfulness`, whose tokens are written as messages, built by the real builder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from random import Random
from typing import Any

from consumers.builders.base import BuiltFrom
from consumers.builders.prefix_merging import PrefixMerging
from polar.export.sessions import ExportedCall, ExportedSession
from tests.faithfulness.agents import END, OPEN, served, session
from tests.faithfulness.lived import Lived, ids_of
from topics.types.completion import CallOutcome

TOOLS = [{"type": "function", "function": {"name": "shell", "description": "Run a command.", "parameters": {}}}]
IMAGE = "data:image/png;base64,AAAA"


def exported(seed: int) -> tuple[dict[str, Lived], ExportedSession]:
    """What happened by call id, and the session as an export reads it."""
    random = Random(seed)
    lived = session(random, count(1), served(random))
    trajectory = PrefixMerging().build(BuiltFrom(lived.build, lived.records, lived.disowned))
    calls = {call.call_id: call for call in lived.calls}
    records = {record.call_id: record for record in lived.records}
    return calls, ExportedSession(
        trajectory,
        [
            ExportedCall(
                call,
                [] if call.call_id not in records else [*_messages(ids_of(calls[call.call_id].prompt[:-1]))],
                _answer(calls[call.call_id]),
                TOOLS if call.kind == "main" else [],
                records.get(call.call_id),
                gap="a base is missing" if random.random() < 0.02 else None,
            )
            for call in trajectory.calls
        ],
    )


def _answer(call: Lived) -> dict[str, Any] | None:
    return _assistant(call.sampled) if call.outcome is CallOutcome.ANSWERED else None


def _messages(tokens: Sequence[int]) -> Iterator[dict[str, Any]]:
    """A prompt's messages, which end with END: the answers begin with OPEN."""
    part: list[int] = []
    for token in tokens:
        part.append(token)
        if token == END:
            yield _assistant(part[1:]) if part[0] == OPEN else _read(part)
            part = []
    if part:
        yield _read(part)


def _assistant(tokens: Sequence[int]) -> dict[str, Any]:
    """Calls a tool with every third answer, at times with arguments that aren't JSON; an answer may be without text."""
    text = " ".join(map(str, tokens))
    if sum(tokens) % 3:
        return {"role": "assistant", "content": text, "reasoning": f"because {text}"}
    arguments = text if sum(tokens) % 2 else f'{{"command": "{text}"}}'
    call = {"id": f"call-{sum(tokens)}", "type": "function", "function": {"name": "shell", "arguments": arguments}}
    return {"role": "assistant", "tool_calls": [call]}


def _read(tokens: Sequence[int]) -> dict[str, Any]:
    text = " ".join(map(str, tokens))
    match sum(tokens) % 4:
        case 0:
            return {"role": "tool", "tool_call_id": f"call-{sum(tokens)}", "content": text}
        case 1:
            part = {"type": "image_url", "image_url": {"url": IMAGE}}
            return {"role": "user", "content": [{"type": "text", "text": text}, part]}
        case 2:
            return {"role": "system", "content": text}
        case _:
            return {"role": "user", "content": text}
