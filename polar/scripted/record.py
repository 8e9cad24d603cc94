"""The scripted engine's record of all sampled tokens, with which tests compare trajectories.

Each call is one JSON line, written and flushed before the last byte of its answer is sent. A call whose client disconnected is recorded as
`aborted`, with the tokens sampled until then. Without a file, the last calls are kept in memory.
"""

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal, Self

import msgspec

from polar.scripted.weights import NamedSpan

CALLS_IN_MEMORY: Final = 10_000


class Sampled(msgspec.Struct, frozen=True, kw_only=True):
    """One call that sampled tokens, or began to."""

    call: int
    """The call's number, from 1; a new process with the same file continues counting."""
    request_id: str
    """The answer's `id`."""
    session_id: str | None
    """The sample: the request's session_id, otherwise user, otherwise cache_salt."""
    model: str
    script: str | None
    """`script/variant/turn`; None for filler."""
    stream: bool
    parameters: dict[str, Any]
    """The request's other fields, as received."""
    prompt_token_ids: list[int]
    token_ids: list[int]
    """The sampled tokens, including the end of turn if it was reached."""
    logprobs: list[float]
    """float32 values, as long as `token_ids`, even if the request didn't ask for logprobs."""
    text: str
    """The text of `token_ids`, with special tokens by name."""
    finish_reason: Literal["stop", "length", "tool_calls"] | None
    """None if `outcome` is aborted."""
    outcome: Literal["completed", "aborted"]
    fault: str | None
    """The fault injected into the answer, if any; the record itself is correct."""
    weight_versions: list[NamedSpan] = []
    """Which weights sampled which of `token_ids`; empty: recorded by an older version."""


class Record:
    """An append-only list of `Sampled`, in a file or, bounded, in memory."""

    def __init__(self, file: Path | None = None) -> None:
        """Continue an existing file; an incomplete last line, left by a crash, is cut off."""
        self._path = file
        self._memory: deque[bytes] = deque(maxlen=CALLS_IN_MEMORY)
        self._last_call = 0
        self._file = None
        if file is not None:
            self._file = file.open("ab")
            self._resume(file)

    def append(self, sampled: Sampled) -> None:
        line = msgspec.json.encode(sampled) + b"\n"
        if self._file is None:
            self._memory.append(line)
        else:
            self._file.write(line)
            self._file.flush()

    def lines(self) -> Iterator[bytes]:
        """The calls' JSON lines, in the order in which the calls ended."""
        if self._path is None:
            yield from list(self._memory)
        else:
            with self._path.open("rb") as file:
                yield from file

    def calls(self, session_id: str | None = None) -> list[Sampled]:
        """The calls, or those of one session, in the order in which they ended."""
        calls = [msgspec.json.decode(line, type=Sampled) for line in self.lines()]
        return [call for call in calls if session_id is None or call.session_id == session_id]

    def next_call(self) -> int:
        self._last_call += 1
        return self._last_call

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _resume(self, path: Path) -> None:
        whole = 0
        with path.open("rb") as lines:
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                whole += len(line)
                self._last_call = max(self._last_call, msgspec.json.decode(line, type=Sampled).call)
        assert self._file is not None
        self._file.truncate(whole)
