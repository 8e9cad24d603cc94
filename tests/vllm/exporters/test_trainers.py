"""What the exporters make, given to the code of the trainers: verl 0.9.1, trl 1.16.0, skyrl 0.3.0, nemo-gym 0.7.0 (`requirements.txt`).

Each program runs in vLLM's environment, with the trainers' packages beside it. No package index has slime, prime-rl and NeMo-RL: their
tests in tests/polar/trainer/exporters name the files and commits.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings

from examples.vllm_cpu.install import pins
from examples.vllm_cpu.packages import variables
from examples.vllm_cpu.serve import PYTHON, ROOT
from polar.trainer.groups import Group
from tests.polar.trainer.trees import groups, rewarded_tokens
from tests.vllm.exporters.packages import PINS, packages

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

EXAMPLES = 100
DEADLINE_S = 400.0
"""14 s of CPU time, nearly all of it for imports of torch and transformers; machines are busy."""


@pytest.fixture(scope="module")
def random_groups(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of groups, each of another task, with something to train."""
    made: list[Group] = []

    @settings(max_examples=EXAMPLES, derandomize=True, database=None)
    @given(groups())
    def collect(group: Group) -> None:
        if rewarded_tokens(group):
            made.append(of_task(group, f"t{len(made)}"))

    collect()
    assert len(made) > EXAMPLES / 2
    file = tmp_path_factory.mktemp("groups") / "groups.msgpack"
    file.write_bytes(msgspec.msgpack.encode(made))
    return file


def of_task(group: Group, task_id: str) -> Group:
    trajectories = [
        msgspec.structs.replace(one, task_id=task_id, session_id=f"{task_id}.{one.sample_index}")
        for one in group.trajectories
    ]
    return Group(task_id, trajectories)


@pytest.mark.parametrize("trainer", ["verl", "trl", "skyrl", "nemo_gym"])
def test_the_trainer_s_own_code_takes_what_is_exported(trainer: str, random_groups: Path) -> None:
    assert PYTHON.exists(), f"no vLLM at {PYTHON}: make vllm"
    program = Path(__file__).with_name(f"check_{trainer}.py")
    done = subprocess.run(
        [PYTHON, "-W", "ignore", program, random_groups],
        cwd=ROOT,
        env=variables(packages()),
        text=True,
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    rows = re.search(r"(\d+) rows$", done.stdout)
    assert rows is not None, done.stdout
    assert int(rows[1]) >= EXAMPLES / 2


def test_the_versions_that_docs_and_modules_name_are_the_pinned_ones() -> None:
    pinned = pins(PINS)
    for module, name in (("verl", "verl"), ("trl", "trl"), ("skyrl", "skyrl"), ("nemo", "nemo-gym")):
        source = (ROOT / "polar" / "trainer" / "exporters" / f"{module}.py").read_text()
        assert f"{name} {pinned[name]}" in source, f"{module}.py follows another {name}"
