"""How every benchmark says what it measured: a table for people, JSON for programs; what happens meanwhile goes to standard error."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass

import psutil


@dataclass(frozen=True)
class Figure:
    """One value of one run."""

    name: str
    value: float
    unit: str
    wanted: str = ""
    """What the project asks of it, if anything."""


def main(title: str | None, measure: Callable[[], list[Figure]]) -> None:
    """Run a benchmark from the command line; `title` is its module's docstring, whose first line heads the table."""
    layout = parser(title).parse_args().format
    before = machine()
    show(before, {heading(title): measure()}, layout)


def heading(title: str | None) -> str:
    """The first line of a module's docstring."""
    assert title is not None
    return title.partition("\n")[0]


def parser(title: str | None) -> argparse.ArgumentParser:
    """What every benchmark takes on the command line."""
    made = argparse.ArgumentParser(description=heading(title))
    made.add_argument("--format", choices=["table", "json"], default="table")
    return made


def show(machine: dict[str, str], measured: dict[str, list[Figure]], layout: str) -> None:
    """Print figures by heading, with the machine that they are of."""
    if layout == "json":
        results = {heading: [asdict(figure) for figure in figures] for heading, figures in measured.items()}
        print(json.dumps({"machine": machine, "results": results}, indent=2))
        return
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    for heading, figures in measured.items():
        print(f"\n{heading}")
        width = max(len(figure.name) for figure in figures)
        for figure in figures:
            wanted = f"   wanted {figure.wanted}" if figure.wanted else ""
            print(f"  {figure.name:{width}} {number(figure.value):>12} {figure.unit}{wanted}")


def number(value: float) -> str:
    """Whole from a hundred on, else with two decimals."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.2f}"


def machine() -> dict[str, str]:
    """What the figures depend on; the load is of now: ask before measuring."""
    return {
        "cores": str(os.cpu_count()),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "load before": f"{os.getloadavg()[0]:.1f}",
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def say(line: str) -> None:
    """A word on what is going on."""
    print(line, file=sys.stderr, flush=True)
