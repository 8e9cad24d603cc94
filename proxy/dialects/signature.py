"""Reasoning in its signature: what a harness echoes of a thought, though it drops or shortens the thought itself.

Providers sign reasoning (Anthropic's `signature`, Google's `thoughtSignature`, OpenAI's `encrypted_content`) and clients send the
signature back verbatim; some, like Gemini CLI and Claude Code with `display: omitted`, send nothing else of it. Ours holds the text, so
that the model reads again what it thought, with nothing to look up. It is not compressed: a request of small signatures that unfold to
gigabytes would be anyone's to make.
"""

from __future__ import annotations

import base64
import binascii

PREFIX = "polar:"


def seal(reasoning: str) -> str:
    """The signature of a thought."""
    return PREFIX + base64.b64encode(reasoning.encode()).decode()


def unseal(signature: str | None) -> str | None:
    """The thought of a signature; None for one that isn't ours."""
    if signature is None or not signature.startswith(PREFIX):
        return None
    try:
        return base64.b64decode(signature[len(PREFIX) :], validate=True).decode()
    except (binascii.Error, ValueError):
        return None
