"""The names of all fields of a `task.toml`."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel

from polar.tasks.harbor_schema import Config, Package


def leaves(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[str]:
    """The dotted names of all fields; a part that is optional or repeated counts as one field, except `task`."""
    for name, field in model.model_fields.items():
        part = Package if field.annotation == Package | None else field.annotation
        if isinstance(part, type) and issubclass(part, BaseModel):
            yield from leaves(part, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"
