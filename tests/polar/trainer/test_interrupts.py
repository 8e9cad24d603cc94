"""Programs that connect as slime's and SkyRL's modules do, on a real broker: how they end by Ctrl-C and by an error.

SkyRL's two types are stand-ins. Nobody decides on the tasks, so a batch waits for the coordinator.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from polar.fleet import Fleet
from topics.contract import catalogue
from topics.environment.settings import Settings
from topics.log import admin

END_S = 20.0
"""A batch waits for a coordinator for 60 s."""
CONNECTED = """
import atexit, os, time
from pathlib import Path
from polar.trainer.training_run import TrainingRun
from topics.environment.settings import load
run = TrainingRun(load(None), "r1").__enter__()
atexit.register(run.__exit__)
"""
PUSHES = f"""{CONNECTED}
def push():
    print("ready", flush=True)
    time.sleep(1)
run.publish(1, push)
"""
FAILS = f"""{CONNECTED}
def push():
    print("ready", flush=True)
    raise OSError("no room")
run.publish(1, push)
"""
GENERATES = """
import asyncio, sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
for name in ("skyrl", "skyrl.train", "skyrl.train.generators", "skyrl.train.generators.base"):
    sys.modules[name] = ModuleType(name)
class TrajectoryID(SimpleNamespace): ...
sys.modules["skyrl.train.generators.base"].__dict__.update(GeneratorInterface=object, TrajectoryID=TrajectoryID)
from polar.trainer.skyrl import PolarGenerator
def task(prompt):
    print("ready", flush=True)
    return {"instruction": "x", "agent": {"harness": "pi"}}
generator = PolarGenerator(task, run="r1", positions=Path(sys.argv[1]))
batch = {
    "prompts": [[]], "env_classes": ["none"], "env_extras": [{}], "sampling_params": {"temperature": 1.0},
    "trajectory_ids": [TrajectoryID(instance_id="7", repetition_id=0)],
    "batch_metadata": SimpleNamespace(global_step=1, training_phase="train"),
}
asyncio.run(generator.generate(batch))
"""


@pytest.mark.parametrize(
    ("program", "interrupts", "named"),
    [(PUSHES, True, "KeyboardInterrupt"), (FAILS, False, "no room"), (GENERATES, True, "KeyboardInterrupt")],
    ids=["pause", "error", "batch"],
)
async def test_a_program_ends_at_once_and_leaves_no_pause(
    kafka: str, namespace: str, tmp_path: Path, program: str, *, interrupts: bool, named: str
) -> None:
    settings = Settings(kafka=kafka, namespace=namespace, data=tmp_path, replication=1, min_insync=1)
    await admin.apply(settings, catalogue.FIXED, embedded=True)
    code, output = await asyncio.to_thread(ended, settings, program, interrupts=interrupts)
    assert code not in (0, -signal.SIGKILL), output
    assert named in output
    assert "never awaited" not in output
    async with Fleet(settings) as fleet:
        state = (await fleet.status()).state
    assert (state.generation > 0, state.paused) == (True, False)


def ended(settings: Settings, program: str, *, interrupts: bool) -> tuple[int, str]:
    """Exit code and errors of a program that is interrupted, if at all, after it has printed a line."""
    environment = {
        "POLAR_KAFKA": settings.bootstrap,
        "POLAR_NAMESPACE": settings.namespace,
        "POLAR_DATA": str(settings.data),
    }
    command = [sys.executable, "-c", program, str(settings.data / "positions")]
    with subprocess.Popen(
        command, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        if interrupts:
            process.send_signal(signal.SIGINT)
        try:
            _, errors = process.communicate(timeout=END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            _, errors = process.communicate()
    return process.returncode, errors
