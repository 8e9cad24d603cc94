"""What the parts of a TaskRequest have in common: their strictness, and the types of arguments, variables and URLs."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints

ARGUMENT_LIMIT = 128_000
"""Bytes of one argument or variable, with room for its name: Linux allows 131,072."""


def _fits(value: str) -> str:
    if "\0" in value:
        raise ValueError("holds a zero byte, which no program argument can hold")
    size = len(value.encode(errors="replace"))
    if size > ARGUMENT_LIMIT:
        raise ValueError(f"{size} bytes; at most {ARGUMENT_LIMIT}: put what is longer into a file (runtime.prepare)")
    return value


Argument = Annotated[str, AfterValidator(_fits)]
Environment = dict[Annotated[str, StringConstraints(pattern=r"^[^=\x00]{1,255}$")], Argument]


def is_http_url(value: str) -> bool:
    """Whether `value` is an http or https URL with a host."""
    try:
        parts = urlsplit(value)
        is_base = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False
    return is_base and value.isascii() and not any(c.isspace() for c in value)


class Part(BaseModel):
    """Base of all parts: frozen, and an unknown field is an error that names it.

    Defaults are validated, so a default that is written out and one that is omitted give equal bytes (600 and 600.0).
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, ser_json_inf_nan="constants")
