"""Faults that a test injects into the scripted engine, each for the next `times` calls.

Faults wait in a queue: the first one is used up before the next begins. The same types validate faults from HTTP, the command line and
scripts.
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
    """Number of calls that get the fault."""


class Slow(_Fault, tag="slow"):
    """A correct answer, late."""

    delay_s: Seconds = 0.0
    """Before the answer's headers."""
    chunk_delay_s: Seconds = 0.0
    """Before each chunk of a stream after the first."""


class Status(_Fault, tag="status"):
    """An error instead of an answer; nothing is sampled."""

    status: Annotated[int, Meta(ge=400, le=599)]
    retry_after_s: Annotated[int, Meta(ge=0, le=3600)] | None = None
    """Sent as `Retry-After`; None sends no such header."""
    message: str | None = None
    """The error's message; None: that it was injected."""


class Cut(_Fault, tag="cut"):
    """The connection is closed."""

    after_bytes: Annotated[int, Meta(ge=1)] | None = None
    """After this many bytes of the body; None: before the headers, and nothing is sampled."""


class Garbage(_Fault, tag="garbage"):
    """An unusable answer with status 200."""

    form: Literal["not_json", "no_token_ids", "length_mismatch", "nan_logprobs", "empty_choices", "longer_prompt"]
    """`longer_prompt`: the usage counts one more token than the prompt has, as if something had been added on the way."""


class Hang(_Fault, tag="hang"):
    """No answer, not even headers, until the client goes away; nothing is sampled."""


Fault = Slow | Status | Cut | Garbage | Hang


def kind_of(fault: Fault) -> str:
    """The fault's name in requests and records; for garbage with its form."""
    name = str(type(fault).__struct_config__.tag)
    return f"{name}:{fault.form}" if isinstance(fault, Garbage) else name


class Faults:
    def __init__(self) -> None:
        self._queue: deque[Fault] = deque()

    def add(self, fault: Fault) -> None:
        """Append a fault. Raises ValueError if the queue is full."""
        if len(self._queue) >= QUEUED_FAULTS:
            raise ValueError(f"{QUEUED_FAULTS} faults are waiting already; DELETE /scripted/faults clears them")
        self._queue.append(fault)

    def take(self) -> Fault | None:
        """The fault of a call that begins now; None: no fault."""
        if not self._queue:
            return None
        fault = self._queue[0]
        if fault.times > 1:
            self._queue[0] = msgspec.structs.replace(fault, times=fault.times - 1)
        else:
            self._queue.popleft()
        return fault

    def clear(self) -> None:
        self._queue.clear()

    def pending(self) -> list[Fault]:
        return list(self._queue)


def spoil(form: str, payload: dict[str, Any]) -> bytes:
    """A body, or one chunk of a stream, made unusable in the given form."""
    if form == "not_json":
        encoded = msgspec.json.encode(payload)
        return encoded[: len(encoded) // 2]
    if form == "empty_choices":
        return msgspec.json.encode(payload | {"choices": []})
    if form == "longer_prompt" and payload.get("usage"):
        payload["usage"]["prompt_tokens"] += 1
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
