"""Each client, unmodified, with what `polar session run` sets and nothing else, in a whole system: what of it becomes a trajectory."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from consumers.harnesses import clients
from tests.acceptance.up.running import POLAR, Up, engine_record, environment, trajectory
from tests.clients.conftest import Tell, TellSent
from tests.clients.installing import Installed
from tests.clients.trials import PROGRAMS, TRIALS, Trial
from topics.types.trajectory import Trajectory

CLIENT_S = 400
"""For one conversation: some libraries take a minute to import on a busy machine."""

pytestmark = [pytest.mark.clients, pytest.mark.timeout(1200)]


@dataclass(frozen=True)
class Done:
    """A client's work that is done."""

    version: str
    session_id: str
    trajectory: Trajectory
    output: str
    """Standard output and error of the client and of `polar session run`."""


def on_path(folder: Path, name: str, installed: Installed) -> str:
    """A PATH with the client's program, as an installation by hand would have it."""
    program = clients.find(name).program
    folder.mkdir()
    if program is not None:
        script = folder / program
        script.write_text(f'#!/bin/sh\nexec {shlex.join(installed.client)} "$@"\n')
        script.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def worked(trial: Trial, up: Up, tmp_path: Path, *, newest: bool) -> Done:
    """Installs the client and has it do its work through `polar session run`."""
    installed = trial.install(newest)
    workspace, home = tmp_path / "work", tmp_path / "home"
    workspace.mkdir()
    home.mkdir()
    (workspace / "a.txt").write_text("this is wrong\n")
    for path, text in trial.settings.items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(text)
    env = environment() | {"HOME": str(home), "PATH": on_path(tmp_path / "bin", trial.name, installed)}
    if installed.modules is not None:
        (workspace / "node_modules").symlink_to(installed.modules)
        for program in PROGRAMS.glob("*.mjs"):
            shutil.copy(program, workspace)
    # The folders of the system's clients are the test's own home's, so that no settings of this machine's user are read.
    env = {name: value for name, value in env.items() if not name.startswith(("OPENAI_", "ANTHROPIC_", "XDG_"))}
    ended = subprocess.run(
        [POLAR, "session", "run", trial.name, "--data", str(up.data), "--", *trial.arguments(installed)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=CLIENT_S,
        cwd=workspace,
        env=env | {"IS_SANDBOX": "1"},
        check=False,
    )
    output = ended.stdout + ended.stderr
    assert ended.returncode == 0, output
    assert (workspace / "a.txt").read_text().strip() == "this is right", output
    match = re.search(r"polar: (\S+) is open until", ended.stderr)
    assert match is not None, output
    return Done(installed.version, match[1], trajectory(up, match[1]), output)


def engine_calls(up: Up, session_id: str) -> list[dict[str, Any]]:
    """The session's calls that the engine answered."""
    return [call for call in engine_record(up) if call["session_id"] == session_id]


@pytest.mark.parametrize("trial", TRIALS, ids=str)
def test_a_client_works_with_what_a_session_sets_for_it(
    trial: Trial, up: Up, tmp_path: Path, newest: bool, tell: Tell, tell_sent: TellSent
) -> None:
    try:
        done = worked(trial, up, tmp_path, newest=newest)
    finally:
        tell_sent(trial)  # a change of it may be why the client failed
    found = done.trajectory
    main = [each for each in found.calls if each.kind == "main"]
    assert {each.dialect for each in found.calls} == {trial.dialect}, done.output
    assert len(found.calls) == len(engine_calls(up, done.session_id)), "every call is captured"
    assert len(main) == len(trial.turns), done.output
    traces = [each for each in found.traces if each.kind == "main"]
    assert len(traces) == trial.traces, found.stats
    tell(trial, done.version, len(main), len(found.calls) - len(main), len(traces))
