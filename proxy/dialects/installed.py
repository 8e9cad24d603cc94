"""The dialects that are installed here, ours and other packages', in the order in which they are asked whose a request is."""

from __future__ import annotations

from proxy.dialects.base import Dialect
from topics.environment import registry


def dialects() -> list[Dialect]:
    """One of each. Raises InputError for one that can't be imported.

    What no header tells apart is taken for OpenAI's, whose clients send none of their own: dialects without signs come first.
    """
    made: list[Dialect] = [
        registry.load(registry.Kind.DIALECT, name)() for name in registry.names(registry.Kind.DIALECT)
    ]
    return sorted(made, key=lambda dialect: (bool(dialect.signs), dialect.name))
