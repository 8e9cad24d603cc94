"""Values of `${VAR}` in a Harbor task. None come from the environment of this process."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

VARIABLE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}", re.DOTALL)
EMBEDDED = re.compile(r"\$\{([^}:]+)(?::-([^}]*))?\}")
"""A variable in a header, which may have text before and after it."""


def resolved(env: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """Variables, with a value for each that is `${VAR}` as a whole. Raises ValueError."""
    return {name: _value(name, text, variables) for name, text in env.items()}


def filled(name: str, text: str, variables: Mapping[str, str]) -> str:
    """The text of the header `name`, with a value for each `${VAR}` in it. Raises ValueError."""
    return EMBEDDED.sub(partial(_variable, name, variables=variables), text)


def _value(name: str, text: str, variables: Mapping[str, str]) -> str:
    found = VARIABLE.fullmatch(text)
    return text if found is None else _variable(name, found, variables)


def _variable(name: str, found: re.Match[str], variables: Mapping[str, str]) -> str:
    value = variables.get(found[1], found[2])
    if value is None:
        raise ValueError(f"{name} needs a value for ${{{found[1]}}}; give it by --env {found[1]}")
    return value
