"""Faults that the scripted engine can be told to have, each for the next `times` calls.

They stand in a queue: the first one is spent before the next begins. What is asked for over HTTP, on the command line or
by a script's turn is checked by the same types.
"""

import json
from collections import deque
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

Seconds = Annotated[float, Meta(ge=0, le=3600)]
Times = Annotated[int, Meta(ge=1, le=1_000_000)]

QUEUED_FAULTS: Final = 1000


class _Fault(msgspec.Struct, tag_field="kind", forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    times: Times = 1
    """Calls that it befalls."""


class Slow(_Fault, tag="slow"):
    """A right answer, late."""

    delay_s: Seconds = 0.0
    """Before the answer, its headers included."""
    chunk_delay_s: Seconds = 0.0
    """Before each chunk of a stream after the first."""


class Status(_Fault, tag="status"):
    """An error instead of an answer; nothing is sampled."""

    status: Annotated[int, Meta(ge=400, le=599)]
    retry_after_s: Annotated[int, Meta(ge=0, le=3600)] | None = None
    """Sent as `Retry-After`; None sends no such header."""


class Cut(_Fault, tag="cut"):
    """The connection is closed."""

    after_bytes: Annotated[int, Meta(ge=1)] | None = None
    """After so many bytes of the answer's body; None: before its headers, and nothing is sampled."""


class Garbage(_Fault, tag="garbage"):
    """An answer, status 200, that can't be used."""

    form: Literal["not_json", "no_token_ids", "length_mismatch", "nan_logprobs", "empty_choices"]


class Hang(_Fault, tag="hang"):
    """No answer, not even headers, until the client goes away; nothing is sampled."""


Fault = Slow | Status | Cut | Garbage | Hang


def kind_of(fault: Fault) -> str:
    """The fault's name in requests and records; garbage with its form."""
    name = str(type(fault).__struct_config__.tag)
    return f"{name}:{fault.form}" if isinstance(fault, Garbage) else name


class Faults:
    """The faults to come."""

    def __init__(self) -> None:
        self._queue: deque[Fault] = deque()

    def add(self, fault: Fault) -> None:
        """Raises ValueError when the queue is full."""
        if len(self._queue) >= QUEUED_FAULTS:
            raise ValueError(f"{QUEUED_FAULTS} faults are waiting already; DELETE /scripted/faults clears them")
        self._queue.append(fault)

    def take(self) -> Fault | None:
        """The fault for a call that begins now; None for a call that goes well."""
        if not self._queue:
            return None
        fault = self._queue[0]
        if fault.times > 1:
            self._queue[0] = msgspec.structs.replace(fault, times=fault.times - 1)
        else:
            self._queue.popleft()
        return fault

    def clear(self) -> None:
        """Forgets all that was asked for."""
        self._queue.clear()

    def pending(self) -> list[Fault]:
        """What is still to come, with the times that are left."""
        return list(self._queue)


def spoil(form: str, payload: dict[str, Any]) -> bytes:
    """A body, or one chunk of a stream, turned to garbage of a form."""
    if form == "not_json":
        encoded = msgspec.json.encode(payload)
        return encoded[: len(encoded) // 2]
    if form == "empty_choices":
        return msgspec.json.encode(payload | {"choices": []})
    if form == "no_token_ids":
        payload.pop("prompt_token_ids", None)
    for choice in payload["choices"]:
        content = (choice.get("logprobs") or {}).get("content") or []
        if form == "no_token_ids":
            choice.pop("token_ids", None)
        elif form == "length_mismatch":
            del content[-1:]
        elif form == "nan_logprobs":
            for entry in content:
                entry["logprob"] = float("nan")
    return json.dumps(payload).encode()  # msgspec would write null for NaN
