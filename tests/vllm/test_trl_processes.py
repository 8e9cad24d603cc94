"""Several TRL processes, in a real process group of two: each trains its slice, and an error of the main process is every process's."""

from __future__ import annotations

import json
import re
import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from examples.vllm_cpu.packages import packages, variables
from examples.vllm_cpu.serve import PYTHON, ROOT

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

PINS = ROOT / "examples" / "trl_grpo" / "requirements.txt"
PROGRAM = Path(__file__).with_name("trl_processes.py")
DEADLINE_S = 400.0
"""Imports take 15 s of CPU time each. PyTorch's own limit for a collective operation is 30 minutes."""


FAILURES = ("nothing", "connect", "resume", "task", "push", "unpicklable")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[list[Any], list[Any]]]:
    """By failure, what became of it in the main process and in the other one. Both go on after each error."""
    assert PYTHON.exists(), f"no vLLM at {PYTHON}: make vllm"
    folder = tmp_path_factory.mktemp("processes")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    command = list(map(str, (PYTHON, "-W", "ignore", PROGRAM, folder, *FAILURES)))
    with ExitStack() as stack:
        started = []
        for rank in ("0", "1"):
            environment = variables(packages(PINS)) | group | {"RANK": rank, "LOCAL_RANK": rank}
            log = stack.enter_context((folder / f"{rank}.log").open("w"))
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=log
            )
            started.append(stack.enter_context(process))
            stack.callback(process.kill)
        printed = [process.communicate(timeout=DEADLINE_S)[0] for process in started]
    logs = "\n".join((folder / f"{rank}.log").read_text()[-3000:] for rank in (0, 1))
    assert [process.returncode for process in started] == [0, 0], logs
    found = [[json.loads(text) for text in re.findall("^outcome (.*)", output, re.MULTILINE)] for output in printed]
    return dict(zip(FAILURES, zip(*found, strict=True), strict=True))


def test_two_processes_train_one_group_and_have_equal_weights(outcomes: dict[str, Any]) -> None:
    (first, weights), (second, weights_of_second) = outcomes["nothing"]
    names = [session_id.rpartition(".") for session_id in (*first, *second)]
    assert [int(sample) for _, _, sample in names] == [0, 1, 2, 3, 4, 5]
    assert len({task for task, _, _ in names}) == 1
    assert (len(first), weights) == (3, weights_of_second)


@pytest.mark.parametrize(
    ("failure", "kind", "text"),
    [
        ("connect", "NotReadyError", "127.0.0.1:9"),
        ("resume", "InputError", "the checkpoint is of the run"),
        ("task", "InputError", "names no task"),
        ("push", "InputError", "aren't served"),
    ],
)
def test_an_error_of_the_main_process_is_raised_in_both(
    outcomes: dict[str, Any], failure: str, kind: str, text: str
) -> None:
    main, other = outcomes[failure]
    assert main == other == [kind, main[1]]
    assert text in main[1]


def test_an_error_that_cannot_be_pickled_is_a_runtime_error_elsewhere(outcomes: dict[str, Any]) -> None:
    assert outcomes["unpicklable"] == (
        ["UnpicklableError", "version 0"],
        ["RuntimeError", "UnpicklableError: version 0"],
    )
