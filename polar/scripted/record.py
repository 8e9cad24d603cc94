"""The scripted engine's own record of all that it sampled: what tests hold other parts' books against.

A JSON line a call, in the file (flushed) before the last byte of its answer is sent. A call whose client hung up is
there too, as `aborted`, with the tokens that had been sampled. With no file the last calls are kept in memory.
"""

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal, Self

import msgspec

from polar.scripted.weights import NamedSpan

CALLS_IN_MEMORY: Final = 10_000


class Sampled(msgspec.Struct, frozen=True, kw_only=True):
    """One call that sampled, or began to."""

    call: int
    """Number of the call in this engine's life, from 1; a new process with the same file goes on counting."""
    request_id: str
    """The answer's `id`."""
    session_id: str | None
    """What told this sample from others: the request's session_id, else user, else cache_salt."""
    model: str
    script: str | None
    """`script/variant/turn`; None for filler."""
    stream: bool
    parameters: dict[str, Any]
    """The request's other fields, as they came."""
    prompt_token_ids: list[int]
    token_ids: list[int]
    """Sampled, the end of turn included where it was reached."""
    logprobs: list[float]
    """float32 values, as long as `token_ids`, for every call, whether asked for or not."""
    text: str
    """All of `token_ids` as text, special tokens by their names."""
    finish_reason: Literal["stop", "length", "tool_calls"] | None
    """None where `outcome` is aborted."""
    outcome: Literal["completed", "aborted"]
    fault: str | None
    """The fault that befell the answer, if any; what is recorded is right even so."""
    weight_versions: list[NamedSpan] = []
    """Which weights sampled which of `token_ids`, told in the answer or not; empty: from before this was kept."""


class Record:
    """An append-only list of `Sampled`, in a file or, bounded, in memory."""

    def __init__(self, file: Path | None = None) -> None:
        """Goes on with a file that is there already; a last line that a crash has torn is cut off."""
        self._path = file
        self._memory: deque[bytes] = deque(maxlen=CALLS_IN_MEMORY)
        self._last_call = 0
        self._file = None
        if file is not None:
            self._file = file.open("ab")
            self._resume(file)

    def append(self, sampled: Sampled) -> None:
        """Writes and flushes one call."""
        line = msgspec.json.encode(sampled) + b"\n"
        if self._file is None:
            self._memory.append(line)
        else:
            self._file.write(line)
            self._file.flush()

    def lines(self) -> Iterator[bytes]:
        """The calls in the order in which they ended, each as its JSON line."""
        if self._path is None:
            yield from list(self._memory)
        else:
            with self._path.open("rb") as file:
                yield from file

    def calls(self, session_id: str | None = None) -> list[Sampled]:
        """The calls in the order in which they ended; of one session, if it is given."""
        calls = [msgspec.json.decode(line, type=Sampled) for line in self.lines()]
        return [call for call in calls if session_id is None or call.session_id == session_id]

    def next_call(self) -> int:
        """A new call's number."""
        self._last_call += 1
        return self._last_call

    def close(self) -> None:
        """Closes the file."""
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
