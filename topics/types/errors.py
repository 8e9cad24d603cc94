"""Errors, as data and as exceptions.

`SessionError` is the value in facts and trajectories. The exceptions differ by what the caller can do:

- `InputError`: input of a person or a foreign producer is invalid; report field, value and remedy (exit code 2).
- `NotReadyError`: something needed is missing (Kafka, a program, a model); exit code 3 on the command line.
"""

from __future__ import annotations

from enum import Enum, StrEnum

import msgspec


class Kind(StrEnum):
    """The cause of an error; only `infra` errors are retried."""

    INFRA = "infra"
    AGENT = "agent"
    EVALUATION = "evaluation"
    BUDGET = "budget"
    INPUT = "input"


class SessionError(msgspec.Struct, frozen=True, omit_defaults=True):
    """Error of a session or one of its stages."""

    stage: str
    """`init`, `run`, `evaluate`, `build`, or `queue` for a session that waited for a worker."""
    kind: Kind
    code: str
    """Stable, for programs: `exit_code`, `timeout`, `lost`, `no_worker`, …"""
    message: str
    """For people: field, expected value, found value, remedy."""
    retryable: bool = False
    """Whether another attempt may succeed."""


class InputError(ValueError):
    """Invalid input. `field` is a dotted path, `value` a short repr of the input, `reason` names the remedy."""

    def __init__(self, field: str, value: object, reason: str) -> None:
        try:
            shown = repr(value.value if isinstance(value, Enum) else value)
        except RecursionError:
            shown = f"a {type(value).__name__} that is nested too deeply"
        self.field = field
        self.value = shown if len(shown) <= 120 else shown[:117] + "…"
        self.reason = reason
        super().__init__(f"{field}: {reason} (got {self.value})")

    def move_to(self, field: str) -> None:
        """Name the field by its place in a larger document, in the message as well."""
        self.args = (f"{field}{str(self).removeprefix(self.field)}",)
        self.field = field

    def __reduce__(self) -> tuple[object, ...]:
        """For pickle, also of subclasses: by default it would pass the message to a constructor that wants the field."""
        return _unpickled, (type(self), self.args), vars(self)


def _unpickled(kind: type[InputError], args: tuple[object, ...]) -> InputError:
    error = kind.__new__(kind)
    error.args = args
    return error


class NotReadyError(RuntimeError):
    """Something needed is missing; the message names it and how to get it."""


def install_command(*extras: str) -> str:
    """How to install extras of Polar, for messages. From a clone: a package of Polar's name on an index could be anyone's."""
    return f"in a clone of Polar, pip install '.[{','.join(sorted(set(extras)))}]'"
