"""Signatures that hold the model's reasoning, so that it survives harnesses which drop or shorten the reasoning itself.

Providers sign reasoning (Anthropic's `signature`, Google's `thoughtSignature`, OpenAI's `encrypted_content`), and clients send the
signature back verbatim. Some send nothing else: Gemini CLI, and Claude Code with `display: omitted`. The proxy's signatures hold the whole
text, so that nothing has to be looked up. They are not compressed: otherwise small signatures could unfold to gigabytes.
"""

from __future__ import annotations

import base64

PREFIX = "polar:"


def seal(reasoning: str) -> str:
    """The signature for a turn's reasoning."""
    return PREFIX + base64.b64encode(reasoning.encode()).decode()


def unseal(signature: str | None) -> str | None:
    """The reasoning in a signature; None for a signature that the proxy didn't make."""
    if signature is None or not signature.startswith(PREFIX):
        return None
    try:
        return base64.b64decode(signature[len(PREFIX) :], validate=True).decode()
    except ValueError:
        return None
