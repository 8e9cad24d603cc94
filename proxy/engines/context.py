"""The length of an engine's context: the tokens that a prompt and its answer may have together.

vLLM and SGLang state it by model in `/v1/models`, as `max_model_len`.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import msgspec

from proxy.engines.http import UNREADABLE


@runtime_checkable
class StatesContext(Protocol):
    """An engine plug-in whose server may state the length. A plug-in that lacks this isn't asked."""

    async def context(self) -> int | None:
        """Tokens, 1 or more; None: the server doesn't state it. Raises EngineError if it doesn't answer."""


class _Model(msgspec.Struct):
    id: str = ""
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


_models = msgspec.json.Decoder(_Models)


def context_in(models: bytes, model: str) -> int | None:
    """The length of one model in a body of `/v1/models`; None if it isn't there."""
    try:
        listed = _models.decode(models).data
    except UNREADABLE:
        return None
    stated = next((each.max_model_len for each in listed if each.id == model), None)
    return stated if stated is not None and stated > 0 else None
