"""verl's configuration, as far as `polar.trainer.verl` reads it."""

from __future__ import annotations

from typing import Any

from polar.trainer.verl_batch import WANTED


def config(**changed: Any) -> dict[str, Any]:
    """verl's configuration with the usual value of each setting that is checked, and these changes by path with `__` for a dot."""
    made: dict[str, Any] = {}
    for path, value in {**{path: allowed[0] for path, (allowed, _) in WANTED.items()}, **changed}.items():
        *parts, name = path.replace("__", ".").split(".")
        at = made
        for part in parts:
            at = at.setdefault(part, {})
        at[name] = value
    return made
