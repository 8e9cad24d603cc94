"""Tool arguments as a model sampled them: any text. An export shows an object where there is one that every reader takes."""

from __future__ import annotations

from typing import Any

import msgspec

DEPTH = 100
"""Most levels of arrays and objects: far below what readers of JSON refuse."""


def parsed(sampled: str) -> dict[str, Any] | None:
    """The JSON object; None for what isn't one, holds half a character (a lone surrogate), or is nested too deeply."""
    try:
        found: object = msgspec.json.decode(sampled)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and _fits(found, DEPTH) else None


def _fits(value: object, depth: int) -> bool:
    if isinstance(value, dict):
        return depth > 0 and all(_fits(each, depth - 1) for each in value.values())
    if isinstance(value, list):
        return depth > 0 and all(_fits(each, depth - 1) for each in value)
    return True
