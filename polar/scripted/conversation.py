"""Types that the scripted engine's modules share: a tool call and one turn of a conversation.

Scripts consist of turns, the template renders turns, and sampled tokens parse to a turn. Rendering an assistant turn and parsing the
tokens gives the same turn.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    arguments: str
    """Exactly the sampled string, usually JSON; it is never serialised again."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One message; only the assistant's have reasoning and calls."""

    role: str
    text: str = ""
    reasoning: str = ""
    """The assistant's reasoning before the text; empty: none."""
    calls: tuple[Call, ...] = ()
