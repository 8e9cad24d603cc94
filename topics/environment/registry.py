"""Plug-ins by name: runtimes, harnesses, evaluators, builders, dialects, engines.

A name is an entry point of the group `polar.<kind>`, of Polar or another package, or `module:Class`. A harness can also be data: a file
NAME.toml in the folder of POLAR_PRESETS (docs/harness.md). Name lookups import nothing, so `submit` can check a task on a machine that
can't run it.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
from collections.abc import Callable
from enum import StrEnum
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from topics.types.errors import InputError

PRESETS = "POLAR_PRESETS"
"""Variable that names a folder of harnesses as data."""
PRESET_CLASS = "consumers.harnesses.data_harness:harness_class"
"""Makes a class of such a file. It is named as an entry point names a class, because this module imports no plug-ins."""
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


def _presets(kind: Kind) -> dict[str, Path]:
    """The files of harnesses that are data, by name."""
    folder = os.environ.get(PRESETS)
    if kind is not Kind.HARNESS or not folder:
        return {}
    return {path.stem: path for path in Path(folder).expanduser().absolute().glob("*.toml")}


def names(kind: Kind) -> list[str]:
    return sorted(_installed(kind).keys() | _presets(kind).keys())


def is_known(kind: Kind, name: str) -> bool:
    """Whether `name` is installed here, or is an import path, which is only resolved where it is used.

    Any name is accepted if nothing of the kind is installed (a trainer's environment with Polar on its path); fanout checks it.
    """
    return not _installed(kind) or name in names(kind) or IMPORT_PATH.match(name) is not None


def check_name(kind: Kind, field: str, name: str) -> None:
    """Raises InputError, with the known names, for a name that `is_known` doesn't accept. `field` is where the task has it."""
    if not is_known(kind, name):
        raise _no_such(kind, field, name)


def try_out(kind: Kind, name: str, construct: Callable[[Any], object]) -> None:
    """Construct a plug-in to check its settings: its own constructor raises InputError.

    Left to the workers, which report it: plug-ins named `module:Class`, those that can't be imported here, and constructors that raise
    anything else. A file that is no preset raises InputError.
    """
    if name not in names(kind):
        return
    try:
        plug_in = load(kind, name)
    except (Exception, SystemExit):
        if name in _presets(kind):
            raise
        return
    try:
        construct(plug_in)
    except InputError:
        raise
    except (Exception, SystemExit):
        return


def load(kind: Kind, name: str) -> Any:
    """The class behind a name; the caller knows its Protocol. Raises InputError, with the known names, if it can't be loaded."""
    point, preset = _installed(kind).get(name), _presets(kind).get(name)
    if preset is not None:
        if point is not None:
            raise InputError(kind.value, name, f"is installed, and {preset} has the same name; rename the file")
        return _import_path(PRESET_CLASS)(preset)
    if point is None and not IMPORT_PATH.match(name):
        raise _no_such(kind, kind.value, name)
    try:
        found = _import_path(name) if point is None else point.load()
    except (ImportError, AttributeError) as error:
        raise InputError(kind.value, name, f"can't be imported here: {error}") from error
    if not isinstance(found, type):
        raise InputError(kind.value, name, f"is no class: {type(found).__name__}")
    return found


def _import_path(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _no_such(kind: Kind, field: str, name: str) -> InputError:
    own = f", NAME.toml in the folder of {PRESETS}" if kind is Kind.HARNESS else ""
    return InputError(field, name, f"no such {kind.value}; there are: {', '.join(names(kind))}{own}, or module:Class")
