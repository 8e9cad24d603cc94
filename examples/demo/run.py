"""The main job, whole: a real agent mends a real repository, its every token goes over Kafka, exact trajectories come out.

Starts `polar up` on a data folder, submits the tasks that lie beside this file, shows what came out, asks SQL about it, and stops
everything again; the data stays. Without --engine the scripted engine plays the `script.yaml` beside each task. All that it does is
done by the commands that anyone has: `polar up`, `polar submit`, `polar trajectories`, `polar sql`.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import IO, Any, NoReturn

import yaml

from polar.embedded import lock, parent_watch

TASKS = sorted(Path(__file__).parent.glob("*/task.yaml"))
AT_WORK = "demo-tasks.jsonl"
"""In the data folder, the tasks of a demo until they have ended."""
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NOT_THERE = 3
"""The exit code of the commands, too, where something that is needed isn't there."""
LOOK_S = 0.1
MODEL_RUN_S = 900
"""For the run of a sample where a model thinks it up."""
LAKE_S = 60.0
"""The lake follows within 5 s; a machine may be busy."""
STOP_S = 60.0
"""More than `polar up` needs; then it is killed, and its parts end by themselves."""
QUESTIONS = {
    "What has each task come to?": """
SELECT task_id, count(*) AS samples, avg(reward) AS mean_reward, avg(calls) AS turns, sum(sampled_tokens) AS sampled
FROM trajectories
WHERE task_id LIKE '%-{run}'
GROUP BY ALL ORDER BY ALL""",
    "What did samples that ended well do otherwise?": """
SELECT status, reward, count(*) AS samples, avg(turns) AS turns, avg(test_runs) AS test_runs, avg(run_ms / 1000) AS run_s
FROM sessions
JOIN stage_times USING (session_id, attempt)
JOIN (
  SELECT session_id, attempt, count(*) AS turns, count(*) FILTER (answer LIKE '%pytest%') AS test_runs
  FROM lake.completions
  GROUP BY ALL
) USING (session_id, attempt)
WHERE stage = 'run' AND sessions.task_id LIKE '%-{run}'
GROUP BY ALL ORDER BY ALL""",
}
"""What the lake is asked at the end; `run` is what this run's task ids end in."""


def main() -> int:
    """Run the demo; the exit code."""
    options = _options()
    if shutil.which("git") is None:
        say("the tasks start from git repositories, and there is no git on the PATH: install it")
        return NOT_THERE
    is_scripted = options.engine is None
    run = secrets.token_hex(3)
    tasks = _tasks(run, is_scripted=is_scripted)
    with _folder(options.data) as data:
        say(f"running on the data folder {data}")
        with _up(data, options) as up:
            # The stages would install pi when they need it; here its progress can be seen.
            if _beside(up, "consumers.harnesses.install", "pi") != 0:
                return NOT_THERE
            _until_ready(up, data)
            _cancel_left(data)
            began = time.monotonic()
            try:
                code = _submit(up, data, tasks)
            except KeyboardInterrupt:
                _cancel_left(data)  # a later `polar up`, which has no scripts, would go on with them
                raise
            say(f"the run took {time.monotonic() - began:.1f} s")
            found = _show(data, tasks)
            if problem := _problem(tasks, found, is_scripted=is_scripted):
                say(problem)
                return 1
            _ask(data, run, len(found))
        _say_how_to_go_on(data, found)
    return code


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
        with _lock_file(data) as held:
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


