"""Tinker's API: SkyRL's server (`requirements.txt`) trains, vLLM samples from its LoRA, through Kafka, proxy and builder.

Real: both servers, Tinker's client, the model. PyTorch and PEFT are stand-ins in SkyRL's process (`standins/`).
"""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import polar
from examples.vllm_cpu.install import pins
from examples.vllm_cpu.serve import FLAGS, ROOT, serving
from tests.acceptance.up.running import Up
from tests.vllm.agents import AGENTS, Settings
from tests.vllm.tinker_api.packages import HERE, PINS, client_variables, environment, server_variables
from tests.vllm.work import Work
from tests.waiting import until

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(1500),
    # How Google's client makes its own sessions of aiohttp.
    pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning"),
]

SAMPLES = 4
START_S = 120.0
"""The server answers after 5 s on a quiet machine."""
STOP_S = 20.0
NEAR = 1e-3
FAR = 1e-2
"""Of a logprob: what a step must change at least, so that old weights couldn't pass for new ones."""
LORA = ("--enable-lora", "--max-lora-rank", "8", "--max-loras", "1")
BACKEND = {"max_lora_adapters": 4, "max_lora_rank": 8}


@dataclass(frozen=True)
class Ended:
    """What the trainer said, in order, and the sessions that were sampled in two groups."""

    stepped: dict[str, Any]
    second: dict[str, Any]
    groups: list[list[str]]


@contextmanager
def tinker_server(packages: Path, model: Path, folder: Path) -> Iterator[str]:
    """Its base URL, once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command: list[str | Path] = [
        packages / "bin" / "uv",
        "run",
        "--no-project",
        "-m",
        "skyrl.tinker.api",
        "--backend",
        "jax",
    ]
    options: list[str | Path] = [
        "--host", "127.0.0.1", "--port", str(port), "--base-model", model, "--backend-config", json.dumps(BACKEND),
        "--database-url", f"sqlite:///{folder / 'tinker.db'}", "--checkpoints-base", folder / "checkpoints",
    ]  # fmt: skip
    log = folder / "tinker.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, *options],
            cwd=folder,
            env=server_variables(packages),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert process.poll() is None, log.read_text()[-4000:]
        try:
            with urllib.request.urlopen(f"{url}/api/v1/healthz", timeout=5):
                return True
        except OSError:
            return False

    try:
        until(answers, START_S)
        yield url
    finally:
        # The engine is its child's child.
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class Training:
    """`training.py` as a process."""

    def __init__(self, *arguments: str | Path) -> None:
        self._process = subprocess.Popen(
            [environment() / "bin" / "python", HERE / "training.py", *arguments],
            cwd=ROOT,
            env=client_variables(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def told(self) -> dict[str, Any]:
        """Its next line."""
        assert self._process.stdout is not None
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def tell(self, line: str | Path = "") -> None:
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


def sampled(up: Up, seed: int) -> list[str]:
    """A group of sessions of one task, every other one rewarded; their ids."""
    task_id = None
    found = []
    for number in range(SAMPLES):
        samples = None if task_id else SAMPLES
        with polar.Session.open(up.data, task_id=task_id, samples=samples, ttl_s=300) as session:
            AGENTS["openai_chat"](session.env, Work(seed), Settings())
            session.reward = float(number % 2)
        found.append(session.session_id)
        task_id = session.session_id.rpartition(".")[0]
    return sorted(found)


@pytest.fixture(scope="module")
def ended(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ended]:
    folder = tmp_path_factory.mktemp("tinker")
    updating = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
    with (
        tinker_server(environment(), model_dir, folder) as tinker,
        serving(model_dir, log=folder / "vllm.log", flags=[*FLAGS, *LORA], settings=updating) as vllm,
    ):
        training = Training(tinker, vllm.url, model_dir, folder / "loras")
        try:
            policy = training.told()["loaded"]
            up = Up(folder, "--engine", vllm.url, "--mode", "tokens", "--model", policy)
            try:
                training.tell(up.data)
                first = sampled(up, seed=1)
                stepped = training.told()
                second = sampled(up, seed=2)
                training.tell()
                yield Ended(stepped, training.told(), [first, second])
            finally:
                up.process.terminate()
                up.process.wait()
        finally:
            training.end()


def test_the_first_step_is_on_the_tokens_that_its_own_weights_sampled(ended: Ended, tell: Any) -> None:
    stepped = ended.stepped
    tell(f"{stepped['tokens']} tokens in {stepped['datums']} datums, ratios {stepped['ratios']}, {stepped['metrics']}")
    assert stepped["sessions"] == ended.groups[0]
    assert stepped["tokens"] > SAMPLES
    assert stepped["ratios"] == pytest.approx([1, 1], abs=NEAR)
    assert math.isfinite(stepped["loss"])


def test_the_step_changed_the_weights(ended: Ended) -> None:
    assert ended.stepped["metrics"]["skyrl.ai/grad_norm"] > 0
    assert ended.stepped["changed"] > FAR


def test_vllm_samples_the_next_group_from_the_new_weights_and_its_tokens_say_so(ended: Ended, tell: Any) -> None:
    tell(
        f"largest difference after the push: {ended.second['largest']:.1e}; by the step: {ended.stepped['changed']:.1e}"
    )
    assert ended.second["sessions"] == ended.groups[1]
    assert ended.second["largest"] < NEAR
    assert ended.stepped["version"] == 1
    assert ended.second["versions"] == [1]


def test_a_trainer_that_resumes_has_the_same_weights_and_sees_no_group_twice(ended: Ended) -> None:
    assert ended.second["resumed_version"] == 1
    assert ended.second["resumed_differs"] == 0
    assert ended.second["resumed_sessions"] == ended.groups[1]


def test_the_versions_that_docs_and_modules_name_are_the_pinned_ones() -> None:
    pinned = pins(PINS)
    exporter = (ROOT / "polar" / "trainer" / "exporters" / "tinker.py").read_text()
    page = (ROOT / "docs" / "trainers" / "tinker.md").read_text()
    for name in ("tinker", "skyrl"):
        assert f"{name} {pinned[name]}" in exporter
        assert f"{name}=={pinned[name]}" in page or f"{name} {pinned[name]}" in page
