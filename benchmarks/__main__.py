"""The figures of docs/benchmarks.md.

    python -m benchmarks [--format table|json]

One benchmark after another, each in a system of its own; nothing is written outside temporary folders.
"""

from __future__ import annotations

import argparse

from benchmarks import (
    builder,
    cancelling,
    coordinator,
    growth,
    http_client,
    idle_memory,
    lake,
    lake_growth,
    lake_views,
    log_bytes,
    pauses,
    pipeline,
    proxy,
    relay,
    report,
    scaling,
    trainer,
)

BENCHMARKS = (
    proxy,
    http_client,
    relay,
    log_bytes,
    idle_memory,
    builder,
    lake,
    lake_growth,
    lake_views,
    trainer,
    coordinator,
    growth,
    scaling,
    pipeline,
    pauses,
    cancelling,
)


def main() -> None:
    """Run all and print them."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--format", choices=["table", "json"], default="table")
    layout = parser.parse_args().format
    before = report.machine()
    measured = {}
    for benchmark in BENCHMARKS:
        heading = str(benchmark.__doc__).partition("\n")[0]
        report.say(f"== {heading}")
        measured[heading] = benchmark.run()
    report.show(before, measured, layout)


if __name__ == "__main__":
    main()
