"""The nouns that the scripted engine's modules share: a tool call, and one turn of a conversation.

A `Turn` is a chat message without its wire clothes: what the template renders, what a script plays and what sampled
tokens parse back to. Rendering an assistant turn and parsing the tokens gives the same turn.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool."""

    name: str
    arguments: str
    """The very string that was sampled; JSON where the model kept to the form, never serialised anew."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One message: of the system, developer, user or tool (text only), or of the assistant."""

    role: str
    text: str = ""
    reasoning: str = ""
    """What the assistant thought before the text; empty for none."""
    calls: tuple[Call, ...] = ()
