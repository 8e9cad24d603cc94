"""How the last model call of a run's claim ended: what a proxy answers to the worker whose harness has ended (protocol 34)."""

from __future__ import annotations

import msgspec

from topics.types.completion import CallError

PATH = "/polar/last-call"
"""A GET with the session's key, at the model API of any proxy."""


class LastCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """The claim's last call that has ended. Calls that the harness itself gave up don't count, except those of an engine that was down."""

    failure: CallError | None = None
    """The engine or a proxy failed, and no later call was answered. None: answered, or its request was at fault, or there was no call."""
    moved: bool = False
    """The session has come to another proxy since: an answer may have been lost with the first one."""
