"""The main job, whole: a real agent mends a real repository, its every token goes over Kafka, exact trajectories come out.

Starts `polar up` on a data folder, submits the tasks that lie beside this file, shows what came out, and stops everything again; the
data stays. Without --engine the scripted engine plays the `script.yaml` beside each task. All that it does is done by the commands
that anyone has: `polar up`, `polar submit`, `polar trajectories`.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

import yaml

from polar.embedded import leash, lock

TASKS = sorted(Path(__file__).parent.glob("*/task.yaml"))
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NOT_THERE = 3
"""The exit code of the commands, too, where something that is needed isn't there."""
LOOK_S = 0.1
STOP_S = 60.0
"""More than `polar up` needs; then it is killed, and its parts end by themselves."""


def main() -> int:
    """Run the demo; the exit code."""
    options = _options()
    with _folder(options.data) as data:
        say(f"running on the data folder {data}")
        with _up(data, options) as up:
            # The stages would install pi when they need it; here its progress can be seen.
            if _beside(up, "consumers.harnesses.pi") != 0:
                return NOT_THERE
            _until_ready(up, data)
            tasks = [_fresh(file) for file in TASKS]
            began = time.monotonic()
            code = _submit(up, data, tasks)
            say(f"the run took {time.monotonic() - began:.1f} s")
            found = [_show(data, task["task_id"]) for task in tasks]
        installed = Path(sys.executable).with_name("polar")
        polar = min(str(installed), os.path.relpath(installed), key=len)
        say(f"everything is stopped; the data stays in {data}. To ask it more, run `{polar} up --data {data}`,")
        say(f"and beside it `{polar} trajectories --data {data} --format jsonl`: token ids, loss masks, logprobs")
    return code or _judge(tasks, found, is_scripted=options.engine is None)


def say(line: str) -> None:
    """A line of our own among those of the commands."""
    print(f"demo: {line}", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, help="data folder; else POLAR_DATA, else .polar or the next free .polar-N")
    parser.add_argument("--engine", metavar="URL", help="a vLLM in place of the scripted engine")
    parser.add_argument("--model", metavar="NAME", help="its model, where it serves several")
    return parser.parse_args()


@contextmanager
def _folder(asked: Path | None) -> Iterator[Path]:
    """The data folder, held against other demos. One that was asked for is taken as it is: `polar up` says where it is in use."""
    named = asked or (Path(os.environ["POLAR_DATA"]) if os.environ.get("POLAR_DATA") else None)
    for data in (named,) if named else (Path(".polar" if n == 1 else f".polar-{n}") for n in count(1)):
        data.mkdir(parents=True, exist_ok=True)
        with (data / "demo.lock").open("w") as held:
            try:
                # Between this look and the start of `polar up` another demo could come.
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if named:
                    sys.exit(f"demo: another demo runs on {data}; choose another folder with --data")
                continue
            if named or lock.is_free(data):
                yield data
                return


@contextmanager
def _up(data: Path, options: argparse.Namespace) -> Iterator[subprocess.Popen[bytes]]:
    """`polar up`, stopped at the end of the block, however that comes."""
    arguments = ["up", "--data", str(data), "--ready-file", str(_ready_file(data))]
    if options.engine is None:
        arguments += [argument for file in TASKS for argument in ("--scripts", str(file.with_name("script.yaml")))]
    else:
        arguments += ["--engine", options.engine]
    if options.model is not None:
        arguments += ["--model", options.model]
    _ready_file(data).unlink(missing_ok=True)
    # What runs in a sandbox finds its programs where `polar up` does: here, a Python that has pytest.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    with _child("polar.cli", *arguments, PATH=path) as process:
        yield process


def _ready_file(data: Path) -> Path:
    return data / "demo.ready"


def _until_ready(up: subprocess.Popen[bytes], data: Path) -> None:
    """`polar up` has a deadline for each of its parts, and ends where one doesn't answer."""
    while not _ready_file(data).exists():
        _check(up)
        time.sleep(LOOK_S)


def _beside(up: subprocess.Popen[bytes], module: str, *arguments: str) -> int:
    """Run a command while `polar up` lives; its exit code."""
    with _child(module, *arguments) as process:
        while process.poll() is None:
            _check(up)
            time.sleep(LOOK_S)
        return process.returncode


@contextmanager
def _child(module: str, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """`python -m module arguments…`, stopped at the end of the block; on the leash, so that it ends though we be killed with -9.

    It gets a session of its own: Ctrl-C is for us, who stop one thing after another.
    """
    process = subprocess.Popen(
        [sys.executable, "-P", leash.__file__, module, *arguments],
        env=os.environ | environment,
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            for number in INTERRUPTS:  # a second Ctrl-C would only leave half of it running
                signal.signal(number, signal.SIG_IGN)
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _check(up: subprocess.Popen[bytes]) -> None:
    if (code := up.poll()) is not None:
        say(f"`polar up` has ended with exit code {code}; what it said stands above")
        sys.exit(code or 1)


def _fresh(file: Path) -> dict[str, Any]:
    """A task under an id that no run had before (an id's second submission is answered with the first one's end), its paths absolute."""
    task: dict[str, Any] = yaml.safe_load(file.read_text())
    task["task_id"] += f"-{secrets.token_hex(3)}"
    for action in task["runtime"]["prepare"]:
        if "source" in action:
            action["source"] = str(file.parent.absolute() / action["source"])
    return task


def _submit(up: subprocess.Popen[bytes], data: Path, tasks: Sequence[dict[str, Any]]) -> int:
    """Submit the tasks and wait for their trajectories; the exit code."""
    say("submitting " + ", ".join(f"{task['task_id']} ({task['num_samples']} samples)" for task in tasks))
    file = data / "demo-tasks.jsonl"
    file.write_text("\n".join(map(json.dumps, tasks)))
    return _beside(up, "polar.cli", "submit", str(file), "--wait", "--data", str(data))


def _show(data: Path, task_id: str) -> list[dict[str, Any]]:
    """Print a task's trajectories as a table; they themselves."""
    command = [sys.executable, "-m", "polar.cli", "trajectories", "--data", str(data), "--task", task_id]
    subprocess.run(command, check=True)
    lines = subprocess.run([*command, "--format", "jsonl"], check=True, stdout=subprocess.PIPE).stdout
    return [json.loads(line) for line in lines.splitlines()]


def _judge(tasks: Sequence[dict[str, Any]], found: Sequence[list[dict[str, Any]]], *, is_scripted: bool) -> int:
    """0 where every sample has its trajectory and the rewards differ, as the scripts were written to make them."""
    for task, trajectories in zip(tasks, found, strict=True):
        if len(trajectories) != task["num_samples"]:
            say(f"{task['task_id']} has {len(trajectories)} trajectories, not {task['num_samples']}")
            return 1
        if is_scripted and len({trajectory["reward"] for trajectory in trajectories}) < 2:
            say(f"the rewards of {task['task_id']} don't differ, though its script has good and bad ends")
            return 1
    return 0


def _interrupted(number: int, _: object) -> NoReturn:
    raise KeyboardInterrupt(number)


if __name__ == "__main__":
    for each in INTERRUPTS:
        signal.signal(each, _interrupted)  # SIGINT, too: a shell may have started us with it ignored
    try:
        sys.exit(main())
    except KeyboardInterrupt as interrupt:
        say("interrupted; everything is stopped")
        sys.exit(128 + interrupt.args[0])
