"""Plug-ins by name: runtimes, harnesses, evaluators, builders, dialects, engines.

A name is an entry point of the group `polar.<kind>`, of Polar or another package, or `module:Class`. Name lookups import nothing, so
`submit` can check a task on a machine that can't run it.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable
from enum import StrEnum
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from topics.types.errors import InputError

IMPORT_PATH = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")


class Kind(StrEnum):
    """Kind of plug-in; the entry-point group is `polar.<value>`."""

    RUNTIME = "runtime"
    HARNESS = "harness"
    EVALUATOR = "evaluator"
    BUILDER = "builder"
    DIALECT = "dialect"
    ENGINE = "engine"


@functools.cache
def _installed(kind: Kind) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=f"polar.{kind.value}")}


def names(kind: Kind) -> list[str]:
    return sorted(_installed(kind))


def is_known(kind: Kind, name: str) -> bool:
    """Whether `name` is installed here, or is an import path, which is only resolved where it is used.

    Any name is accepted if nothing of the kind is installed (a trainer's environment with Polar on its path); fanout checks it.
    """
    installed = _installed(kind)
    return not installed or name in installed or IMPORT_PATH.match(name) is not None


def check_name(kind: Kind, field: str, name: str) -> None:
    """Raises InputError, with the known names, for a name that `is_known` doesn't accept. `field` is where the task has it."""
    if not is_known(kind, name):
        raise _no_such(kind, field, name)


def try_out(kind: Kind, name: str, construct: Callable[[Any], object]) -> None:
    """Construct a plug-in to check its settings: its own constructor raises InputError.

    Left to the workers, which report it: plug-ins named `module:Class`, those that can't be imported here, and constructors that raise
    anything else.
    """
    if name not in names(kind):
        return
    try:
        plug_in = load(kind, name)
    except (Exception, SystemExit):
        return
    try:
        construct(plug_in)
    except InputError:
        raise
    except (Exception, SystemExit):
        return


def load(kind: Kind, name: str) -> Any:
    """The class behind a name; the caller knows its Protocol. Raises InputError, with the known names, if it can't be loaded."""
    point = _installed(kind).get(name)
    if point is None and not IMPORT_PATH.match(name):
        raise _no_such(kind, kind.value, name)
    try:
        if point is not None:
            found = point.load()
        else:
            module, _, attribute = name.partition(":")
            found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InputError(kind.value, name, f"can't be imported here: {error}") from error
    if not isinstance(found, type):
        raise InputError(kind.value, name, f"is no class: {type(found).__name__}")
    return found


def _no_such(kind: Kind, field: str, name: str) -> InputError:
    return InputError(field, name, f"no such {kind.value}; there are: {', '.join(names(kind))}, or module:Class")
