"""Stop strings: where an answer ends early, since its text came to a string that the client named.

As with vLLM, generation ends with the token that completes the string, which is sampled and counted; the string itself is not shown.
"""

from collections.abc import Sequence
from dataclasses import replace

from polar.scripted.answer import Delta


def stop_in(deltas: Sequence[Delta], stops: Sequence[str]) -> tuple[int, str] | None:
    """How many tokens are sampled until one of the strings stands in the text, and which; None where none ever does."""
    text = ""
    for position, delta in enumerate(deltas):
        text += delta.text
        stop = next((stop for stop in stops if stop in text), None)
        if stop is not None:
            return position + 1, stop
    return None


def before(deltas: Sequence[Delta], stop: str) -> list[Delta]:
    """The deltas without the text from `stop` on; as many."""
    left = "".join(delta.text for delta in deltas).find(stop)
    shown = []
    for delta in deltas:
        piece = delta.text[: max(left, 0)]
        left -= len(piece)
        shown.append(replace(delta, text=piece))
    return shown
