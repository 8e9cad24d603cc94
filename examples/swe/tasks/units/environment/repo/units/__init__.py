"""Converts between units of one kind."""

import importlib
import pkgutil

from units import kinds


def convert(value, source, target):
    """`value` in another unit. Raises ValueError for unknown units and for units of two kinds."""
    for found in pkgutil.iter_modules(kinds.__path__):
        kind = importlib.import_module(f"units.kinds.{found.name}")
        if source in kind.UNITS and target in kind.UNITS:
            return value * kind.UNITS[source] / kind.UNITS[target]
    raise ValueError(f"no way from {source!r} to {target!r}")
