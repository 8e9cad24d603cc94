"""`python -m polar.scripted`: serves the scripted engine until SIGTERM or Ctrl-C.

Exit codes: 0 stopped, 2 bad input, 3 the port isn't available.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

import msgspec
import uvloop

from polar.scripted import scripts
from polar.scripted.app import VERSION, WHAT_IT_IS, running
from polar.scripted.drift import Drift
from polar.scripted.engine import DEFAULT_CONTEXT, DEFAULT_MODEL, Engine
from polar.scripted.faults import Fault
from polar.scripted.record import Record
from topics.types.completion import ReplayField


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the engine with command line arguments; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        record = Record(options.record)
        engine = Engine(
            scripts.load(options.scripts),
            seed=options.seed,
            model=options.model,
            max_model_len=options.max_model_len,
            record=record,
            drifts=frozenset(options.drifts),
            returns=frozenset(options.returns),
        )
    except (scripts.ScriptError, OSError, msgspec.DecodeError) as error:
        sys.stderr.write(f"polar scripted engine: {error}\n")
        return 2
    for fault in options.faults:
        engine.faults.add(fault)
    with record:
        try:
            uvloop.run(serve(engine, options.host, options.port, options.ready_file))
        except OSError as error:
            sys.stderr.write(f"polar scripted engine: {options.host}:{options.port}: {error}\n")
            return 3
    return 0


async def serve(engine: Engine, host: str, port: int, ready_file: Path | None) -> None:
    """Serve until SIGTERM or SIGINT. `{"url", "pid"}` is written to `ready_file` once the engine serves."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with running(engine, host, port) as url:
        sys.stderr.write(f"polar-scripted {VERSION} on {url}: {WHAT_IT_IS}. Model {engine.model!r}.\n")
        if ready_file is not None:
            _write_ready(ready_file, url)
        await stop.wait()


def _write_ready(file: Path, url: str) -> None:
    """Write the file atomically: a waiting reader must never see a part of it."""
    unfinished = file.with_name(f"{file.name}.{os.getpid()}")
    unfinished.write_text(json.dumps({"url": url, "pid": os.getpid()}) + "\n")
    unfinished.rename(file)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m polar.scripted", description=f"Serves {WHAT_IT_IS}.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=_whole(0, 65_535), default=0, help="default: 0, any free port")
    parser.add_argument("--ready-file", type=Path, help="written once the engine serves: its URL and process id")
    parser.add_argument("--model", default=DEFAULT_MODEL, help="the model's name (default: %(default)s)")
    parser.add_argument("--max-model-len", type=_whole(16, 2**24), default=DEFAULT_CONTEXT, metavar="TOKENS")
    parser.add_argument("--seed", type=_whole(0, 2**63 - 1), default=0)
    parser.add_argument(
        "--scripts", type=Path, action="append", default=[], help="a file or folder of scripts; may be repeated"
    )
    parser.add_argument("--record", type=Path, metavar="FILE", help="record of all sampled tokens, in JSON lines")
    parser.add_argument(
        "--drift",
        type=Drift,
        choices=list(Drift),
        action="append",
        default=[],
        dest="drifts",
        help="render earlier answers differently from how they were sampled; may be repeated",
    )
    parser.add_argument(
        "--return",
        choices=get_args(ReplayField),
        action="append",
        default=[],
        dest="returns",
        help="return this with the tokens of /inference/v1/generate; may be repeated",
    )
    parser.add_argument(
        "--fault",
        type=_fault,
        action="append",
        default=[],
        dest="faults",
        metavar="JSON",
        help='e.g. {"kind": "status", "status": 503, "times": 2}; may be repeated',
    )
    return parser


def _whole(least: int, most: int) -> Callable[[str], int]:
    """An argument type for integers from `least` to `most`."""

    def read(text: str) -> int:
        if text.isdecimal() and least <= int(text) <= most:
            return int(text)
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer from {least} to {most}")

    return read


def _fault(text: str) -> Fault:
    try:
        fault: Fault = msgspec.json.decode(text, type=Fault)
    except msgspec.DecodeError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error
    return fault


if __name__ == "__main__":
    sys.exit(main())
