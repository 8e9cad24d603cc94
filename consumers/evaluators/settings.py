"""Reads settings that several evaluators have, from a task's `evaluator.config`. Each raises InputError for a bad value."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import PurePosixPath
from typing import TypeGuard, TypeVar

import msgspec

from consumers.evaluators.command import Command
from topics.types.errors import InputError

Config = Mapping[str, object]
S = TypeVar("S", bound=msgspec.Struct)


def refused(name: str, config: Config, reason: str) -> InputError:
    return InputError(f"evaluator.config.{name}", config.get(name), reason)


def check_names(config: Config, known: type[msgspec.Struct] | Collection[str]) -> None:
    """Raises InputError for a setting that isn't known: by the struct that describes an evaluator's settings, or by their names."""
    names = known.__struct_fields__ if isinstance(known, type) else known
    for name in config:
        if name not in names:
            raise refused(name, config, f"no such setting; there are: {', '.join(names)}")


def read(config: Config, known: type[S]) -> S:
    """A task's settings as the struct that describes them. Raises InputError for the first unknown, bad or missing one."""
    check_names(config, known)
    values: dict[str, object] = {}
    for each in msgspec.structs.fields(known):
        if each.name in config:
            try:
                values[each.name] = msgspec.convert(config[each.name], each.type)
            except msgspec.ValidationError as error:
                raise refused(each.name, config, str(error)) from None
        elif each.required:
            raise refused(each.name, config, "is needed")
    return known(**values)


def command(config: Config, name: str) -> Command:
    """The command `name`, with the setting `timeout_s`."""
    text = config.get(name)
    if not isinstance(text, str) or not text.strip() or "\0" in text:
        raise refused(name, config, "must be a command, as text")
    timeout_s = config.get("timeout_s")
    if timeout_s is None:
        return Command(name, text, None)
    if not is_number(timeout_s) or timeout_s <= 0:
        raise refused("timeout_s", config, "must be a number of seconds, more than 0")
    return Command(name, text, float(timeout_s))


def flag(config: Config, name: str, *, default: bool) -> bool:
    value = config.get(name, default)
    if not isinstance(value, bool):
        raise refused(name, config, "must be true or false")
    return value


def protected(config: Config) -> tuple[str, ...] | None:
    """The paths that `protection.Protection` puts back; None: no file is protected."""
    value = config.get("protected", [])
    if value is False:
        return None
    if isinstance(value, list) and all(_is_path(path) for path in value):
        return tuple(value)
    raise refused("protected", config, "must be false, or a list of paths relative to the workspace, without ..")


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether it is a finite number; a boolean isn't one."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that no float can hold
        return False


def _is_path(value: object) -> bool:
    return (
        isinstance(value, str)
        and "\0" not in value
        and value.strip("./") != ""
        and not value.startswith("/")
        and ".." not in PurePosixPath(value).parts
    )
