"""Pause, update, resume under load: how long until the fleet is still.

    python -m benchmarks.pauses [--cycles 100] [--format table|json]

Shell harnesses talk through two proxies to the scripted engine, which takes 0.25 s a call; every other pause ends the calls under way
instead of letting them finish. Ends with an error where a harness saw one, a call was lost, or a call says another version than the
one that sampled it.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from pathlib import Path

import polar
from benchmarks import report
from benchmarks.report import Figure
from polar.fleet import InFlight
from tests.acceptance.fleet import ROLES, fleet
from tests.acceptance.roles.pausing import ENGINE, Pausing

CYCLES = 100
SAMPLES = 8
SEED = 12


def run(cycles: int = CYCLES) -> list[Figure]:
    """As `python -m benchmarks` calls it."""
    return asyncio.run(_run(cycles))


async def _run(cycles: int) -> list[Figure]:
    took: dict[InFlight, list[float]] = {"finish": [], "abort": []}
    with tempfile.TemporaryDirectory(prefix="polar-bench-") as folder:
        names = [*(f"{role}-1" for role in ROLES), "proxy-2"]
        async with fleet(Path(folder, "data"), names, *ENGINE) as system, polar.Fleet(system.settings) as controls:
            pausing = Pausing(system, controls, random.Random(SEED))
            await pausing.begin(SAMPLES)
            for number in range(cycles):
                in_flight: InFlight = "abort" if number % 2 else "finish"
                took[in_flight].append((await pausing.cycle(in_flight)).took_s)
            await pausing.end()
            calls = await pausing.check()
    figures = [
        Figure("cycles", cycles, ""),
        Figure("calls", calls, ""),
        Figure("errors, calls lost, wrong versions", 0, "", "0"),
    ]
    for in_flight, seconds in took.items():
        ranked = sorted(seconds)
        for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
            value = ranked[min(len(ranked) - 1, int(share * len(ranked)))]
            figures.append(Figure(f"time to still, {in_flight}, {name}", 1000 * value, "ms"))
    return figures


def main() -> None:
    """The command line."""
    parser = report.parser(__doc__)
    parser.add_argument("--cycles", type=int, default=CYCLES)
    asked = parser.parse_args()
    before = report.machine()
    report.show(before, {report.heading(__doc__): run(asked.cycles)}, asked.format)


if __name__ == "__main__":
    main()
