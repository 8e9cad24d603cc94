"""What can go wrong, as data and as exceptions.

`SessionError` is the value that facts and trajectories carry: never bare text. The exceptions say what the caller can do:

- `InputError`: what a person or a foreign producer wrote cannot be used; tell them the field, the value and the way out.
- `NotReady`: something needed isn't there (Kafka, a program, a model); exit code 3 on the command line.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Kind(StrEnum):
    """Whose fault an error is; `infra` is retried, the others are not."""

    INFRA = "infra"
    AGENT = "agent"
    EVALUATION = "evaluation"
    BUDGET = "budget"
    INPUT = "input"


class SessionError(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a session, or a stage of it, did not go well."""

    stage: str
    """`init`, `run`, `evaluate`, `build`, or `queue` for a session that waited for a worker."""
    kind: Kind
    code: str
    """Stable, for programs: `exit_code`, `timeout`, `lost`, `no_worker`, …"""
    message: str
    """For people: field, expected, found, what to do."""
    retryable: bool = False
    """True where another attempt may go better."""


class InputError(ValueError):
    """Input that cannot be used. `field` is a dotted path, `value` a short repr of what came, `reason` says the way out."""

    def __init__(self, field: str, value: object, reason: str) -> None:
        shown = repr(value)
        self.field = field
        self.value = shown if len(shown) <= 120 else shown[:117] + "…"
        self.reason = reason
        super().__init__(f"{field}: {reason} (got {self.value})")


class NotReady(RuntimeError):  # noqa: N818 - a state of the world, not a fault of the caller
    """Something that the command needs isn't there; the message says what and how to get it."""
