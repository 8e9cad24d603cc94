"""Runs the tasks of this folder with two real harnesses, and prints the rewards of each task and harness as a table.

    python -m examples.swe [--data DIR] [--task NAME …] [--harness NAME …] [--samples N] [--engine URL --model NAME]

Without --engine the scripted engine answers (`scripts.py`): sample 0 of each task applies the reference solution, sample 1 does nothing,
and sample 2 breaks a test, so the rewards are 1 0 0. Everything is done by commands that anyone has: `polar up`, `polar tasks import`,
`polar submit`, `polar trajectories`. Exit code 0: all rewards are there, and with the scripted engine they are 1 0 0.
"""

from __future__ import annotations

import argparse
import json
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import yaml

from examples.grpo_tiny.programs import Program, ProgramError, beside, follow
from examples.swe.scripts import TASKS, TOOLS, VARIANTS, scripts

TEMPLATE = Path(__file__).with_name("host.yaml")
NAMES = sorted(folder.name for folder in TASKS.iterdir())
SCRIPTED = [1.0, 0.0, 0.0]
"""The rewards that the variants mean."""
LOOK_S = 0.1
START_S = 300.0
"""`polar up` itself has shorter deadlines for its parts."""


def main() -> int:
    """Run the tasks; the exit code."""
    options = arguments()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupted)
    options.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    run = secrets.token_hex(3)
    tasks = [task for harness in options.harness for task in imported(options, harness, run)]
    file = options.data / "swe-tasks.jsonl"
    file.write_text("".join(f"{json.dumps(task)}\n" for task in tasks))
    with system(options) as check:
        polar("submit", str(file), "--wait", "--data", str(options.data), check=check)
        named = [argument for task in tasks for argument in ("--task", task["task_id"])]
        lines = output("trajectories", *named, "--format", "jsonl", "--data", str(options.data))
    rewards = rewards_of(map(json.loads, lines.splitlines()), options.task, options.harness, run)
    print(table(rewards, options.harness))
    every = [reward for row in rewards.values() for samples in row for reward in samples]
    if len(every) != len(tasks) * options.samples or None in every:
        print(f"swe: {every.count(None)} sessions have no reward; `polar show` tells why")
        return 1
    if options.engine is None and any(
        samples != SCRIPTED[: options.samples] for row in rewards.values() for samples in row
    ):
        print(f"swe: the scripts mean the rewards {SCRIPTED[: options.samples]} for each task and harness")
        return 1
    return 0


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.swe", description=__doc__.partition("\n")[0] if __doc__ else None
    )
    parser.add_argument("--data", type=Path, default=Path(".polar-swe"), help="data folder; default: .polar-swe")
    parser.add_argument("--task", action="append", choices=NAMES, metavar="NAME", help="only this task; repeatable")
    parser.add_argument(
        "--harness", action="append", metavar="NAME", help=f"default: {' and '.join(TOOLS)}; repeatable"
    )
    parser.add_argument("--samples", type=int, help=f"of each task and harness; default: {len(VARIANTS)}")
    parser.add_argument("--engine", metavar="URL", help="a vLLM in place of the scripted engine")
    parser.add_argument("--model", metavar="NAME", help="its model, where it serves several")
    options = parser.parse_args()
    options.task = options.task or NAMES
    options.harness = options.harness or list(TOOLS)
    options.samples = options.samples or len(VARIANTS)
    if options.engine is None and (unknown := set(options.harness) - TOOLS.keys()):
        parser.error(
            f"--harness {min(unknown)}: the scripts know the tools of {' and '.join(TOOLS)} alone; give --engine URL"
        )
    if options.engine is None and options.samples > len(VARIANTS):
        parser.error(f"--samples {options.samples}: the scripts have {len(VARIANTS)} variants of each task")
    return options


def imported(options: argparse.Namespace, harness: str, run: str) -> list[dict[str, Any]]:
    """The tasks for one harness, under ids of this run: `polar submit` answers an id's second submission with the first one's end."""
    file = options.data / f"swe-{harness}.jsonl"
    polar("tasks", "import", str(TASKS), "--template", str(TEMPLATE), "--harness", harness, "--out", str(file))
    tasks = [json.loads(line) for line in file.read_text().splitlines()]
    return [
        {**task, "task_id": task_id(task["task_id"], harness, run), "num_samples": options.samples}
        for task in tasks
        if task["task_id"] in options.task
    ]


def task_id(name: str, harness: str, run: str) -> str:
    """The id of a task of this run."""
    return f"{name}-{harness}-{run}"


@contextmanager
def system(options: argparse.Namespace) -> Iterator[Callable[[], None]]:
    """`polar up`, until the block's end. Yields a check that raises ProgramError once it has ended.

    Raises ProgramError if it doesn't come up.
    """
    ready = options.data / "swe.ready"
    ready.unlink(missing_ok=True)
    up = ["up", "--data", str(options.data), "--ready-file", str(ready)]
    if options.engine is None:
        file = options.data / "swe-scripts.yaml"
        documents = [script for name in options.task for script in scripts(TASKS / name)]
        file.write_text(yaml.safe_dump_all(documents, allow_unicode=True, sort_keys=False))
        up += ["--scripts", str(file)]
    else:
        up += ["--engine", options.engine, *(("--model", options.model) if options.model else ())]
    with beside(Program(sys.executable, "polar.cli", tuple(up)), sys.stdout.fileno()) as process:

        def check() -> None:
            if process.poll() is not None:
                raise ProgramError(f"polar up has ended with exit code {process.returncode}; its output is above")

        late = time.monotonic() + START_S
        while not ready.exists():
            check()
            if time.monotonic() > late:
                raise ProgramError(f"polar up isn't ready after {START_S:g} s; its output is above")
            time.sleep(LOOK_S)
        yield check


def polar(*words: str, check: Callable[[], None] = lambda: None) -> None:
    """A command that ends by itself, with what it prints. Raises ProgramError, and what `check` raises while it runs."""
    follow(Program(sys.executable, "polar.cli", words), print, check)


def output(*words: str) -> str:
    """What a command prints. Raises CalledProcessError."""
    command = [sys.executable, "-m", "polar.cli", *words]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def rewards_of(
    trajectories: Iterable[dict[str, Any]], tasks: Sequence[str], harnesses: Sequence[str], run: str
) -> dict[str, list[list[float | None]]]:
    """By task, for each harness the rewards of its samples in their order."""
    found = {(one["task_id"], one["sample_index"]): one["reward"] for one in trajectories}
    return {
        name: [[found[key] for key in sorted(found) if key[0] == task_id(name, harness, run)] for harness in harnesses]
        for name in tasks
    }


def table(rewards: dict[str, list[list[float | None]]], harnesses: Sequence[str]) -> str:
    """A row for each task, a column for each harness: the rewards of its samples, `–` for none."""
    rows = [["task", *harnesses]]
    for name, row in rewards.items():
        rows.append([name, *(" ".join("–" if one is None else f"{one:g}" for one in samples) for samples in row)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "─" * max(map(len, lines)), *lines[1:]])


def _interrupted(number: int, _: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt(number)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ProgramError as error:
        sys.exit(f"swe: {error}")
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
    except KeyboardInterrupt:
        sys.exit("swe: interrupted; everything is stopped")