def _lock_file(data: Path) -> IO[str]:
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        return (data / "demo.lock").open("w")
    except OSError as error:
        say(f"{data.absolute()} can't be a data folder: {error}; choose another with --data")
        sys.exit(NOT_THERE)


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
    """`python -m module arguments…`, stopped at the end of the block; it also ends if this process is killed (`parent_watch`).

    It runs in a session of its own: Ctrl-C reaches this process alone, which stops the others one by one.
    """
    process = subprocess.Popen(
        [sys.executable, "-P", parent_watch.__file__, module, *arguments],
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


def _tasks(run: str, *, is_scripted: bool) -> list[dict[str, Any]]:
    """The tasks under ids of this run alone (an id's second submission is answered with the first one's end), their paths absolute."""
    tasks: list[dict[str, Any]] = []
    for file in TASKS:
        task = yaml.safe_load(file.read_text())
        task["task_id"] += f"-{run}"
        for action in task["runtime"]["prepare"]:
            if "source" in action:
                action["source"] = str(file.parent.absolute() / action["source"])
        if not is_scripted:
            task["timeouts"]["run"] = MODEL_RUN_S
        tasks.append(task)
    return tasks


def _submit(up: subprocess.Popen[bytes], data: Path, tasks: Sequence[dict[str, Any]]) -> int:
    """Submit the tasks and wait for their trajectories; the exit code."""
    for task in tasks:
        say(
            f"submitting {task['task_id']}: {task['num_samples']} samples, each with {task['timeouts']['run']} s to run"
        )
    file = data / AT_WORK
    draft = file.with_suffix(".draft")
    draft.write_text("\n".join(map(json.dumps, tasks)))
    draft.replace(file)  # whole, or not there: the next demo reads it
    code = _beside(up, "polar.cli", "submit", str(file), "--wait", "--data", str(data))
    file.unlink()
    return code


def _cancel_left(data: Path) -> None:
    """End what a demo that was stopped half-way has left to do on this data: it would go on beside ours."""
    file = data / AT_WORK
    tasks = [json.loads(line)["task_id"] for line in file.read_text().splitlines()] if file.exists() else []
    command = [sys.executable, "-m", "polar.cli", "cancel"]
    cancels = [subprocess.Popen([*command, task_id, "--data", str(data)]) for task_id in tasks]
    ended = [cancel.wait() for cancel in cancels]
    if any(ended):
        sys.exit(1)


def _show(data: Path, tasks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Print the trajectories of the tasks as one table; they themselves."""
    of_tasks = [argument for task in tasks for argument in ("--task", task["task_id"])]
    print(flush=True)
    _polar("trajectories", *of_tasks, "--data", str(data))
    lines = _polar("trajectories", *of_tasks, "--data", str(data), "--format", "jsonl", stdout=subprocess.PIPE)
    return [json.loads(line) for line in lines.splitlines()]


def _ask(data: Path, run: str, samples: int) -> None:
    """Wait until the lake has all samples of this run, then print the questions and their answers."""
    deadline = time.monotonic() + LAKE_S
    while (there := _in_lake(data, run)) < samples:
        if time.monotonic() > deadline:
            say(f"after {LAKE_S:.0f} s the lake has {there} of {samples} trajectories; {data / 'logs'} may tell why")
            sys.exit(1)
        time.sleep(LOOK_S)
    for question, query in QUESTIONS.items():
        asked = query.format(run=run)
        print(f'\n{question}\npolar sql "{asked}"\n', flush=True)
        _polar("sql", asked, "--data", str(data))


def _in_lake(data: Path, run: str) -> int:
    """How many trajectories of this run the lake has; none before it is there."""
    query = f"SELECT count(*) FROM trajectories WHERE task_id LIKE '%-{run}'"  # noqa: S608 - the run is ours
    command = [sys.executable, "-m", "polar.cli", "sql", query, "--format", "csv", "--data", str(data)]
    answer = subprocess.run(command, capture_output=True, check=False).stdout.split()
    return int(answer[-1]) if answer else 0


def _polar(*arguments: str, stdout: int | None = None) -> bytes:
    """A command that ends by itself; what it said, where that was asked for. One that fails has said why, and so do we end."""
    ended = subprocess.run([sys.executable, "-m", "polar.cli", *arguments], stdout=stdout, check=False)
    if ended.returncode != 0:
        sys.exit(ended.returncode)
    return ended.stdout or b""


def _problem(tasks: Sequence[dict[str, Any]], found: Sequence[dict[str, Any]], *, is_scripted: bool) -> str | None:
    """What isn't as it must be, or, with the scripted engine, not as the scripts were written to make it."""
    samples = sum(task["num_samples"] for task in tasks)
    if len(found) != samples:
        return f"{len(found)} trajectories have come out for {samples} samples"
    failed = sum(each["status"] == "FAILED" for each in found)
    if is_scripted and failed:
        return f"{failed} of {samples} samples FAILED, as no script means them to; why stands above"
    rewards = {
        task["task_id"]: {each["reward"] for each in found if each["task_id"] == task["task_id"]} for task in tasks
    }
    if is_scripted and all(len(of_task) == 1 for of_task in rewards.values()):
        return "rewards differ within no task, though the scripts have good ends and bad ones"
    stopped = [each["stats"]["calls"] for each in found if each["status"] == "TIMED_OUT"]
    # One by its script; on a machine that is short of time others, too.
    if is_scripted and (not stopped or 0 in stopped):
        return f"one sample should be TIMED_OUT with the calls that it made; the calls of those that are: {stopped}"
    return None


def _say_how_to_go_on(data: Path, found: Sequence[dict[str, Any]]) -> None:
    """The commands for what has come out; the first starts the system that the others talk to."""
    installed = Path(sys.executable)
    programs = (installed.with_name("polar"), installed, Path(__file__).parents[1] / "trainer_loop.py")
    polar, python, trainer = (shlex.quote(min(str(path), os.path.relpath(path), key=len)) for path in programs)
    named = shlex.quote(str(data))
    shown = max(found, key=lambda trajectory: trajectory["status"] == "TIMED_OUT")["session_id"]
    say(f"everything is stopped; the data stays in {data}. To go on, start it again, then ask from another terminal:")
    for command, why in (
        (f"{polar} up --data {named}", "the whole system, until Ctrl-C"),
        (f"{polar} show {shown} --data {named}", "what this sample said and did"),
        (f'{polar} sql "DESCRIBE calls" --data {named}', "what can be asked of a model's calls"),
        (f"{polar} trajectories --format jsonl --data {named}", "token ids, loss masks, logprobs"),
        (f"{python} {trainer} --data {named}", "a trainer's loop: advantages of each group"),
    ):
        print(f"  {command:66}  # {why}")


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
