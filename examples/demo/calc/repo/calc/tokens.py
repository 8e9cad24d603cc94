"""Text to tokens: numbers, operators and parentheses."""

import re

TOKEN = re.compile(r"\s*(\d+(?:\.\d+)?|[-+*/()]|\*\*)")


def tokenize(text: str) -> list[str]:
    """The tokens in order. Raises SyntaxError where something else stands."""
    tokens = []
    place = 0
    text = text.rstrip()
    while place < len(text):
        found = TOKEN.match(text, place)
        if found is None:
            raise SyntaxError(f"no arithmetic: {text[place:]!r}")
        tokens.append(found[1])
        place = found.end()
    return tokens
